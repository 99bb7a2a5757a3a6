"""The plan of a part of a compile: a few objects of a project's real build, and no image. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spark_images.compat.command import Kernels, sdist_command
from spark_images.compat.facts import Facts
from spark_images.contents import deb_content
from spark_images.errors import UsageError
from spark_images.imageconfig import ImageConfig
from spark_images.images import Image
from spark_images.ingredients import compile_inputs, describe_pin, source_of
from spark_images.locks import DebsLock, WheelsLock
from spark_images.pins import DebsPin, Pins, RequirementsPin, SdistPin
from spark_images.plan import Plan, build_root
from spark_images.sources import SourcesLock
from spark_images.targets import Target

BASE = "units"  # stands in records where an image has its base
STEP = "units"  # its name in the log
CUDA_PIN = "cuda"  # whose nvcc compiles

_DOCKERFILE = """\
FROM build-root AS units
ARG SOURCE_DATE_EPOCH={epoch}
RUN --mount=type=bind,source=.,target=/spark/scripts \\
    --mount=type=bind,from=inputs,source=.,target=/spark/inputs \\
    --mount=type=cache,id=spark-images-ccache,target=/spark/cache \\
    --mount=type=secret,id=limits --mount=type=secret,id=profile \\
    /spark/scripts/step {step} {command}

FROM scratch
COPY --from=units /out/ /
"""


def sdist_of(image: Image, pins: Pins) -> SdistPin:
    """What the image is compiled from. UsageError where that is no sdist."""
    pin = pins[image.compile.pin]
    if not isinstance(pin, SdistPin):
        raise UsageError(f"`{image.name}` is not compiled from an sdist, but made of `{pin.name}`")
    return pin


def lacking(sources: SourcesLock) -> tuple[str, ...]:
    """Sources of which a tree, their own or a submodule's, is not known."""
    return tuple(dict.fromkeys(source.name for source in sources.sources if not source.tree))


def plan_units(
    image: Image,
    target: Target,
    globs: Sequence[str],
    *,
    builder: str,
    pins: Pins,
    facts: Facts,
    wheels: Mapping[str, WheelsLock],
    debs: DebsLock,
    sources: SourcesLock | None,
    scripts: Mapping[str, str],
    all_kernels: bool = False,
) -> Plan:
    """Everything about one such run. builder, wheels, scripts: as in make_plan. sources: of vLLM's sdist.

    Raises UsageError where no torch is locked for the target, ConfigError for a project that no lock has.
    """
    pin = sdist_of(image, pins)
    command = sdist_command(
        pin.project,
        pin.version,
        target,
        facts=facts,
        cuda=describe_pin(pins[CUDA_PIN]).partition(" ")[0],
        kernels=Kernels.ALL if all_kernels else image.compile.kernels,
        lacking=lacking(sources) if sources else (),
    )
    for locked in (pins[use.pin] for use in image.compile.wheels):
        if isinstance(locked, RequirementsPin) and locked.platform != target.platform:
            raise UsageError(
                f"no torch is locked for target `{target.name}`: pin `{locked.name}` is for {locked.platform}",
                hint="lock one for its platform as a pin of kind requirements, and name that in image.yaml",
            )
    debs_pin = next(pin for pin in pins.pins if isinstance(pin, DebsPin))
    epoch = source_of(image, pins).epoch
    root = build_root(image, target, builder, pins, debs)
    used = (image.compile.pin, *(use.pin for use in image.compile.wheels), debs_pin.name)
    return Plan(
        image=image.name,
        target=target.name,
        base=BASE,
        builder=builder,
        platform=target.platform,
        config=_config(target.arch, epoch),
        dockerfile=_DOCKERFILE.format(epoch=epoch, step=STEP, command=command.with_units(globs).line()),
        scripts=tuple(sorted(scripts.items())),
        inputs=tuple(
            sorted(compile_inputs(image, target, builder, pins, wheels, sources), key=lambda entry: entry.path)
        ),
        roots=(root,),
        forms=(),
        pins=tuple((name, describe_pin(pins[name])) for name in used),
        unverified=(),
        deb_contents=tuple(deb_content(debs_pin, deb) for deb in root.debs),
        patches=tuple((patch.path, patch.sha256) for patch in command.patches),
    )


def _config(arch: str, epoch: int) -> ImageConfig:
    return ImageConfig(
        architecture=arch, user="", env=(), entrypoint=(), command=(), ports=(),
        workdir="/", stop_signal="", labels=(), epoch=epoch,
    )  # fmt: skip
