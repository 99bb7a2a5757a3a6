"""Whether what the pins name goes together, for one image: the rules of compat on pins and, if made, locks. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from spark_images.compat.check import Refusal, check
from spark_images.compat.facts import Facts
from spark_images.errors import CompatError
from spark_images.images import Image
from spark_images.ingredients import installed_pin
from spark_images.locks import DebsLock, WheelsLock
from spark_images.pins import ImagePin, Pins, SdistPin, WheelsPin
from spark_images.targets import Target

NGC = "nvidia/pytorch"  # whose tag says the month: 26.01-py3
_COMPILER = "g++"  # of Debian; its version is that of GCC, after an epoch


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

    Releases that nobody has read are let pass: their build tells.
    """
    image = image.on(base)
    installed = installed_pin(image, pins)
    if installed is None:
        locked = {}
    elif installed.name in wheels:
        locked = {wheel.project: wheel.version for wheel in wheels[installed.name].wheels}
    else:
        locked = dict(package.split("==") for package in installed.packages)
    compiled = {
        pin.project: pin.version for pin in pins.pins if isinstance(pin, SdistPin) and pin.name == image.compile.pin
    }
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
    return check(
        facts,
        image=image.name,
        vllm=versions.get("vllm", ""),
        flashinfer=versions.get("flashinfer-python", ""),
        torch=locked.get("torch", ""),
        cuda=_cuda_of(pins, toolkit.image) if toolkit else cuda.version if isinstance(cuda, WheelsPin) else "",
        python=installed.python if installed else "",
        gcc=gcc.partition(":")[2].partition("-")[0],
        target=target,
        base=base.partition("-")[0],
        ngc_tag=ground.ref.rpartition(":")[2] if ground and NGC in ground.ref else "",
        allow_unknown=True,
    )


def require_together(found: tuple[Refusal, ...], *, title: str) -> None:
    """Raise CompatError where anything is certain to go wrong."""
    certain = [refusal for refusal in found if refusal.certain]
    if certain:
        raise CompatError(
            f"{title}: what the pins name does not go together",
            why=[f"{refusal.what} ({refusal.source})" for refusal in certain],
            hint="; ".join(dict.fromkeys(f"choose {refusal.instead}" for refusal in certain if refusal.instead)),
        )


def _cuda_of(pins: Pins, name: str) -> str:
    pin = pins[name]
    return dict(pin.provides).get("cuda", "") if isinstance(pin, ImagePin) else ""
