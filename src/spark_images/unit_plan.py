"""The plan of a part of a compile: a few objects of a project's real build, and no image. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from spark_images.compat.command import CompileCommand, flashinfer_command, vllm_command
from spark_images.compat.facts import Facts
from spark_images.compat.release import flashinfer_release, vllm_release
from spark_images.contents import deb_content, sdist_content, wheel_content
from spark_images.cuda_arch import parse_arch
from spark_images.errors import ConfigError, UsageError
from spark_images.imageconfig import ImageConfig
from spark_images.images import Image
from spark_images.locks import DebsLock, WheelsLock
from spark_images.pins import Content, DebsPin, Pins, RequirementsPin, SdistPin
from spark_images.plan import Input, Plan, Root, describe_pin, source_of
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


def compile_command(
    image: Image, target: Target, *, pins: Pins, facts: Facts, sources: SourcesLock | None, all_kernels: bool
) -> CompileCommand:
    """How the pinned release is compiled, without the sources that nobody can have. image: as on a base.

    Raises UsageError for a target without a GPU, and for a project of which nobody has written that down.
    """
    pin = sdist_of(image, pins)
    if not target.compute_capability:
        raise UsageError(f"target `{target.name}` has no GPU, so there is nothing to compile for it")
    gpu = parse_arch(target.compute_capability).capability
    if image.name == "flashinfer":
        flashinfer = flashinfer_release(facts.flashinfer, pin.version)
        return flashinfer_command(facts.flashinfer, flashinfer, gpu=gpu, arch=target.arch, all_kernels=all_kernels)
    if image.name == "vllm" and sources is not None:
        return vllm_command(
            facts.vllm,
            vllm_release(facts.vllm, pin.version),
            gpu=gpu,
            arch=target.arch,
            cuda=_version(pins, CUDA_PIN),
            all_kernels=all_kernels,
            lacking=lacking(sources),
        )
    raise UsageError(f"nobody has written down how `{image.name}` is compiled from its sdist")


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
    command = compile_command(image, target, pins=pins, facts=facts, sources=sources, all_kernels=all_kernels)
    debs_pin = next(pin for pin in pins.pins if isinstance(pin, DebsPin))
    epoch = source_of(image, pins).epoch
    arch = builder.split("/")[1]
    sets = {*image.compile.debs, *(dict(image.compile.cross_debs).get(target.arch, ()) if arch != target.arch else ())}
    root = Root(
        name="build-root",
        arch=arch,
        debs=tuple(deb for deb in debs.debs if {f"{name}/{arch}" for name in sets}.intersection(deb.sets)),
        slim=False,
        users=(),
    )
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
        inputs=tuple(sorted(_inputs(image, target, builder, pins, wheels, sources), key=lambda entry: entry.path)),
        roots=(root,),
        forms=(),
        pins=tuple((name, describe_pin(pins[name])) for name in used),
        unverified=(),
        deb_contents=tuple(deb_content(debs_pin, deb) for deb in root.debs),
    )


def _config(arch: str, epoch: int) -> ImageConfig:
    return ImageConfig(
        architecture=arch, user="", env=(), entrypoint=(), command=(), ports=(),
        workdir="/", stop_signal="", labels=(), epoch=epoch,
    )  # fmt: skip


def _inputs(
    image: Image,
    target: Target,
    builder: str,
    pins: Pins,
    wheels: Mapping[str, WheelsLock],
    sources: SourcesLock | None,
) -> Iterable[Input]:
    sdist = sdist_content(sdist_of(image, pins))
    yield Input(path=f"sources/{sdist.label}", content=sdist)
    out = lacking(sources) if sources else ()
    for source, content in sources.contents if sources else ():
        if source.name not in out:
            yield Input(path=f"trees/{source.label}.tar", content=content)
    for use in image.compile.wheels:
        locked = pins[use.pin]
        if isinstance(locked, RequirementsPin) and locked.platform != target.platform:
            raise UsageError(
                f"no torch is locked for target `{target.name}`: pin `{use.pin}` is for {locked.platform}",
                hint="lock one for its platform as a pin of kind requirements, and name that in image.yaml",
            )
        for role, platform, projects in (("builder", builder, use.builder), ("target", target.platform, use.target)):
            for project in projects:
                yield from _wheels(image, use.pin, wheels[use.pin], project, platform, role)


def _wheels(image: Image, pin: str, lock: WheelsLock, project: str, platform: str, role: str) -> Iterable[Input]:
    found: list[Content] = [
        wheel_content(pin, wheel)
        for wheel in lock.wheels
        if wheel.project == project and wheel.platform in (platform, "any")
    ]
    if not found:
        raise ConfigError(f"{image.path}: wheels: {pin}: {lock.path} has no `{project}` for {platform}")
    for content in found:
        yield Input(path=f"wheels/{role}/{content.label}", content=content)


def _version(pins: Pins, name: str) -> str:
    return describe_pin(pins[name]).partition(" ")[0]
