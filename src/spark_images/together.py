"""Whether what the pins name goes together, for one image: the rules of compat on pins and, if made, locks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from packaging.requirements import Requirement
from packaging.version import Version

from spark_images.compat.build import flashinfer_variables, traps_of
from spark_images.compat.check import Refusal, check
from spark_images.compat.facts import Facts, Trap
from spark_images.compat.release import FlashinferRelease, VllmRelease, flashinfer_release, vllm_release
from spark_images.cuda_arch import parse_arch
from spark_images.errors import CompatError, ConfigError
from spark_images.images import Image
from spark_images.ingredients import installed_pin
from spark_images.locks import DebsLock, WheelsLock
from spark_images.pins import ImagePin, Pins, RequirementsPin, SdistPin, WheelsPin
from spark_images.targets import Target
from spark_images.vllm.check import Checker

NGC = "nvidia/pytorch"  # whose tag says the month: 26.01-py3
_COMPILER = "g++"  # of Debian; its version is that of GCC, after an epoch
_VLLM, _FLASHINFER = "vllm", "flashinfer-python"


def releases_in(image: Image, pins: Pins) -> dict[str, str]:
    """Project -> version of what the pins themselves say is installed or compiled."""
    return _locked(image, pins, {}) | _compiled(image, pins)


def refusals(
    image: Image,
    target: Target,
    base: str,
    *,
    pins: Pins,
    facts: Facts,
    wheels: Mapping[str, WheelsLock],
    debs: DebsLock | None,
) -> tuple[Refusal, ...]:
    """What speaks against the image as it is pinned. wheels: pin name -> lock; for one that is not made the pin speaks.

    Raises UsageError for a release of vLLM or FlashInfer that nobody has read.
    """
    image = image.on(base)
    installed, locked, compiled = installed_pin(image, pins), _locked(image, pins, wheels), _compiled(image, pins)
    versions = locked | compiled
    cuda = next((pins[use.pin] for use in image.compile.wheels_for(target.name) if use.pin == "cuda"), None)
    ground_of = image.runtime.image or image.compile.image
    ground = next((pin for pin in pins.pins if isinstance(pin, ImagePin) and pin.name == ground_of), None)
    toolkit = image.compile.toolkit(target.name)
    gcc = (
        next((deb.version for deb in debs.debs if deb.package == _COMPILER), "")
        if debs and compiled and image.compile.debs
        else ""
    )
    found = check(
        facts,
        image=image.name,
        vllm=versions.get(_VLLM, ""),
        flashinfer=versions.get(_FLASHINFER, ""),
        torch=locked.get("torch", ""),
        cuda=_cuda_of(pins, toolkit.image) if toolkit else cuda.version if isinstance(cuda, WheelsPin) else "",
        python=installed.python if installed else "",
        gcc=gcc.partition(":")[2].partition("-")[0],
        target=target,
        base=base.partition("-")[0],
        ngc_tag=ground.ref.rpartition(":")[2] if ground and NGC in ground.ref else "",
    )
    return (*found, *_check_build_requirements(image, target, compiled, pins=pins, facts=facts, wheels=wheels))


def traps_in(image: Image, target: Target, base: str, *, pins: Pins, facts: Facts) -> tuple[Trap, ...]:
    """What whoever serves with the releases that the pins name has to know, on the target's GPU."""
    releases = releases_in(image.on(base), pins)
    if not target.compute_capability:
        return ()
    gpu = parse_arch(target.compute_capability).capability
    of = ((facts.vllm.traps, releases.get(_VLLM)), (facts.flashinfer.traps, releases.get(_FLASHINFER)))
    found = (trap for traps, version in of if version for trap in traps_of(traps, Version(version), gpu))
    return tuple(trap for trap in found if trap.at_run_time)


def require_together(found: tuple[Refusal, ...], *, title: str) -> None:
    """Raise CompatError where anything is certain to go wrong."""
    certain = [refusal for refusal in found if refusal.certain]
    if certain:
        raise CompatError(
            f"{title}: what the pins name does not go together",
            why=[f"{refusal.what} ({refusal.source})" for refusal in certain],
            hint="; ".join(dict.fromkeys(refusal.hint for refusal in certain if refusal.hint)),
        )


def require_env(image: Image, base: str, release: str, checker: Checker) -> None:
    """Raise ConfigError where the image on that base sets a variable that its release of vLLM does not know."""
    if found := checker.variables(release, dict(image.on(base).runtime.env)):
        raise ConfigError(f"{image.path}: runtime.env: {found[0]} (base `{base}`)", why=found[1:])


def require_flashinfer_env(image: Image, target: Target, base: str, *, pins: Pins, facts: Facts) -> None:
    """Raise ConfigError where an image that runs FlashInfer is not told what that release has to be told."""
    releases = releases_in(image.on(base), pins)
    gpu = parse_arch(target.compute_capability).capability if target.compute_capability else None
    if _VLLM not in releases or _FLASHINFER not in releases or gpu not in dict(facts.flashinfer.arch_lists):
        return
    release, env = flashinfer_release(facts.flashinfer, releases[_FLASHINFER]), dict(image.on(base).runtime.env)
    wrong = [
        f"`{one.name}` has to be `{one.value}` and is {f'`{env[one.name]}`' if one.name in env else 'not set'}: "
        f"{one.because} ({one.source})"
        for one in flashinfer_variables(facts.flashinfer, release, gpu=gpu, at_run_time=True)
        if env.get(one.name) != one.value
    ]
    if wrong:
        raise ConfigError(
            f"{image.path}: runtime.env: flashinfer {release.version}: {wrong[0]} (base `{base}`)", why=wrong[1:]
        )


def unverified(found: Iterable[Refusal]) -> tuple[str, ...]:
    """Sentences about what nobody has seen work, for people."""
    return tuple(f"{refusal.what} ({refusal.source})" for refusal in found if not refusal.certain)


def _locked(image: Image, pins: Pins, wheels: Mapping[str, WheelsLock]) -> dict[str, str]:
    installed = installed_pin(image, pins)
    return _versions(installed, wheels) if installed else {}


def _compiled(image: Image, pins: Pins) -> dict[str, str]:
    pin = pins[image.compile.pin]
    return {pin.project: pin.version} if isinstance(pin, SdistPin) else {}


def _versions(pin: WheelsPin | RequirementsPin, wheels: Mapping[str, WheelsLock]) -> dict[str, str]:
    """Of what the pin stands for; without its lock, of what it names itself."""
    if pin.name in wheels:
        return {wheel.project: wheel.version for wheel in wheels[pin.name].wheels}
    return dict(package.split("==") for package in pin.packages)


def _check_build_requirements(
    image: Image,
    target: Target,
    compiled: Mapping[str, str],
    *,
    pins: Pins,
    facts: Facts,
    wheels: Mapping[str, WheelsLock],
) -> Iterator[Refusal]:
    """What a release is built with has to be among the wheels of its compile: no pip brings it there."""
    there: dict[str, str] = {}  # project -> version; "" where only a lock knows that
    tools = "a pin of kind wheels"
    for use in image.compile.wheels_for(target.name):
        pin = pins[use.pin]
        assert isinstance(pin, WheelsPin | RequirementsPin)  # the reader has made sure
        versions = _versions(pin, wheels)
        there |= {project: versions.get(project, "") for project in (*use.builder, *use.target)}
        if isinstance(pin, WheelsPin) and "setuptools" in versions:
            tools = f"`{pin.name}`"
    for project, version in compiled.items():
        release: VllmRelease | FlashinferRelease
        if project == _VLLM:
            release = vllm_release(facts.vllm, version)
        elif project == _FLASHINFER:
            release = flashinfer_release(facts.flashinfer, version)
        else:
            continue
        for wanted in map(Requirement, release.build_requirements.value):
            has = there.get(wanted.name)
            if has is None or (has and not wanted.specifier.contains(has, prereleases=True)):
                yield Refusal(
                    what=f"{project} {version} is built with {wanted}, and "
                    + (f"this build has {has}" if has else "none takes part in this build"),
                    source=release.build_requirements.source,
                    instead=f"a `{wanted.name}` that fits",
                    todo=f"add `{wanted.name}` that fits to `packages` of {tools} in pins.yaml, and below that pin to "
                    f"`compile.wheels` of {image.path}",
                )


def _cuda_of(pins: Pins, name: str) -> str:
    pin = pins[name]
    return dict(pin.provides).get("cuda", "") if isinstance(pin, ImagePin) else ""
