"""What images/compat.yaml says against a state of the pins by their versions alone, before locks are made of it.

together.py says it again, and more, once there are locks: planning asks it.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_images.compat.check import check
from spark_images.errors import UsageError
from spark_images.pins import ImagePin, Pins, SdistPin, WheelsPin
from spark_images.project import Project
from spark_images.targets import Target

_PROJECTS = {"vllm": "vllm", "flashinfer-python": "flashinfer"}  # project on the index -> argument of the check


def refusals(project: Project, *, image: str, target: Target, base: str) -> tuple[str, ...]:
    """Sentences about what certainly does not go together; empty where there is no compat.yaml."""
    facts = project.facts
    if facts is None or not any(name in _PROJECTS for name in _taking_part(project, image)):
        return ()
    versions = _versions(project.pins)
    tags = [
        pin.ref.rpartition(":")[2] for pin in project.pins.pins if isinstance(pin, ImagePin) and "pytorch" in pin.ref
    ]
    cuda = next((pin.version for pin in project.pins.pins if isinstance(pin, WheelsPin) and pin.name == "cuda"), "")
    found = check(
        facts,
        image=image,
        vllm=versions.get("vllm", ""),
        flashinfer=versions.get("flashinfer", ""),
        cuda=cuda if base != "ngc" else "",
        target=target,
        base=base.removesuffix("-wheel"),
        ngc_tag=tags[0] if tags and base == "ngc" else "",
        allow_unknown=True,
    )
    return tuple(refusal.what for refusal in found if refusal.certain)


def refusals_of_all(project: Project) -> tuple[str, ...]:
    """As refusals, for every image in its first variant."""
    found: list[str] = []
    for image in project.images:
        target, base = project.variant(image, None, None)
        found += refusals(project, image=image.name, target=target, base=base)
    return tuple(dict.fromkeys(found))


def required_together(
    good: Mapping[str, str], bad: Mapping[str, str], *, project: Project
) -> dict[str, frozenset[str]]:
    """Pins that one release moves together, each requiring the other: vLLM asks for one FlashInfer exactly.

    good, bad: pin -> describe_pin's words at either end.
    """
    facts, pins = project.facts, project.pins
    names = {
        _PROJECTS[pin.project]: pin.name for pin in pins.pins if isinstance(pin, SdistPin) and pin.project in _PROJECTS
    }
    if facts is None or len(names) < 2 or not all(name in good and name in bad for name in names.values()):
        return {}
    vllm, flashinfer = (
        {"good": good[names[of]].split()[0], "bad": bad[names[of]].split()[0]} for of in ("vllm", "flashinfer")
    )
    if vllm["good"] == vllm["bad"] or flashinfer["good"] == flashinfer["bad"]:
        return {}

    def apart(one: str, other: str) -> bool:
        try:
            return bool(check(facts, vllm=vllm[one], flashinfer=flashinfer[other], allow_unknown=True))
        except UsageError:  # a release that nobody has read: its build tells
            return False

    requires = {}
    if apart("bad", "good"):
        requires[names["vllm"]] = frozenset({names["flashinfer"]})
    if apart("good", "bad"):
        requires[names["flashinfer"]] = frozenset({names["vllm"]})
    return requires


def _versions(pins: Pins) -> dict[str, str]:
    sdists = (pin for pin in pins.pins if isinstance(pin, SdistPin))
    return {_PROJECTS[pin.project]: pin.version for pin in sdists if pin.project in _PROJECTS}


def _taking_part(project: Project, image: str) -> tuple[str, ...]:
    """Projects that the image is made of, by its source pins and by what its requirements are for."""
    spec = project.image(image).compile
    pins = [pin for pin in project.pins.pins if pin.name in (spec.pin, *spec.sources)]
    named = [pin.project for pin in pins if isinstance(pin, SdistPin)]
    resolved = [package.partition("==")[0] for pin in pins for package in getattr(pin, "packages", ())]
    return (*named, *resolved)
