"""The variants of a project that CI builds."""

from __future__ import annotations

from collections.abc import Iterator

from spark_images.ci.matrix import AMD64, ARM64, Variant
from spark_images.errors import UsageError
from spark_images.images import Image
from spark_images.project import Project
from spark_images.targets import Target


def variants_of(project: Project, *, every: bool = False) -> tuple[Variant, ...]:
    """Every image for every target, on the first base of each unless `every`; components before what needs them."""
    found: dict[str, Variant] = {}
    for image in project.images:
        for target, base in project.variants(image):
            if every or base == dict(image.supports)[target.name][0]:
                for one in _with_components(project, image, target, base):
                    found.setdefault(one.key, one)
    return tuple(found.values())


def variant_named(project: Project, image: Image, target: Target, base: str) -> Variant:
    """One variant."""
    return Variant(
        image=image.name,
        target=target.name,
        base=base,
        platform=target.platform,
        builders=tuple(
            builder
            for builder in sorted((ARM64, AMD64), key=lambda platform: platform != target.platform)
            if project.compiles_on(builder, image, target, base)
        ),
        components=tuple(component.name for component in project.components(image.on(base))),
        gpu=bool(target.compute_capability and image.smoke),
    )


def wanted_targets(project: Project, text: str) -> tuple[str, ...]:
    """The targets that $SPARK_IMAGES_TARGETS names, parted by spaces or commas; () for all."""
    return tuple(project.target(name).name for name in text.replace(",", " ").split())


def only(project: Project, variants: tuple[Variant, ...], images: list[str], targets: str) -> tuple[Variant, ...]:
    """Those of the named images (all if none) and targets. UsageError for unknown names, or where none is left."""
    names = [project.image(name).name for name in images]
    wanted = wanted_targets(project, targets)
    left = tuple(one for one in variants if (not names or one.image in names) and (not wanted or one.target in wanted))
    if not left:
        raise UsageError(
            "no image is left to build",
            why=[f"images: {', '.join(names) or 'all'}; targets: {', '.join(wanted) or 'all'}"],
            hint="$SPARK_IMAGES_TARGETS names targets that these images do not support",
        )
    return left


def _with_components(project: Project, image: Image, target: Target, base: str) -> Iterator[Variant]:
    for component in project.components(image.on(base)):
        yield from _with_components(project, component, target, base)
    yield variant_named(project, image, target, base)
