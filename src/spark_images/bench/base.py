"""What a bench gets and what it gives: promises, how a number stands against one, and the rows that are printed."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING

from spark_images.cache import Cache
from spark_images.images import Image
from spark_images.plan import Plan
from spark_images.project import Project
from spark_images.targets import Target

if TYPE_CHECKING:
    from spark_images.engine.base import Engine

IMAGE = "llamacpp"  # what the promises are about
_COLUMNS = "{:<13}{:<21}{:<28}{}"


class Verdict(Enum):
    """How a measured number stands against what was promised."""

    MET = "met"
    MISSED = "MISSED"
    FAILED = "FAILED"  # what was to be measured ended in an error
    UNKNOWN = "not measured"


class NotMeasured(Exception):
    """This bench can say nothing here; the text says why, and what to do about it."""


@dataclass(frozen=True, kw_only=True)
class Promise:
    """A bound for a number."""

    bound: float
    unit: str
    at_most: bool  # False: at least

    def __str__(self) -> str:
        return f"{'below' if self.at_most else 'at least'} {self.bound:g} {self.unit}"

    def judge(self, value: float) -> Verdict:
        """MET or MISSED."""
        return Verdict.MET if (value < self.bound if self.at_most else value >= self.bound) else Verdict.MISSED


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a bench found. facts: what the number is made of, a line each."""

    value: float
    facts: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is measured, and where. engine: as the user named it."""

    project: Project
    cache: Cache
    engine: str | None = None

    @cached_property
    def image(self) -> Image:
        return self.project.image(IMAGE)

    @cached_property
    def variant(self) -> tuple[Target, str]:
        return self.project.variant(self.image, None, None)

    @cached_property
    def plan(self) -> Plan:
        """The plan for this machine as builder."""
        return self.project.plan(self.image, *self.variant)

    def require_built(self) -> None:
        """NotMeasured where the image of this plan is not in the cache."""
        if not (self.cache.images / self.plan.plan_id).exists():
            raise NotMeasured(f"`{IMAGE}` is not built at these pins; build it with `./noxw -s build-{IMAGE}`")

    def choose_engine(self) -> Engine:
        """The engine that a build would take."""
        from spark_images.engine import choose_engine

        buildkit_image = self.project.buildkit_image(os.environ)
        return choose_engine(self.engine, cache=self.cache, buildkit_image=buildkit_image, env=os.environ)


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A name, a promise, and what measures; `measure` raises NotMeasured or what the measured work raises."""

    name: str
    promise: Promise
    measure: Callable[[Subject], Measured]


@dataclass(frozen=True, kw_only=True)
class Row:
    """The outcome of one bench. value: None where nothing was measured."""

    bench: Bench
    verdict: Verdict
    value: float | None = None
    facts: tuple[str, ...] = ()

    def lines(self) -> tuple[str, ...]:
        """Name, measured, promised and verdict in columns, then the facts."""
        measured = ""
        if self.value is not None:
            measured = f"{self.value:.{2 if self.value < 10 else 0}f} {self.bench.promise.unit}"
        row = _COLUMNS.format(self.bench.name, measured, str(self.bench.promise), self.verdict.value)
        return (row, *(f"           {fact}" for fact in self.facts))


HEADING = _COLUMNS.format("bench", "measured", "promised", "verdict")
