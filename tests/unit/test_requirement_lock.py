"""Locks of requirements: real uv against a real index on loopback."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from file_server import FileServer
from wheels import metadata

from spark_images.cache import Cache
from spark_images.download import Patience
from spark_images.errors import ConfigError, HostProgramError, RouteError
from spark_images.locks import LockedWheel, made_from, read_wheels_lock
from spark_images.package_index import PackageIndex, PipConfig
from spark_images.pins import RequirementsPin
from spark_images.project import Project
from spark_images.relock import relock
from spark_images.requirement_lock import read_pylock, resolve_requirements, uv_command, uv_environment
from spark_images.requirements import Departure, Layer, Requirements
from spark_images.wheel_lock import write_wheels_lock

PIN = RequirementsPin(
    name="app-gb10-debian",
    line=7,
    lock="images/app/gb10-debian.lock",
    platform="linux/arm64",
    python="3.11",
    exclude_newer=datetime(2026, 11, 20, tzinfo=UTC),
    packages=("app==1.0",),
    requirements=Requirements(
        path="images/app/requirements.yaml",
        layers=(
            Layer(name="cuda", projects=("nvidia-*",)),
            Layer(name="python", projects=("*",)),
            Layer(name="app", projects=("app",)),
        ),
    ),
)
FLAT = (Layer(name="all", projects=("*",)),)
ARM = "manylinux_2_27_aarch64"


class Index:
    """A package index that serves what a test puts into it."""

    def __init__(self, server: FileServer) -> None:
        self.server = server
        self.pages: dict[str, list[dict[str, object]]] = {}

    def put(self, name: str, version: str, *requires: str, tag: str = "py3-none-any", day: int = 1) -> None:
        """A wheel, uploaded on that day of November 2026; nobody reads more of it than its METADATA."""
        filename = f"{name.replace('-', '_')}-{version}-{tag}.whl"
        text = metadata(name, version, *requires).encode()
        self.server.files[f"/files/{filename}.metadata"] = text
        self.add(name, filename, day=day, **{"core-metadata": {"sha256": hashlib.sha256(text).hexdigest()}})

    def add(self, name: str, filename: str, *, day: int = 1, **more: object) -> None:
        file = {
            "filename": filename,
            "url": self.server.url(f"/files/{filename}"),
            "hashes": {"sha256": hashlib.sha256(filename.encode()).hexdigest()},
            "size": len(filename),
            "upload-time": f"2026-11-{day:02}T00:00:00Z",
            **more,
        }
        self.pages.setdefault(name, []).append(file)
        page = {"meta": {"api-version": "1.1"}, "name": name, "files": self.pages[name]}
        self.server.files[f"/simple/{name}/"] = json.dumps(page).encode()
        self.server.types[f"/simple/{name}/"] = "application/vnd.pypi.simple.v1+json"


@pytest.fixture
def index() -> Iterator[Index]:
    with FileServer() as server:
        made = Index(server)
        made.put(
            "app",
            "1.0",
            "lib>=1",
            "nvidia-blas",
            "backport; python_version<'3.11'",
            "intel; platform_machine=='x86_64'",
        )
        made.put("lib", "1.1")
        made.put("nvidia-blas", "13.1", tag=f"py3-none-{ARM}")
        made.put("nvidia-blas", "13.1", tag="py3-none-manylinux_2_27_x86_64")
        yield made


def resolve(index: Index, pin: RequirementsPin, folder: Path) -> tuple[LockedWheel, ...]:
    config = PipConfig(indexes=(index.server.url("/simple/"),), attempts=1)
    asked = PackageIndex(config, patience=Patience(timeout_s=5, attempts=1, backoff_s=0.01))
    (folder / "work").mkdir()
    return resolve_requirements(pin, work=folder / "work", log=folder / "solver.log", index=asked)


def with_requirements(**values: tuple[Departure, ...] | tuple[Layer, ...]) -> RequirementsPin:
    return replace(PIN, requirements=replace(PIN.requirements, **values))  # type: ignore[arg-type]


def versions(wheels: tuple[LockedWheel, ...]) -> dict[str, str]:
    return {wheel.project: wheel.version for wheel in wheels}


def test_every_project_that_is_needed_on_the_platform_has_one_wheel_and_its_layer(index: Index, tmp_path: Path) -> None:
    wheels = resolve(index, PIN, tmp_path)
    assert [(wheel.project, wheel.filename, wheel.platform, wheel.layer) for wheel in wheels] == [
        ("app", "app-1.0-py3-none-any.whl", "any", "app"),
        ("lib", "lib-1.1-py3-none-any.whl", "any", "python"),
        ("nvidia-blas", f"nvidia_blas-13.1-py3-none-{ARM}.whl", "linux/arm64", "cuda"),
    ]
    assert wheels[1].sha256 == hashlib.sha256(b"lib-1.1-py3-none-any.whl").hexdigest()
    assert wheels[1].size_bytes == len("lib-1.1-py3-none-any.whl")


def test_of_several_wheels_of_a_version_the_best_is_taken(index: Index, tmp_path: Path) -> None:
    for tag in (
        f"cp311-cp311-{ARM}",
        f"cp38-abi3-{ARM}",
        "cp312-cp312-manylinux_2_27_aarch64",
        f"cp311-cp311-{ARM[:-10]}39_aarch64",
    ):
        index.put("lib", "1.1", tag=tag)
    assert resolve(index, PIN, tmp_path)[1].filename == f"lib-1.1-cp311-cp311-{ARM}.whl"


def test_what_the_index_got_later_does_not_count(index: Index, tmp_path: Path) -> None:
    index.put("lib", "2.0", day=21)
    assert versions(resolve(index, PIN, tmp_path))["lib"] == "1.1"


def test_a_constraint_holds_a_version_and_an_older_release_of_who_wants_another(index: Index, tmp_path: Path) -> None:
    index.put("lib", "1.5", "dsl>=4.7")
    index.put("dsl", "4.8")
    index.put("dsl", "4.4")
    index.put("lib", "1.4", "dsl")
    held = (Departure(name="dsl", version="4.4", because="4.8 brings too much"),)
    found = versions(resolve(index, with_requirements(constraints=held), tmp_path))
    assert (found["lib"], found["dsl"]) == ("1.4", "4.4")


def test_an_override_goes_before_what_releases_ask_for(index: Index, tmp_path: Path) -> None:
    index.put("lib", "0.9")
    held = (Departure(name="lib", version="0.9", because="1.0 is broken"),)
    assert versions(resolve(index, with_requirements(overrides=held), tmp_path))["lib"] == "0.9"


def test_an_exclusion_leaves_a_project_out(index: Index, tmp_path: Path) -> None:
    pin = with_requirements(exclusions=(Departure(name="lib", because="of no use"),), layers=FLAT)
    assert versions(resolve(index, pin, tmp_path)) == {"app": "1.0", "nvidia-blas": "13.1"}


def test_an_exclusion_may_be_what_makes_a_solution_possible(index: Index, tmp_path: Path) -> None:
    index.put("app", "1.1", "nvidia-blas", "only-elsewhere")
    pin = with_requirements(exclusions=(Departure(name="only-elsewhere", because="no index has it"),), layers=FLAT)
    found = versions(resolve(index, replace(pin, packages=("app==1.1",)), tmp_path))
    assert found == {"app": "1.1", "nvidia-blas": "13.1"}


def test_what_the_base_has_is_left_out_and_others_take_the_version_of_it(index: Index, tmp_path: Path) -> None:
    index.put("app", "2.0", "torch==2.11.0", "lib>=1", "nvidia-blas")
    index.put("lib", "1.3", "numpy>=2.2")
    index.put("lib", "1.2", "numpy>=2")
    for version in ("2.1.0", "2.2.0"):
        index.put("numpy", version)
    pin = replace(PIN, base="ngc", provided=(("torch", "2.10.0a0+nv"), ("numpy", "2.1.0")))

    found = versions(resolve(index, replace(pin, packages=("app==2.0",)), tmp_path))

    assert found == {"app": "2.0", "lib": "1.2", "nvidia-blas": "13.1"}


def test_a_release_that_asks_for_more_than_the_base_has_is_no_solution(index: Index, tmp_path: Path) -> None:
    index.put("app", "2.0", "numpy>=2.2")
    for version in ("2.1.0", "2.2.0"):
        index.put("numpy", version)
    pin = replace(PIN, packages=("app==2.0",), base="ngc", provided=(("numpy", "2.1.0"),))

    with pytest.raises(ConfigError) as caught:
        resolve(index, pin, tmp_path)
    assert any("numpy" in line for line in caught.value.why)


@pytest.mark.parametrize(
    ("values", "what", "why"),
    [
        (
            {"exclusions": (Departure(name="gone", because="x"),)},
            "images/app/requirements.yaml: exclusions: they leave out what no release asks for: gone",
            (),
        ),
        (
            {"constraints": (Departure(name="gone", version="1", because="x"),)},
            "pin `app-gb10-debian`: what its releases resolve to is not what images/app/requirements.yaml wants",
            ("the version of `gone` changes nothing: no release asks for it",),
        ),
        (
            {"sdists": (Departure(name="gone", version="1", because="x"),)},
            "pin `app-gb10-debian`: what its releases resolve to is not what images/app/requirements.yaml wants",
            ("the version of `gone` changes nothing: no release asks for it",),
        ),
        (
            {"refusals": (Departure(name="nvidia-*", because="of another CUDA"),)},
            "pin `app-gb10-debian`: what its releases resolve to is not what images/app/requirements.yaml wants",
            ("`nvidia-blas` is refused: of another CUDA",),
        ),
        (
            {"layers": (*PIN.requirements.layers, Layer(name="torch", projects=("torch",)))},
            "pin `app-gb10-debian`: what its releases resolve to is not what images/app/requirements.yaml wants",
            ("nothing belongs to layer `torch`",),
        ),
    ],
)
def test_a_departure_that_the_solution_does_not_bear_out_is_an_error(
    index: Index, tmp_path: Path, values: dict[str, tuple[Departure, ...]], what: str, why: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(index, with_requirements(**values), tmp_path)
    assert (caught.value.what, caught.value.why) == (what, why)


def test_no_solution_is_one_error_with_its_reason_and_the_log(index: Index, tmp_path: Path) -> None:
    index.put("app", "2.0", "lib>=2")
    with pytest.raises(ConfigError) as caught:
        resolve(index, replace(PIN, packages=("app==2.0",)), tmp_path)
    assert caught.value.what == (
        "pin `app-gb10-debian`: the requirements of `app==2.0` have no solution for linux/arm64 and Python 3.11"
    )
    assert any("lib" in line and "Because" in line for line in caught.value.why)
    assert caught.value.why[-1] == f"the solver's log: {tmp_path}/solver.log"
    assert "DEBUG" not in "".join(caught.value.why)
    assert "DEBUG" in (tmp_path / "solver.log").read_text()
    assert "line 7 of pins.yaml" in caught.value.hint


def test_what_exists_only_as_source_is_named(index: Index, tmp_path: Path) -> None:
    index.add("only-sdist", "only_sdist-1.0.tar.gz")
    index.put("app", "2.0", "only-sdist")
    with pytest.raises(ConfigError) as caught:
        resolve(index, replace(PIN, packages=("app==2.0",)), tmp_path)
    assert caught.value.why[0] == "`only-sdist` has no wheel for linux/arm64 and Python 3.11"
    for way in ("`constraints` can name a version", "`exclusions` leave it out", "under `sdists` is built"):
        assert way in caught.value.hint


@pytest.mark.parametrize(
    "tag", ["py3-none-manylinux_2_27_x86_64", f"cp39-cp39-{ARM}", "cp311-cp311-manylinux_2_39_aarch64"]
)
@pytest.mark.parametrize("versions", [("1.0",), ("1.0", "2.0")])
def test_a_wheel_for_another_platform_or_python_alone_is_no_solution(
    index: Index, tmp_path: Path, tag: str, versions: tuple[str, ...]
) -> None:
    for version in versions:
        index.put("fast-io", version, tag=tag)
    index.put("app", "2.0", "fast-io")
    with pytest.raises(ConfigError, match="have no solution for linux/arm64") as caught:
        resolve(index, replace(PIN, packages=("app==2.0",)), tmp_path)
    assert caught.value.why[0] == "`fast-io` has no wheel for linux/arm64 and Python 3.11"


ONLY_SOURCE = Departure(name="only-sdist", version="1.0", requires=("extra-lib>=2",), because="no wheel")


def test_an_sdist_that_is_named_is_locked_and_no_code_of_it_runs(index: Index, tmp_path: Path) -> None:
    index.add("only-sdist", "only_sdist-1.0.tar.gz")  # the file itself is not served: who asked for it would fail
    index.add("only-sdist", "only_sdist-1.1.tar.gz")
    index.put("extra-lib", "2.0")
    index.put("app", "2.0", "only-sdist")
    pin = replace(with_requirements(sdists=(ONLY_SOURCE,), layers=FLAT), packages=("app==2.0",))
    wheels = resolve(index, pin, tmp_path)
    assert versions(wheels) == {"app": "2.0", "extra-lib": "2.0", "only-sdist": "1.0"}
    (sdist,) = (wheel for wheel in wheels if wheel.is_sdist)
    assert (sdist.filename, sdist.platform, sdist.layer) == ("only_sdist-1.0.tar.gz", "any", "all")
    path = tmp_path / "some.lock"
    write_wheels_lock(pin, wheels, path)
    assert set(read_wheels_lock(path, pin).wheels) == set(wheels)


@pytest.mark.parametrize(("tag", "refused"), [("py3-none-any", True), ("py3-none-manylinux_2_27_x86_64", False)])
def test_an_sdist_of_which_there_is_a_wheel_that_fits_is_a_mistake(
    index: Index, tmp_path: Path, tag: str, refused: bool
) -> None:
    index.add("only-sdist", "only_sdist-1.0.tar.gz")
    index.put("only-sdist", "1.0", tag=tag)
    index.put("app", "2.0", "only-sdist")
    pin = replace(with_requirements(sdists=(replace(ONLY_SOURCE, requires=()),), layers=FLAT), packages=("app==2.0",))
    if not refused:
        wheels = resolve(index, pin, tmp_path)
        assert [wheel.filename for wheel in wheels if wheel.is_sdist] == ["only_sdist-1.0.tar.gz"]
        return
    with pytest.raises(ConfigError) as caught:
        resolve(index, pin, tmp_path)
    assert caught.value.what == (
        "images/app/requirements.yaml: sdists: `only-sdist` 1.0 has a wheel for linux/arm64:"
        " `only_sdist-1.0-py3-none-any.whl`"
    )


@pytest.mark.parametrize("more", [{"day": 21}, {"yanked": True}])
def test_a_wheel_that_does_not_count_is_none(index: Index, tmp_path: Path, more: dict[str, Any]) -> None:
    index.add("only-sdist", "only_sdist-1.0.tar.gz")
    index.add("only-sdist", "only_sdist-1.0-py3-none-any.whl", **more)
    index.put("app", "2.0", "only-sdist")
    sdist = replace(ONLY_SOURCE, requires=())
    pin = replace(with_requirements(sdists=(sdist,), layers=FLAT), packages=("app==2.0",))
    assert [wheel.filename for wheel in resolve(index, pin, tmp_path) if wheel.is_sdist] == ["only_sdist-1.0.tar.gz"]


def test_no_code_of_a_local_version_runs_either(index: Index, tmp_path: Path) -> None:
    index.add("only-sdist", "only_sdist-1.0+cu13.tar.gz")
    index.put("app", "2.0", "only-sdist")
    sdist = replace(ONLY_SOURCE, requires=())
    pin = replace(with_requirements(sdists=(sdist,), layers=FLAT), packages=("app==2.0",))
    assert versions(resolve(index, pin, tmp_path)) == {"app": "2.0", "only-sdist": "1.0+cu13"}


def test_where_wheels_are_not_what_lacks_nobody_speaks_of_them(index: Index, tmp_path: Path) -> None:
    index.put("app", "2.0", "lib>=2")
    with pytest.raises(ConfigError) as caught:
        resolve(index, replace(PIN, packages=("app==2.0",)), tmp_path)
    assert "wheel" not in "".join((*caught.value.why[:-1], caught.value.hint))


def test_an_index_that_does_not_answer_is_told_apart_from_no_solution(index: Index, tmp_path: Path) -> None:
    index.server.ills["/simple/lib/"].extend(["500"] * 3)
    with pytest.raises(RouteError) as caught:
        resolve(index, PIN, tmp_path)
    assert caught.value.what == "pin `app-gb10-debian`: uv cannot read the package index"
    assert any("/simple/lib/" in line for line in caught.value.why)


def test_an_index_without_upload_times_is_told_apart_from_no_solution(index: Index, tmp_path: Path) -> None:
    index.put("undated", "1.0")
    del index.pages["undated"][0]["upload-time"]
    index.put("undated", "1.0", tag="py2-none-any")  # writes the page anew
    index.put("app", "2.0", "undated")
    with pytest.raises(RouteError) as caught:
        resolve(index, replace(PIN, packages=("app==2.0",)), tmp_path)
    assert "does not say when it got its files" in caught.value.what


def test_without_uv_it_says_how_to_get_it(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    with pytest.raises(HostProgramError) as caught:
        resolve(index, PIN, tmp_path)
    assert caught.value.hint.startswith("run `./noxw -s lock`")


def test_a_lock_that_was_made_is_read_back(index: Index, tmp_path: Path) -> None:
    wheels = resolve(index, PIN, tmp_path)
    path = tmp_path / "some.lock"
    write_wheels_lock(PIN, wheels, path)
    lock = read_wheels_lock(path, PIN)
    assert lock.made_from == made_from(PIN)
    assert set(lock.wheels) == set(wheels)
    assert [wheel.layer for wheel in lock.wheels] == ["cuda", "python", "app"]


def test_the_verb_writes_the_lock_and_keeps_what_the_solver_said(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "requirements.yaml").write_text("schema: 1\nlayers: {app: [app], rest: ['*']}\n")
    (tmp_path / "images").mkdir()
    (tmp_path / "images/targets.yaml").write_text("{}\n")
    (tmp_path / "pins.yaml").write_text(
        f"schema: 1\napp: {{kind: sdist, name: app, version: '1.0', sha256: {'0' * 64}}}\n"
        "app-gb10-debian:\n  {kind: requirements, for: [app], requirements: requirements.yaml, lock: images/a.lock,\n"
        "   platform: linux/arm64, python: '3.11', exclude-newer: 2026-11-20T00:00:00Z}\n"
    )
    monkeypatch.setenv("PIP_INDEX_URL", index.server.url("/simple/"))
    project, cache = Project(tmp_path), Cache(tmp_path / "cache")
    relock(project, names=["app-gb10-debian"], cache=cache)
    assert versions(project.wheels_lock("app-gb10-debian").wheels) == {
        "app": "1.0",
        "lib": "1.1",
        "nvidia-blas": "13.1",
    }
    assert (cache.locks / "app-gb10-debian.log").stat().st_size > 0
    assert not list(cache.work.glob("*"))


# --- what uv is told --------------------------------------------------------------------------------------------------


def test_uv_asks_the_indexes_of_pip_and_obeys_no_variable_of_its_own() -> None:
    config = PipConfig(
        indexes=("https://u:p@one.org/simple/", "https://two.org/simple/", "https://three.org/simple/"),
        cert="/ca.pem",
        proxy="http://proxy:8080",
        trusted_hosts=("two.org",),
        timeout_s=15.0,
        attempts=3,
    )
    assert uv_environment(config, {"UV_PRERELEASE": "allow", "HOME": "/home/me"}) == {
        "HOME": "/home/me",
        "UV_DEFAULT_INDEX": "https://u:p@one.org/simple/",
        "UV_INDEX": "https://two.org/simple/ https://three.org/simple/",
        "UV_INSECURE_HOST": "two.org",
        "SSL_CERT_FILE": "/ca.pem",
        "HTTPS_PROXY": "http://proxy:8080",
        "HTTP_PROXY": "http://proxy:8080",
        "UV_HTTP_TIMEOUT": "15",
        "UV_HTTP_RETRIES": "2",
    }


def test_uv_is_asked_for_the_platform_the_python_and_the_day(tmp_path: Path) -> None:
    command = " ".join(uv_command(PIN, uv="uv", work=tmp_path))
    for words in (
        "--python-platform aarch64-manylinux_2_36",
        "--python-version 3.11",
        "--exclude-newer 2026-11-20T00:00:00Z",
        "--only-binary :all:",
        f"--config-file {tmp_path}/uv.toml",
    ):
        assert words in command


def test_a_file_is_named_by_its_address_where_pylock_gives_no_name() -> None:
    text = """
[[packages]]
name = "torch"
version = "2.11.0"
wheels = [{ url = "https://a.org/x/torch-2.11.0%2Bcu130-py3-none-any.whl#x", hashes = { sha256 = "00" } }]
"""
    (file,) = read_pylock(text)["torch"]
    assert (file.filename, file.sha256, file.size_bytes) == ("torch-2.11.0+cu130-py3-none-any.whl", "00", None)
