"""From two ends to what is searched: a line of candidates, or a set of changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import assert_never

from spark_images.bisect.candidate import Candidate
from spark_images.bisect.ends import PinEnd, StateEnd, revisions_between, state_of_commit
from spark_images.cache import Cache
from spark_images.errors import UsageError, did_you_mean
from spark_images.git_history import commits_between, is_commit
from spark_images.pins import (
    ArchivePin,
    DebsPin,
    GitPin,
    ImagePin,
    Pin,
    Pins,
    RequirementsPin,
    SdistPin,
    WheelsPin,
)
from spark_images.project import Project
from spark_images.repin import Move, ToRelease, ToText
from spark_images.search import Change, order_changes
from spark_images.upstream import Release, Upstream, carrier, is_prerelease, natural


@dataclass(frozen=True, kw_only=True)
class Line:
    """Candidates in the order of time. absent: those that upstream does not have, each after the place it stands at."""

    what: str  # "releases of `vllm`"
    candidates: tuple[Candidate, ...]
    absent: tuple[tuple[int, Candidate], ...] = ()
    pin: str = ""
    revisions: bool = False


@dataclass(frozen=True, kw_only=True)
class ChangeSet:
    """Two states and what differs: change -> what makes the pin as it is at the good and at the bad end."""

    changes: tuple[Change, ...]
    moves: Mapping[str, tuple[Move, Move]]
    told: Mapping[str, str]  # change -> "0.19.1 -> 0.20.2"
    riders: tuple[tuple[Move, Move], ...] = ()  # locks of pins that only follow others: as they were at either end
    until: str = ""  # the commit of the bad end, where a search over revisions has found it

    def candidate(self, made: frozenset[str]) -> Candidate:
        """The state in which these changes are made."""
        every = frozenset(change.name for change in self.changes)
        moves = [bad if name in made else good for name, (good, bad) in self.moves.items()]
        if made in (frozenset(), every):
            moves += [bad if made else good for good, bad in self.riders]
        label = "the good end" if not made else "the bad end" if made == every else f"with {', '.join(sorted(made))}"
        key = f"set:{','.join(sorted(made))}{self._until}"
        return Candidate(key=key, label=label, moves=tuple(moves), made=made)

    def made_by(self, key: str) -> frozenset[str] | None:
        """The changes that the candidate of this key makes; None for a key of something else."""
        if not (key.startswith("set:") and key.endswith(self._until)) or "#" in key:
            return None
        names = key.removeprefix("set:").removesuffix(self._until).split(",")
        made = frozenset(name for name in names if name)
        return made if made <= self.moves.keys() else None

    @property
    def _until(self) -> str:
        return f"@{self.until}" if self.until else ""


# --- lines ------------------------------------------------------------------------------------------------------------


def line_of_pin(
    good: PinEnd,
    bad: PinEnd,
    *,
    pins: Pins,
    upstream: Upstream,
    find_fix: bool,
    commits: bool,
    now: datetime,
) -> Line:
    """The releases of a pin from one end to the other, or its commits. UsageError for ends that make no line."""
    if (good.pin, good.project) != (bad.pin, bad.project):
        raise UsageError(
            f"`{good.pin}` and `{bad.pin}` are two pins",
            hint="name two versions of one pin, or two states of all pins (revisions, images, records)",
        )
    if good.version == bad.version:
        raise UsageError(f"good and bad are the same version, {good.version}")
    pin, project = pins[good.pin], good.project
    _check_project(pin, project)
    older, newer = (bad, good) if find_fix else (good, bad)
    if commits or (isinstance(pin, GitPin) and not project and is_commit(good.version) and is_commit(bad.version)):
        if not isinstance(pin, GitPin):
            raise UsageError(f"`{pin.name}` is no git pin, so it has releases but no commits")
        found = commits_between(pin.url, older.version, newer.version, cache=upstream.cache)
        releases: tuple[Release, ...] = tuple(
            Release(name=commit[:12], commit=commit, released=time) for commit, time in found
        )
        return Line(what=f"commits of `{pin.name}`", candidates=tuple(_of(pin, one) for one in releases), pin=pin.name)
    releases = _releases(pin, project, upstream, now)
    places = [_place(end.version, releases, pin) for end in (older, newer)]
    if places[0] > places[1]:
        raise UsageError(
            f"the good version {good.version} is {'older' if find_fix else 'newer'} than the bad one {bad.version}",
            hint="exchange them" + ("" if find_fix else ", or look for the version that repaired it with `--find-fix`"),
        )
    ends = {releases[place].name for place in places}
    between = [
        release
        for release in releases[places[0] : places[1] + 1]
        if release.name in ends or not (is_prerelease(release) and not isinstance(pin, GitPin))
    ]
    line: list[Candidate] = []
    absent: list[tuple[int, Candidate]] = []
    for release in between:
        candidate = _of(pin, release)
        if release.missing and release.name not in ends:
            absent.append((len(line) - 1, candidate))
        else:
            line.append(candidate)
    of = f" by `{project}`" if project else ""
    return Line(what=f"releases of `{pin.name}`{of}", candidates=tuple(line), absent=tuple(absent), pin=pin.name)


def line_of_one(end: PinEnd, *, pins: Pins, upstream: Upstream, now: datetime) -> Line:
    """One release or commit of a pin by itself. UsageError where upstream has none of this name."""
    pin = pins[end.pin]
    _check_project(pin, end.project)
    if isinstance(pin, GitPin) and not end.project and is_commit(end.version):
        release = Release(name=end.version[:12], commit=end.version)
    else:
        releases = _releases(pin, end.project, upstream, now)
        release = releases[_place(end.version, releases, pin)]
    return Line(what=f"releases of `{pin.name}`", candidates=(_of(pin, release),), pin=pin.name)


def _releases(pin: Pin, project: str, upstream: Upstream, now: datetime) -> tuple[Release, ...]:
    if releases := upstream.releases(pin, project=project, now=now):
        return releases
    raise UsageError(
        f"nobody can be asked which versions of `{pin.name}` there are",
        hint="state under `follow` which tags are versions, as `tags/v*`" if isinstance(pin, GitPin) else "",
    )


def line_of_revisions(good: StateEnd, bad: StateEnd, *, project: Project, cache: Cache) -> Line:
    """The commits of the project that touched its pins; each is a candidate with that commit's pins and locks."""
    candidates = []
    for commit in revisions_between(good, bad, project):
        state = state_of_commit(commit, project, cache)
        moves = tuple(state.move(pin) for pin in project.pins.pins if pin.name in state.pins)
        candidates.append(Candidate(key=f"revision:{commit}", label=commit[:12], moves=moves))
    return Line(what="revisions of pins.yaml", candidates=tuple(candidates), revisions=True)


def line_of_tags(good: StateEnd, bad: StateEnd, pattern: str) -> Line:
    """Images that a registry holds, in the natural order of their tags. UsageError for ends that make no line."""
    import fnmatch

    from spark_images.registry.client import Client

    one, other = good.reference, bad.reference
    if one is None or other is None or not (one.tag and other.tag) or one.repository != other.repository:
        raise UsageError("`--tags` needs both ends as tags of one repository: HOST/NAME:TAG")
    client = Client(one.repository)
    tags = [tag for tag in client.tags() if fnmatch.fnmatchcase(tag, pattern)]
    tags = sorted({*tags, one.tag, other.tag}, key=natural)
    first, last = tags.index(one.tag), tags.index(other.tag)
    if first >= last:
        raise UsageError(f"tag `{one.tag}` does not come before `{other.tag}`", hint="exchange them")
    candidates = tuple(
        Candidate(key=f"tag:{one.repository.at(tag)}", label=tag, reference=one.repository.at(tag))
        for tag in tags[first : last + 1]
    )
    return Line(what=f"tags of {one.repository}", candidates=candidates)


def _of(pin: Pin, release: Release) -> Candidate:
    return Candidate(
        key=f"pin:{pin.name}={release.identity}",
        label=f"{pin.name} {release.name}",
        moves=(ToRelease(pin=pin.name, release=release),),
        missing=release.missing,
    )


def _check_project(pin: Pin, project: str) -> None:
    if isinstance(pin, WheelsPin):
        known = [package.partition("==")[0] for package in pin.packages]
        if project not in known and (project or len(known) > 1):
            raise UsageError(
                f"`{pin.name}` holds several packages",
                hint=f"name one: {pin.name}=PACKAGE==VERSION of {', '.join(known)}",
            )
    elif isinstance(pin, GitPin) and project:
        route = carrier(pin)
        if route is None or route.project != project:
            raise UsageError(f"no route of `{pin.name}` is an sdist of `{project}`")
    elif project and not (isinstance(pin, SdistPin) and pin.project == project):
        raise UsageError(f"`{pin.name}` is not of the project `{project}`")


def _place(version: str, releases: Sequence[Release], pin: Pin) -> int:
    for place, release in enumerate(releases):
        if version in (release.name, release.commit) or natural(version) == natural(release.name):
            if release.missing:
                raise UsageError(f"{version} of `{pin.name}` cannot be an end: {release.missing}")
            return place
    meant = did_you_mean(version, [release.name for release in releases])
    known = f"{releases[0].name} to {releases[-1].name}"
    raise UsageError(f"`{pin.name}` has no version {version}", hint=meant or f"upstream has {known}")


# --- sets -------------------------------------------------------------------------------------------------------------


def change_set(
    good: StateEnd, bad: StateEnd, *, pins: Pins, requires: Mapping[str, frozenset[str]] | None = None
) -> ChangeSet:
    """What differs between two states. UsageError where nothing does, or where this clone lacks a pin of theirs."""
    known = {pin.name: pin for pin in pins.pins}
    names = [name for name in dict.fromkeys((*good.pins, *bad.pins)) if name in good.pins and name in bad.pins]
    moves, told, riders = {}, {}, []
    for name in names:
        blocks = good.blocks.get(name), bad.blocks.get(name)
        differ = blocks[0] != blocks[1] if None not in blocks else good.pins[name] != bad.pins[name]
        relocked = good.pins[name] == bad.pins[name] and good.locks.get(name) != bad.locks.get(name)
        if not (differ or good.locks.get(name, ()) != bad.locks.get(name, ())):
            continue
        if name not in known:
            raise UsageError(f"the ends differ in `{name}`, which is no pin here")
        pair = good.move(known[name]), bad.move(known[name])
        if differ or (relocked and good.blocks):
            moves[name] = pair
            told[name] = f"{_short(good.pins[name])} -> {_short(bad.pins[name])}"
        elif all(isinstance(move, ToText) for move in pair):
            riders.append(pair)
    if not moves:
        raise UsageError(
            f"{good.name} and {bad.name} have the same pins",
            hint="what else differs (templates, scripts) is for `git bisect run`",
        )
    requires = requires or {}
    changes = order_changes(
        Change(name=name, cost=_cost(known[name]), requires=requires.get(name, frozenset())) for name in moves
    )
    return ChangeSet(changes=changes, moves=moves, told=told, riders=tuple(riders))


def _cost(pin: Pin) -> int:
    """How much building has to be done again when a pin moves: what is only taken as it is comes before compiling."""
    match pin:
        case ImagePin():
            return 0
        case DebsPin() | RequirementsPin():
            return 1
        case WheelsPin():
            return 2
        case ArchivePin():
            return 3
        case SdistPin() | GitPin():
            return 4
        case _:
            assert_never(pin)


def _short(text: str) -> str:
    first, _, rest = text.partition(" ")
    if rest.startswith("sha256:"):
        return first
    if "@sha256:" in first:
        return first.partition("@")[0].rpartition(":")[2]
    return f"{first} {rest[:12]}" if len(rest) == 40 else text if len(text) <= 60 else f"{text[:57]}..."
