"""What was found out about an image: gates that are green, red or skipped, and what that allows. Pure.

A verdict is stored beside the build's record and, once the image is in a registry, as an attestation on the image.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

RECORD_KIND = "verdict"  # of append_to_record
PREDICATE_TYPE = "io.spark-images:verdict:v1"  # of the in-toto statement on an image


class Gate(Enum):
    """What an image passes, in this order."""

    AUDIT = "audit"  # what must hold in its files; needs no GPU
    TEST = "test"  # the running container
    SMOKE = "smoke"  # on the target's GPU


class Colour(Enum):
    """How a gate ended."""

    GREEN = "green"
    RED = "red"
    SKIPPED = "skipped"  # not run, and said so: there was no GPU


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What one gate found of one image, once."""

    gate: Gate
    colour: Colour
    digest: str  # of the image's manifest
    when: datetime  # UTC
    record: str = ""  # id of the record that holds the evidence
    evidence: str = ""  # one line: what was counted, or why it was skipped

    def document(self) -> dict[str, str]:
        """As it is stored."""
        return {
            "gate": self.gate.value,
            "colour": self.colour.value,
            "digest": self.digest,
            "when": self.when.isoformat(),  # two verdicts within a second have an order, too
            "record": self.record,
            "evidence": self.evidence,
        }


def read_verdict(data: Mapping[str, Any]) -> Verdict | None:
    """The verdict in a stored document; None for what is none: another program's, or a later version's."""
    try:
        return Verdict(
            gate=Gate(data["gate"]),
            colour=Colour(data["colour"]),
            digest=str(data["digest"]),
            when=datetime.fromisoformat(data["when"]),
            record=str(data.get("record", "")),
            evidence=str(data.get("evidence", "")),
        )
    except (KeyError, TypeError, ValueError):
        return None


def latest_verdicts(verdicts: Iterable[Verdict], digest: str) -> dict[Gate, Verdict]:
    """The last word of each gate on the image of this digest, in the gates' order; a gate without one is absent.

    Who skipped a gate has found out nothing: a red one stays red until it is passed, and a green one green.
    """
    last: dict[Gate, Verdict] = {}
    for verdict in sorted(verdicts, key=lambda verdict: (verdict.colour is not Colour.SKIPPED, verdict.when)):
        if verdict.digest == digest:
            last[verdict.gate] = verdict
    return {gate: last[gate] for gate in Gate if gate in last}


def all_green(verdicts: Mapping[Gate, Verdict]) -> bool:
    """Whether `latest` may move to the image."""
    return all(gate in verdicts and verdicts[gate].colour is Colour.GREEN for gate in Gate)


def obstacles(verdicts: Mapping[Gate, Verdict]) -> tuple[str, ...]:
    """Why no readable tag may move to the image, a sentence each; none means that the target's tags may.

    A skipped smoke gate stands in the way of `latest` alone; a skipped audit or test can be made up for anywhere.
    """
    found = []
    for gate in Gate:
        verdict = verdicts.get(gate)
        if verdict is None:
            found.append(f"{gate.value}: did not run")
        elif verdict.colour is Colour.RED or (verdict.colour is Colour.SKIPPED and gate is not Gate.SMOKE):
            found.append(f"{gate.value}: {verdict.colour.value}{f', {verdict.evidence}' if verdict.evidence else ''}")
    return tuple(found)
