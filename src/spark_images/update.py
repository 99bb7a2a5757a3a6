"""Newer versions of the pins: what there is, what speaks against it, and moving forward one proof at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum

from packaging.version import Version

from spark_images.errors import MissingError, RegistryError, RouteError, SparkImagesError
from spark_images.ingredients import describe_pin
from spark_images.pins import ArchivePin, DebsPin, GitPin, ImagePin, Pin, RequirementsPin, SdistPin, WheelsPin
from spark_images.pins_edit import Path as KeyPath
from spark_images.project import Project
from spark_images.repin import ToRelease, ToValues, edit_project, stale_locks
from spark_images.upstream import Release, Upstream, is_prerelease
from spark_images.workfolder import work_folder

Move = ToRelease | ToValues
NO_DIGEST = f"sha256:{'0' * 64}"  # of an image pin that is new
_NEVER = datetime(1970, 1, 1, tzinfo=UTC)  # for upstreams whose releases do not depend on the day


class State(Enum):
    """Where a pin stands against its upstream."""

    NEWEST = "newest"
    PROPOSED = "proposed"
    HELD = "held"
    COOLING = "cooling"  # there is a newer one, not yet old enough
    REFUSED = "refused"  # there is a newer one, and compat rules speak against it
    UNKNOWN = "unknown"  # nobody answers, or nobody can be asked
    ACCEPTED = "accepted"
    FAILED = "failed"  # it was built or tested, and that failed


@dataclass(frozen=True, kw_only=True)
class Row:
    """One pin, or one package of a pin whose packages move by themselves."""

    pin: str
    line: int  # in pins.yaml
    package: str = ""
    now: str
    newer: str = ""
    state: State
    why: str = ""
    span: int = 0  # releases from the present one to the newer one
    move: Move | None = None

    @property
    def title(self) -> str:
        """`vllm: 0.19.1 -> 0.20.2`, the subject of a commit."""
        name = f"{self.pin} ({self.package})" if self.package else self.pin
        return f"{name}: {self.now} -> {self.newer}"


@dataclass(frozen=True, kw_only=True)
class Rules:
    """cool_down_days: how old a release has to be. refusals: what speaks against a project at moved pins."""

    now: datetime
    cool_down_days: int = 7
    refusals: Callable[[Project], tuple[str, ...]] = lambda project: ()


def find_updates(project: Project, upstream: Upstream, rules: Rules, *, names: Sequence[str] = ()) -> tuple[Row, ...]:
    """A row per pin, in the order of pins.yaml; names: of these pins only. What cannot be asked is said in its row."""
    rows: list[Row] = []
    for pin in project.pins.chosen(names):
        try:
            rows += _rows(pin, project, upstream, rules)
        except (RouteError, RegistryError) as err:
            rows.append(_row(pin, now=_now(pin), state=State.UNKNOWN, why=err.what))
    return tuple(rows)


def completions(project: Project, upstream: Upstream, *, names: Sequence[str] = ()) -> tuple[Row, ...]:
    """A row per pin whose version somebody else has moved: what belongs to that version is brought after it.

    Raises RouteError where an upstream does not have the version or does not answer.
    """
    rows = []
    stale = stale_locks(project, {pin.name for pin in project.pins.pins})
    for pin in project.pins.chosen(names):
        move: Move | None = ToValues(pin=pin.name, values=()) if pin.name in stale else None
        if isinstance(pin, SdistPin | GitPin):
            release = next((one for one in upstream.releases(pin, now=_NEVER) if one.name == _now(pin)), None)
            if release is not None and _other_content(pin, release, upstream):
                move = ToRelease(pin=pin.name, release=release)
        elif isinstance(pin, ImagePin) and pin.digest == NO_DIGEST:  # never of a tag that was moved since
            move = ToRelease(pin=pin.name, release=Release(name=_now(pin)))
        if move is not None:
            rows.append(_row(pin, now=_now(pin), newer=_now(pin), state=State.PROPOSED, move=move))
    return tuple(rows)


def _other_content(pin: SdistPin | GitPin, release: Release, upstream: Upstream) -> bool:
    if isinstance(pin, GitPin):
        return release.commit != pin.commit
    return upstream.sdist_digest(release) != pin.sha256


def _rows(pin: Pin, project: Project, upstream: Upstream, rules: Rules) -> Iterable[Row]:
    if pin.hold is not None and rules.now.date() < pin.hold.until:
        yield _row(pin, now=_now(pin), state=State.HELD, why=f"until {pin.hold.until}: {pin.hold.because}")
        return
    if isinstance(pin, WheelsPin):
        yield from _rows_of_wheels(pin, project, upstream, rules)
        return
    releases = upstream.releases(pin, now=rules.now)
    if not releases:
        why = {ArchivePin: "nobody can be asked for newer files", GitPin: "it follows no refs: state `follow`"}
        yield _row(pin, now=_now(pin), state=State.UNKNOWN, why=why.get(type(pin), "upstream has nothing like it"))
        return
    yield _judge(pin, "", _now(pin), releases, project, upstream, rules)


def _rows_of_wheels(pin: WheelsPin, project: Project, upstream: Upstream, rules: Rules) -> Iterable[Row]:
    """A pin that carries the version of one of its packages holds packages that move by themselves.

    Any other one names a series, as `13.0`, whose packages belong together and move together, within it.
    """
    versions = {package.partition("==")[0]: package.partition("==")[2] for package in pin.packages}
    if pin.version in versions.values():
        for package, version in versions.items():
            releases = upstream.releases(pin, project=package, now=rules.now)
            shown = package if len(versions) > 1 else ""
            yield _judge(pin, shown, version, releases, project, upstream, rules)
        return
    values: dict[KeyPath, str | None] = {}
    moved, cooling = [], []
    for place, (package, version) in enumerate(versions.items()):
        series = [one for one in upstream.releases(pin, project=package, now=rules.now) if _within(one, pin.version)]
        row = _judge(pin, package, version, series, project, upstream, replace(rules, refusals=lambda project: ()))
        if row.state is State.PROPOSED:
            values[("packages", place)] = f"{package}=={row.newer}"
            moved.append(f"{package} {row.newer}")
        elif row.state is State.COOLING:
            cooling.append(row.why)
        elif row.state is State.UNKNOWN:
            yield row
            return
    if not values:
        state = State.COOLING if cooling else State.NEWEST
        yield _row(pin, now=pin.version, state=state, why="; ".join(cooling) or f"of series {pin.version}")
        return
    row = _row(
        pin, now=pin.version, newer=", ".join(moved), state=State.PROPOSED, span=1,
        move=ToValues(pin=pin.name, values=tuple(values.items())),
    )  # fmt: skip
    yield _against(row, project, upstream, rules) or row


def _judge(
    pin: Pin, package: str, now: str, releases: Sequence[Release], project: Project, upstream: Upstream, rules: Rules
) -> Row:
    """The newest release that nothing speaks against; or what speaks against the newer ones there are."""
    row = _row(pin, package=package, now=now, state=State.NEWEST)
    place = next((place for place, one in enumerate(releases) if now in (one.name, one.commit)), None)
    if place is None:
        return replace(row, state=State.UNKNOWN, why=f"upstream does not have {now}")
    early = is_prerelease(releases[place])
    against: Row | None = None
    for span in range(len(releases) - 1 - place, 0, -1):
        release = releases[place + span]
        if release.missing or release.withdrawn or (is_prerelease(release) and not early):
            continue
        found = replace(
            row, newer=release.name, span=span, state=State.PROPOSED, move=ToRelease(pin=pin.name, release=release)
        )
        young = _too_young(pin, release, upstream, rules)
        stopped = replace(found, state=State.COOLING, why=young, move=None) if young else None
        stopped = stopped or _against(found, project, upstream, rules)
        if stopped is None:
            return replace(found, why=f"passed over {against.newer}: {against.why}" if against else "")
        against = against or stopped
    return against or row


def _too_young(pin: Pin, release: Release, upstream: Upstream, rules: Rules) -> str:
    if not rules.cool_down_days or isinstance(pin, DebsPin | RequirementsPin):
        return ""  # a snapshot of an archive is of a day by its nature
    released = upstream.released(pin, release)
    if released is None:
        return f"{release.name}: nobody says how old it is (`--cool-down 0` takes it all the same)"
    days = (rules.now - released).days
    return (
        f"{release.name} is {days} days old, {rules.cool_down_days} are asked for"
        if days < rules.cool_down_days
        else ""
    )


def _against(row: Row, project: Project, upstream: Upstream, rules: Rules) -> Row | None:
    """The row with what compat rules say against it; None where they say nothing."""
    if row.move is None:
        return None
    edited = isinstance(project.pins[row.pin], SdistPin | ImagePin | WheelsPin)
    if not edited:
        return None  # trees would have to be fetched, and no rule is about them
    try:
        with work_folder(upstream.cache, "update") as folder:
            refused = rules.refusals(edit_project((row.move,), project.root, folder, upstream=upstream))
    except MissingError as err:
        refused = (err.what,)
    except (RouteError, RegistryError):
        raise
    except SparkImagesError as err:
        refused = (err.what,)
    return replace(row, state=State.REFUSED, why=refused[0], move=None) if refused else None


def _within(release: Release, series: str) -> bool:
    parts = Version(series).release
    return (*Version(release.version).release, *(0 for _ in parts))[: len(parts)] == parts


def _now(pin: Pin) -> str:
    match pin:
        case ImagePin():
            return pin.ref.rpartition(":")[2]
        case DebsPin():
            return f"{pin.snapshot:%Y-%m-%dT%H:%M:%SZ}"
        case RequirementsPin():
            return f"{pin.exclude_newer:%Y-%m-%dT%H:%M:%SZ}"
        case _:
            return pin.version or describe_pin(pin)


def _row(
    pin: Pin, *, now: str, state: State, package: str = "", newer: str = "", why: str = "", span: int = 0,
    move: Move | None = None,
) -> Row:  # fmt: skip
    return Row(
        pin=pin.name, line=pin.line, package=package, now=now, newer=newer, state=state, why=why, span=span, move=move
    )
