"""images/<name>/requirements.yaml: where what an image gets departs from what its releases ask for, and why."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from spark_images import forms
from spark_images.document import Section, reading


@dataclass(frozen=True, kw_only=True)
class Departure:
    """What is treated otherwise than the releases ask for.

    name: a project; of a refusal a pattern, where `*` stands for anything; of what is left out of wheels a file.
    """

    name: str
    version: str = ""  # of an addition, a constraint, an override or an sdist: the only one that is taken
    requires: tuple[str, ...] = ()  # of an sdist: what its wheel asks for at run time, as its METADATA says it
    because: str


@dataclass(frozen=True, kw_only=True)
class Layer:
    """What is installed into one layer of the image. projects: names, and beginnings of names that end in `*`."""

    name: str
    projects: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Requirements:
    """What one file says. layers: lowest first."""

    path: str  # as it was given, for messages
    additions: tuple[Departure, ...] = ()  # what no release asks for
    constraints: tuple[Departure, ...] = ()  # what others ask for of it still counts
    overrides: tuple[Departure, ...] = ()  # what others ask for of it does not count
    sdists: tuple[Departure, ...] = ()  # of what there is no wheel: a build step makes one of its source
    exclusions: tuple[Departure, ...] = ()
    refusals: tuple[Departure, ...] = ()
    without: tuple[Departure, ...] = ()  # files, below the folder that Python imports from
    layers: tuple[Layer, ...]

    def layer_of(self, project: str) -> str:
        """The layer that the project belongs to: the one that names it, or else the longest beginning of its name."""
        fitting = [
            (pattern == project, len(pattern), layer.name)
            for layer in self.layers
            for pattern in layer.projects
            if fnmatchcase(project, pattern)
        ]
        return max(fitting)[2]  # the reader has made sure that one layer takes `*`

    def refusal_of(self, project: str) -> Departure | None:
        """Why the project has no place in the image; None where it has."""
        return next((refusal for refusal in self.refusals if fnmatchcase(project, refusal.name)), None)


def read_requirements(path: Path) -> Requirements:
    """What the file says. Raises ConfigError with every mistake of it."""
    with reading(path) as top:
        top.value("schema", forms.schema(1))
        layers = top.section("layers")
        found = Requirements(
            path=str(path),
            additions=_versions(top.section("additions", optional=True)),
            constraints=_versions(top.section("constraints", optional=True)),
            overrides=_versions(top.section("overrides", optional=True)),
            sdists=_versions(top.section("sdists", optional=True), sdists=True),
            exclusions=_departures(top.section("exclusions", optional=True), forms.PROJECT),
            refusals=_departures(top.section("refusals", optional=True), forms.PROJECT_PATTERN),
            without=_departures(top.section("without", optional=True), forms.RELATIVE_PATH),
            layers=tuple(
                Layer(name=name, projects=layers.values(name, forms.PROJECT_START)) for name in layers.names(forms.NAME)
            ),
        )
        patterns = [pattern for layer in found.layers for pattern in layer.projects]
        for pattern in sorted({pattern for pattern in patterns if patterns.count(pattern) > 1}):
            top.refuse("layers", f"`{pattern}` stands in two of them")
        if layers.given and "*" not in patterns:
            top.refuse("layers", "none of them takes `*`, whatever no layer names")
        return found


def _versions(section: Section, *, sdists: bool = False) -> tuple[Departure, ...]:
    return tuple(
        Departure(
            name=name,
            version=(entry := section.section(name)).value("version", forms.RELEASE),
            requires=entry.values("requires", forms.REQUIREMENT, optional=True) if sdists else (),
            because=entry.value("because", forms.TEXT),
        )
        for name in section.names(forms.PROJECT)
    )


def _departures(section: Section, form: forms.Form[str]) -> tuple[Departure, ...]:
    return tuple(Departure(name=name, because=section.value(name, forms.TEXT)) for name in section.names(form))
