"""What images/compat.yaml says of pins that move, before locks are made of them: planning asks again with these."""

from __future__ import annotations

from collections.abc import Mapping

from spark_images.compat.check import check
from spark_images.errors import ConfigError, UsageError
from spark_images.pins import SdistPin
from spark_images.project import Project
from spark_images.targets import Target

_PROJECTS = {"vllm": "vllm", "flashinfer-python": "flashinfer"}  # project on the index -> argument of the check


def refusals(project: Project, *, image: str, target: Target, base: str) -> tuple[str, ...]:
    """Sentences about what `render` and plans would refuse of these pins; empty where there is no compat.yaml."""
    one = project.image(image)
    try:
        found = tuple(refusal.what for refusal in project.refusals(one, target, base) if refusal.certain)
        if not found:
            project.require_fitting(one, target, base)
    except (UsageError, ConfigError) as err:  # a release that nobody has read, a variable that this one lacks
        return (err.what,)
    return found


def refusals_of_all(project: Project) -> tuple[str, ...]:
    """As refusals, for every variant of every image: `render` refuses what one of them cannot be made of."""
    found: list[str] = []
    for image in project.images:
        for target, base in project.variants(image):
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
            return bool(check(facts, vllm=vllm[one], flashinfer=flashinfer[other]))
        except UsageError:  # a release that nobody has read is tried by no search
            return False

    requires = {}
    if apart("bad", "good"):
        requires[names["vllm"]] = frozenset({names["flashinfer"]})
    if apart("good", "bad"):
        requires[names["flashinfer"]] = frozenset({names["vllm"]})
    return requires
