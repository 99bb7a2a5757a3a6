"""What is asked for, and the parts of a search that it makes: ends, subject, journal and stage."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from spark_images.bisect.asking import (
    Limits,
)
from spark_images.bisect.candidate import Candidate, digest_of_project
from spark_images.bisect.check import Check
from spark_images.bisect.ends import End, PinEnd, StateEnd, read_end
from spark_images.bisect.image_stage import ImageStage
from spark_images.bisect.journal import Journal
from spark_images.bisect.matrix import read_verdicts
from spark_images.bisect.stages import RegistryStage, Stage, TreeStage
from spark_images.bisect.subject import (
    ChangeSet,
    Line,
    change_set,
    line_of_one,
    line_of_pin,
    line_of_revisions,
    line_of_tags,
)
from spark_images.cache import Cache
from spark_images.errors import UsageError
from spark_images.images import Image
from spark_images.own_verbs import ImageWords
from spark_images.pin_rules import refusals, required_together
from spark_images.pins import GitPin, SdistPin
from spark_images.project import Project
from spark_images.targets import Target
from spark_images.upstream import Upstream


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What the command line asks for. command: its words, without those that only say how or how long to search."""

    words: ImageWords
    check: Check
    good: str
    bad: str
    stage: str = "image"  # "source", "wheel", "image"
    find_fix: bool = False
    repeat: int = 1
    exhaustive: bool = False
    commits: bool = False
    tags: str = ""
    registry: str = ""
    limits: Limits = field(default_factory=Limits)
    jobs: int = 0
    matrix: Path | None = None
    svg: Path | None = None
    report: Path | None = None
    verdicts: Path | None = None
    single: bool = False  # `good` and `bad` are one REF, which is tried by itself
    fresh: bool = False
    as_json: bool = False
    command: tuple[str, ...] = ()


@dataclass
class Parts:
    """What a search consists of, each part made when it is first needed."""

    project: Project
    cache: Cache
    wanted: Wanted

    @cached_property
    def upstream(self) -> Upstream:
        return Upstream.from_env(self.cache)

    @cached_property
    def ends(self) -> tuple[End, End]:
        """good and bad, as read."""
        good, bad = (
            read_end(text, project=self.project, cache=self.cache) for text in (self.wanted.good, self.wanted.bad)
        )
        if isinstance(good, PinEnd) != isinstance(bad, PinEnd):
            raise UsageError(
                f"`{self.wanted.good}` and `{self.wanted.bad}` are different things",
                hint="name two versions of one pin, or two states of all pins (revisions, images, records, `.`)",
            )
        return good, bad

    @cached_property
    def subject(self) -> Line | ChangeSet:
        """What is searched first."""
        good, bad = self.ends
        wanted = self.wanted
        if wanted.single:
            return self._single(good)
        if isinstance(good, PinEnd) and isinstance(bad, PinEnd):
            return line_of_pin(
                good,
                bad,
                pins=self.project.pins,
                upstream=self.upstream,
                find_fix=wanted.find_fix,
                commits=wanted.commits,
                now=datetime.now(UTC),
            )
        assert isinstance(good, StateEnd)
        assert isinstance(bad, StateEnd)
        if wanted.tags:
            return line_of_tags(good, bad, wanted.tags)
        if good.commit and bad.commit and not wanted.find_fix:
            if good.commit == bad.commit:
                raise UsageError("good and bad are the same revision")
            return line_of_revisions(good, bad, project=self.project, cache=self.cache)
        if wanted.find_fix:
            raise UsageError("`--find-fix` needs a line of versions: two of one pin", hint="exchange --good and --bad")
        return self.change_set(good, bad)

    def _single(self, end: End) -> Line:
        """What one REF names, by itself."""
        if isinstance(end, PinEnd):
            return line_of_one(end, pins=self.project.pins, upstream=self.upstream, now=datetime.now(UTC))
        moves = [end.move(pin) for pin in self.project.pins.pins if pin.name in end.pins]
        return Line(what=end.name, candidates=(Candidate(key=end.name, label=end.name, moves=tuple(moves)),))

    def change_set(self, good: StateEnd, bad: StateEnd) -> ChangeSet:
        """What differs between two states, with the pins that one release moves together."""
        together = required_together(good.pins, bad.pins, project=self.project)
        return change_set(good, bad, pins=self.project.pins, requires=together)

    @cached_property
    def journal(self) -> Journal:
        """What is known already; the question is all that the answers depend on."""
        wanted = self.wanted
        question = {
            "good": _resolved(self.ends[0]),
            "bad": _resolved(self.ends[1]),
            "check": str(wanted.check),
            "stage": wanted.stage,
            "repeat": wanted.repeat,
            "find_fix": wanted.find_fix,
            "image": [*wanted.words.variant()],
            "tags": wanted.tags,
            "project": digest_of_project(self.project.root),
        }
        journal = Journal.open(self.cache.records, wanted.words.image, question, fresh=wanted.fresh)
        for answer in read_verdicts(wanted.verdicts, journal.folder.name) if wanted.verdicts else ():
            if journal.get(answer.key) is None:
                journal.add(answer)
        return journal

    @cached_property
    def stage(self) -> Stage:
        """Where candidates are tried. UsageError where the check or the subject does not go with it."""
        wanted, subject = self.wanted, self.subject
        self.project.image(wanted.words.image)  # its name is that of the journal, also where it is not built
        if wanted.tags or wanted.stage != "image":
            where = "an image that a registry holds" if wanted.tags else f"the {wanted.stage} stage"
            if not wanted.check.command:
                raise UsageError(
                    f"`{wanted.check}` needs an image of this machine, and there is none in {where}",
                    hint="name a command: it finds what it checks in SPARK_IMAGE"
                    if wanted.tags
                    else "name a command: it runs in the unpacked tree",
                )
        if wanted.tags:
            return RegistryStage(check=wanted.check, journal=self.journal, upstream=self.upstream, env=self.environment)
        if wanted.stage == "image":
            return self.image_stage(self.journal)
        pin = self.project.pins[subject.pin] if isinstance(subject, Line) and subject.pin else None
        if not isinstance(pin, SdistPin | GitPin):
            raise UsageError(f"`--stage {wanted.stage}` is for releases of one pin of kind sdist or git")
        platform = self._variant()[1].platform if wanted.stage == "wheel" else ""
        if platform and any(not _has_project(one) for one in subject.candidates):  # type: ignore[union-attr]
            raise UsageError(f"commits of `{pin.name}` have no wheels")
        return TreeStage(
            pin=pin,
            check=wanted.check,
            upstream=self.upstream,
            journal=self.journal,
            env=self.environment,
            platform=platform,
        )

    def image_stage(self, journal: Journal) -> ImageStage:
        """Where candidates become images. UsageError for an image or variant that is not here."""
        wanted = self.wanted
        image, target, base = self._variant()
        return ImageStage(
            root=self.project.root,
            words=wanted.words,
            check=wanted.check,
            upstream=self.upstream,
            journal=journal,
            env=self.environment,
            registry=wanted.registry,
            refusals=lambda project: refusals(project, image=image.name, target=target, base=base),
        )

    def _variant(self) -> tuple[Image, Target, str]:
        words = self.wanted.words
        image = self.project.image(words.image)
        return (image, *self.project.variant(image, words.target, words.base, words.origin))

    @property
    def environment(self) -> Mapping[str, str]:
        """What a user's check is run with, besides what names the candidate."""
        return dict(os.environ)


def _resolved(end: End) -> object:
    match end:
        case PinEnd():
            return [end.pin, end.project, end.version]
        case StateEnd():
            content = json.dumps([dict(end.pins), dict(end.locks)], sort_keys=True)
            return [end.commit or end.name, hashlib.sha256(content.encode()).hexdigest()]


def _has_project(candidate: Candidate) -> bool:
    return bool(getattr(getattr(candidate.moves[0], "release", None), "project", ""))
