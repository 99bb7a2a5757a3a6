"""What smoke checks say, and what follows from it: red, green, or skipped and why. Pure.

Each check ends with one line of JSON, which scripts/smoke/check.py describes.
"""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spark_images.verdict import Colour


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """One check. why: one word for it where it is not green (`wrong`, `hangs`, `no-gpu`, `other-gpu`, `memory`,
    `missing` …); sentence: the same for people."""

    check: str
    colour: Colour
    why: str = ""
    sentence: str = ""
    seconds: float = 0.0
    facts: Mapping[str, Any] = field(default_factory=dict)
    stages: Sequence[Mapping[str, Any]] = ()

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        said = {"check": self.check, "verdict": self.colour.value, "why": self.why, "sentence": self.sentence}
        return {**said, "seconds": self.seconds, "facts": dict(self.facts), "stages": list(self.stages)}


@dataclass(frozen=True, kw_only=True)
class SmokeResults:
    """What came out of a run. sentence: what decided its colour."""

    colour: Colour
    sentence: str
    checks: tuple[CheckResult, ...]

    def document(self) -> dict[str, object]:
        """As the record and `--json` have it."""
        checks = [one.document() for one in self.checks]
        return {"verdict": self.colour.value, "sentence": self.sentence, "checks": checks}


def read_result(check: str, lines: Sequence[str], *, status: int, hangs_s: float | None = None) -> CheckResult:
    """The result of a check from what it printed. hangs_s: it was ended after so many seconds.

    A check that ended without a result, or with a status that says otherwise, is red, and the stage that it was in is
    named.
    """
    stage = next((line.removeprefix("stage: ") for line in reversed(lines) if line.startswith("stage: ")), "its start")
    if hangs_s is not None:
        why, sentence = "hangs", f"`{stage}` did not end within {hangs_s:g} s"
        return CheckResult(check=check, colour=Colour.RED, why=why, sentence=sentence, seconds=hangs_s)
    for line in reversed(lines):
        if line.startswith("{"):
            try:
                result = json.loads(line)
                known = {name: result[name] for name in ("why", "sentence", "seconds", "facts", "stages")}
                found = CheckResult(check=check, colour=Colour(result["verdict"]), **known)
                if result["check"] == check and (status == 0) is (found.colour is not Colour.RED):
                    return found
            except (ValueError, KeyError, TypeError):  # a line of a library that looks like it
                continue
    said = [line.strip() for line in lines if line.strip() and not line.startswith("stage: ")]
    last = said[-1][:300] if said else "it said nothing"
    sentence = f"ended with status {status} in `{stage}` without a matching result: {last}"
    return CheckResult(check=check, colour=Colour.RED, why="broken", sentence=sentence)


def overall(results: Sequence[CheckResult], *, of_image: bool) -> tuple[Colour, str]:
    """What all checks come to, and a sentence on what decided.

    of_image: what image.yaml names must be there, so a check that misses a program or package is red. What this GPU
    has no instructions for does not count; a check that was skipped for any other reason leaves the whole undecided.
    """
    red = [one for one in results if one.colour is Colour.RED or (of_image and one.why == "missing")]
    if red:
        return Colour.RED, "; ".join(f"{one.check}: {one.sentence}" for one in red)
    passed_over = ("other-gpu",) if of_image else ("other-gpu", "missing")
    undecided = [one for one in results if one.colour is Colour.SKIPPED and one.why not in passed_over]
    if undecided:
        return Colour.SKIPPED, undecided[0].sentence
    green = [one.check for one in results if one.colour is Colour.GREEN and one.check != "device"]
    if not green:
        return Colour.SKIPPED, next((one.sentence for one in results if one.sentence), "no check was named")
    return Colour.GREEN, f"{len(green)} checks"


def junit(results: Sequence[CheckResult], *, suite: str) -> str:
    """The results as JUnit XML, for CI."""
    bad = sum(one.colour is Colour.RED for one in results)
    skipped = sum(one.colour is Colour.SKIPPED for one in results)
    counts = {"tests": str(len(results)), "failures": str(bad), "skipped": str(skipped)}
    root = ElementTree.Element("testsuite", {"name": suite, **counts})
    for one in results:
        case = {"classname": suite, "name": one.check, "time": f"{one.seconds:g}"}
        element = ElementTree.SubElement(root, "testcase", case)
        if one.colour is not Colour.GREEN:
            tag = "failure" if one.colour is Colour.RED else "skipped"
            ElementTree.SubElement(element, tag, {"message": f"{one.why}: {one.sentence}"})
        ElementTree.SubElement(element, "system-out").text = json.dumps(one.facts, indent=1)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"
