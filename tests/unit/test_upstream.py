from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from file_server import FileServer
from package_server import publish, upstream_of
from values import PINS

from spark_images.errors import MissingError, RouteError, UsageError
from spark_images.git_history import commits_between, has_commit, list_refs, time_of
from spark_images.pins import DebsPin, GitPin, GitRoute, RequirementsPin, SdistPin, SdistRoute, WheelsPin
from spark_images.release_values import NO_COMMIT, values_of
from spark_images.requirements import Requirements
from spark_images.store import Store
from spark_images.tree import tree_from_archive
from spark_images.upstream import Release, Upstream, is_prerelease, natural

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
SDIST = SdistPin(name="extra", line=1, project="extra", version="2", sha256="c" * 64)
WHEELS = WheelsPin(
    name="tools", line=1, version="4.4", lock="l", platforms=("linux/amd64",), packages=("cmake==4.4", "ninja==1.13")
)


@pytest.fixture
def server() -> Iterator[FileServer]:
    with FileServer() as served:
        yield served


@pytest.fixture
def upstream(server: FileServer, tmp_path: Path) -> Upstream:
    return upstream_of(server, tmp_path)


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.org")
    return subprocess.check_output(["git", *identity, *words], cwd=folder, text=True).strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Commits tagged b8 to b11, b9 annotated, with a side branch merged into b11."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    for number in (8, 9, 10):
        (folder / "file").write_text(str(number))
        git(folder, "add", "file")
        git(folder, "commit", "-q", "-m", f"build {number}", "--date", f"2026-01-{number:02}T00:00:00Z")
        git(folder, "tag", *(["-a", "-m", "annotated"] if number == 9 else []), f"b{number}")
    git(folder, "checkout", "-q", "-b", "side")
    git(folder, "commit", "-q", "--allow-empty", "-m", "on the side")
    git(folder, "checkout", "-q", "main")
    git(folder, "merge", "-q", "--no-ff", "-m", "merge", "side")
    git(folder, "tag", "b11")
    git(folder, "tag", "other")
    return folder


def git_pin(repository: Path) -> GitPin:
    url = f"file://{repository}"
    commit = git(repository, "rev-parse", "b8")
    return GitPin(
        name="hello", line=1, url=url, version="b8", commit=commit, committed=NOW, tree="sha256:" + "a" * 64,
        follow="tags/b*", routes=(GitRoute(url=url, commit=commit),),
    )  # fmt: skip


# --- package indexes --------------------------------------------------------------------------------------------------


def test_versions_come_in_their_order_and_those_without_an_sdist_say_so(upstream: Upstream, server: FileServer) -> None:
    publish(
        server,
        "extra",
        {"extra-10.tar.gz": "2026-03-01", "extra-9.tar.gz": "2026-02-01", "extra-9.5-py3-none-any.whl": ""},
        yanked=("extra-9.tar.gz",),
    )
    releases = upstream.releases(SDIST, now=NOW)
    assert [one.name for one in releases] == ["9", "9.5", "10"]
    assert [bool(one.missing) for one in releases] == [False, True, False]
    assert [one.withdrawn for one in releases] == [True, False, False]
    assert releases[2].released == datetime(2026, 3, 1, tzinfo=UTC)


def test_an_sdist_pin_gets_version_and_digest(upstream: Upstream, server: FileServer) -> None:
    publish(server, "extra", {"extra-3.tar.gz": ""})
    digest = hashlib.sha256(b"extra-3.tar.gz").hexdigest()
    values = values_of(SDIST, upstream.releases(SDIST, now=NOW)[0], upstream=upstream)
    assert values == {("version",): "3", ("sha256",): digest, ("unverified",): None}


def test_a_pin_that_says_when_it_came_out_says_it_of_the_new_release(upstream: Upstream, server: FileServer) -> None:
    publish(server, "extra", {"extra-3.tar.gz": "2026-05-06"})
    pin = replace(SDIST, released=datetime(2026, 1, 1, tzinfo=UTC))
    values = values_of(pin, upstream.releases(pin, now=NOW)[0], upstream=upstream)
    assert values[("released",)] == "2026-05-06T00:00:00Z"


def test_what_is_missing_cannot_be_pinned(upstream: Upstream, server: FileServer) -> None:
    publish(server, "extra", {"extra-3-py3-none-any.whl": ""})
    with pytest.raises(RouteError, match="no sdist"):
        values_of(SDIST, upstream.releases(SDIST, now=NOW)[0], upstream=upstream)
    with pytest.raises(MissingError):
        upstream.sdists("no-such-project")


def test_a_package_of_a_wheels_pin_moves_alone_and_with_the_version_that_is_its_own(
    upstream: Upstream, server: FileServer
) -> None:
    publish(server, "cmake", {"cmake-4.4-py3-none-any.whl": "", "cmake-4.5-py3-none-any.whl": ""})
    publish(server, "ninja", {"ninja-1.14-py3-none-any.whl": ""})
    cmake = upstream.releases(WHEELS, project="cmake", now=NOW)[-1]
    assert values_of(WHEELS, cmake, upstream=upstream) == {("packages", 0): "cmake==4.5", ("version",): "4.5"}
    ninja = upstream.releases(WHEELS, project="ninja", now=NOW)[-1]
    assert values_of(WHEELS, ninja, upstream=upstream) == {("packages", 1): "ninja==1.14"}


def test_the_age_of_a_file_is_asked_of_its_server_where_the_index_does_not_say_it(
    upstream: Upstream, server: FileServer
) -> None:
    publish(server, "extra", {"extra-3.tar.gz": ""})
    assert upstream.released(SDIST, upstream.releases(SDIST, now=NOW)[0]) is None  # this server says no times either


# --- git --------------------------------------------------------------------------------------------------------------


def test_followed_tags_come_in_their_natural_order_with_the_commits_behind_them(
    upstream: Upstream, repository: Path
) -> None:
    releases = upstream.releases(git_pin(repository), now=NOW)
    assert [one.name for one in releases] == ["b8", "b9", "b10", "b11"]
    assert releases[1].commit == git(repository, "rev-parse", "b9^{commit}")


def test_a_git_pin_gets_its_tree_which_is_in_the_store_then(upstream: Upstream, repository: Path) -> None:
    pin = git_pin(repository)
    values = values_of(pin, upstream.releases(pin, now=NOW)[2], upstream=upstream)
    assert values[("version",)] == "b10"
    assert values[("commit",)] == git(repository, "rev-parse", "b10")
    assert str(values[("committed",)]).endswith("Z")
    assert values[("routes",)] == "[git]"
    assert Store(upstream.cache.store).has(str(values[("tree",)]))


def test_a_tree_that_another_projects_sdist_carries_has_no_known_commit(
    upstream: Upstream, server: FileServer, repository: Path, tmp_path: Path
) -> None:
    from test_bisect_source import sdist

    route = SdistRoute(project="extra", version="2", path="")
    pin = replace(git_pin(repository), routes=(route,))
    publish(server, "extra", {"extra-3.tar.gz": ""})
    archive = sdist("3", "a word\n")
    server.files["/files/extra-3.tar.gz"] = archive
    page = server.files["/simple/extra/"].replace(
        hashlib.sha256(b"extra-3.tar.gz").hexdigest().encode(), hashlib.sha256(archive).hexdigest().encode()
    )
    server.files["/simple/extra/"] = page.replace(b'"size": 14', f'"size": {len(archive)}'.encode())
    release = upstream.releases(pin, project="extra", now=NOW)[0]
    values = values_of(pin, release, upstream=upstream)
    (tmp_path / "x.tar.gz").write_bytes(archive)
    with (
        tree_from_archive(tmp_path / "x.tar.gz", "", work=tmp_path, source="x") as tree,
        (tmp_path / "t").open("wb") as out,
    ):
        assert values[("tree",)] == tree.write(out)
    assert values[("commit",)] == NO_COMMIT
    assert "nobody knows" in str(values[("unverified",)])


def test_commits_between_two_follow_first_parents(upstream: Upstream, repository: Path) -> None:
    url = f"file://{repository}"
    found = [commit for commit, _ in commits_between(url, "b8", "b11", cache=upstream.cache)]
    assert found == [git(repository, "rev-parse", f"b{number}^{{commit}}") for number in (8, 9, 10, 11)]
    with pytest.raises(UsageError, match="no descendant"):
        commits_between(url, "b11", "b8", cache=upstream.cache)
    with pytest.raises(UsageError, match="no commit `b12`"):
        commits_between(url, "b8", "b12", cache=upstream.cache)


def test_a_repository_is_asked_for_a_commit_and_its_time(upstream: Upstream, repository: Path) -> None:
    url, commit = f"file://{repository}", git(repository, "rev-parse", "b10")
    assert has_commit(url, commit, cache=upstream.cache)
    assert not has_commit(url, "0" * 40, cache=upstream.cache)
    assert time_of(url, commit, cache=upstream.cache) is not None
    with pytest.raises(RouteError):
        list_refs(f"file://{repository}-gone", "tags/*", cache=upstream.cache)


# --- the rest ---------------------------------------------------------------------------------------------------------


def test_archives_that_can_be_named_at_any_time_have_a_release_a_day(upstream: Upstream) -> None:
    debian = next(pin for pin in PINS.pins if isinstance(pin, DebsPin))
    pin = replace(debian, snapshot=datetime(2026, 11, 18, 6, tzinfo=UTC))
    names = [one.name for one in upstream.releases(pin, now=NOW)]
    assert names == ["2026-11-18T06:00:00Z", "2026-11-19T00:00:00Z", "2026-11-20T00:00:00Z", "2026-11-21T00:00:00Z"]
    requirements = RequirementsPin(
        name="needs", line=1, lock="l", platform="linux/arm64", python="3.11", packages=(),
        exclude_newer=datetime(2026, 11, 20, tzinfo=UTC), requirements=Requirements(path="", layers=()),
    )  # fmt: skip
    newest = upstream.releases(requirements, now=NOW)[-1]
    assert values_of(requirements, newest, upstream=upstream) == {("exclude-newer",): "2026-11-21T00:00:00Z"}


def test_numbers_in_names_count_as_numbers() -> None:
    assert sorted(["b1000", "b999", "v1.10", "v1.9"], key=natural) == ["b999", "b1000", "v1.9", "v1.10"]


def test_prereleases_are_known_by_their_names() -> None:
    names = ["0.21.0rc1", "v1.2-beta", "1.0.dev3", "b9999", "0.6.8.post1", "26.01-py3"]
    assert [is_prerelease(Release(name=name)) for name in names] == [True, True, True, False, False, False]
