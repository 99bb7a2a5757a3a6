from __future__ import annotations

import json
import string
from copy import deepcopy
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_images.errors import ConfigError
from spark_images.pins import (
    ArchivePin,
    ArchiveRoute,
    DebSet,
    DebsPin,
    GitPin,
    GitRoute,
    Hold,
    ImagePin,
    Pins,
    RequirementsPin,
    SdistPin,
    SdistRoute,
    UrlRoute,
    WheelsPin,
)
from spark_images.pins_file import read_pins
from spark_images.requirements import read_requirements

REPOSITORY = Path(__file__).parents[2]
GOLDEN = REPOSITORY / "tests" / "golden" / "errors"
HEX = "0123456789abcdef" * 4

VALID: dict[str, Any] = {
    "schema": 1,
    "source": {
        "kind": "git",
        "url": "https://example.org/a/source.git",
        "version": "b12",
        "commit": HEX[:40],
        "committed": "2026-10-01T11:11:48+09:00",
        "tree": f"sha256:{HEX}",
        "paths": ["src", "vendor/a"],
        "follow": "tags/b*",
        "routes": [
            "git",
            {"archive": "https://example.org/source-b12.tar.gz", "path": "source"},
            {"sdist": "a-source==1.2.3", "path": "vendor/source"},
        ],
        "hold": {"until": "2026-12-01", "because": "13 breaks it (upstream's issue 7)"},
        "unverified": "read in a forum, 2026-11",
    },
    "base": {
        "kind": "image",
        "ref": "registry.example.org/team/base:1.0",
        "digest": f"sha256:{HEX}",
        "provides": {"torch": "2.10.0a0", "cuda": "13.1.1"},
    },
    "patch": {"kind": "archive", "version": "1", "sha256": HEX, "urls": ["https://example.org/a.patch"]},
    "package": {"kind": "sdist", "name": "a-package", "version": "1.0", "sha256": HEX, "path": "src"},
    "libraries": {
        "kind": "wheels",
        "version": "13.0",
        "lock": "images/libraries.lock",
        "platforms": ["linux/amd64", "linux/arm64"],
        "packages": ["a-library==13.0.88", "b-library==1"],
    },
    "debian": {
        "kind": "debs",
        "suite": "bookworm",
        "lock": "images/debian/debs.lock",
        "snapshot": "2026-11-01T00:00:00Z",
        "routes": ["https://deb.example.org/{archive}/{path}", "https://old.example.org/{archive}/{snapshot}/{path}"],
        "sets": {"build": {"packages": ["g++", "libc6-dev"], "arches": ["amd64", "arm64"]}},
    },
    "runtime": {
        "kind": "requirements",
        "for": ["package"],
        "requirements": "images/requirements.yaml",
        "lock": "images/runtime.lock",
        "platform": "linux/arm64",
        "python": "3.11",
        "exclude-newer": "2026-11-20T00:00:00Z",
    },
}
REQUIREMENTS = "schema: 1\nlayers: {all: ['*']}\n"
FOR_PEOPLE = {"because", "unverified"}  # keys whose text is read by people only


def read(path: Path, content: str | dict[str, Any]) -> Pins:
    path.write_text(content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, indent=1))
    return read_pins(path)


def mistake(path: Path, pin: dict[str, Any], **changes: Any) -> str:
    """The one mistake of a pin after the changes (None: the key goes away), without file name and line."""
    changed = {key: value for key, value in {**pin, **changes}.items() if value is not None}
    with pytest.raises(ConfigError) as caught:
        read(path, {"schema": 1, "it": changed, "package": VALID["package"]})
    assert caught.value.why == ()
    return caught.value.what.removeprefix(f"{path}:").partition(" it.")[2]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "images").mkdir()
    (tmp_path / "images/requirements.yaml").write_text(REQUIREMENTS)
    return tmp_path / "pins.yaml"


def test_the_projects_own_pins_are_read() -> None:
    names = [pin.name for pin in read_pins(REPOSITORY / "pins.yaml").pins]
    assert {"llama-cpp", "cuda", "build-tools", "cuda-inspect", "debian", "buildkit"} <= set(names)


def test_pins_keep_order_path_and_lines(file: Path) -> None:
    sdist = f"kind: sdist, name: it, version: 1, sha256: {HEX}"
    pins = read(file, f"schema: 1\n\nb: {{{sdist}}}\n# why\na:\n  {{{sdist}}}\n")
    assert pins.path == str(file)
    assert [(pin.name, pin.line) for pin in pins.pins] == [("b", 3), ("a", 5)]


def test_a_git_pin(file: Path) -> None:
    assert read(file, VALID)["source"] == GitPin(
        name="source",
        line=3,
        unverified="read in a forum, 2026-11",
        hold=Hold(until=date(2026, 12, 1), because="13 breaks it (upstream's issue 7)"),
        url="https://example.org/a/source.git",
        version="b12",
        commit=HEX[:40],
        committed=datetime(2026, 10, 1, 2, 11, 48, tzinfo=UTC),
        tree=f"sha256:{HEX}",
        paths=("src", "vendor/a"),
        follow="tags/b*",
        routes=(
            GitRoute(url="https://example.org/a/source.git", commit=HEX[:40]),
            ArchiveRoute(url="https://example.org/source-b12.tar.gz", path="source"),
            SdistRoute(project="a-source", version="1.2.3", path="vendor/source"),
        ),
    )


def test_a_git_pin_without_routes_comes_from_its_own_repository(file: Path) -> None:
    pins = deepcopy(VALID)
    del pins["source"]["routes"]
    pin = read(file, pins)["source"]
    assert isinstance(pin, GitPin)
    assert pin.routes == (GitRoute(url=pin.url, commit=pin.commit),)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "base",
            ImagePin(
                name="base",
                line=0,
                ref="registry.example.org/team/base:1.0",
                digest=f"sha256:{HEX}",
                provides=(("torch", "2.10.0a0"), ("cuda", "13.1.1")),
            ),
        ),
        (
            "patch",
            ArchivePin(
                name="patch", line=0, version="1", sha256=HEX, routes=(UrlRoute(url="https://example.org/a.patch"),)
            ),
        ),
        ("package", SdistPin(name="package", line=0, project="a-package", version="1.0", sha256=HEX, path="src")),
        (
            "libraries",
            WheelsPin(
                name="libraries",
                line=0,
                version="13.0",
                lock="images/libraries.lock",
                platforms=("linux/amd64", "linux/arm64"),
                packages=("a-library==13.0.88", "b-library==1"),
            ),
        ),
        (
            "debian",
            DebsPin(
                name="debian",
                line=0,
                suite="bookworm",
                lock="images/debian/debs.lock",
                snapshot=datetime(2026, 11, 1, tzinfo=UTC),
                routes=(
                    "https://deb.example.org/{archive}/{path}",
                    "https://old.example.org/{archive}/{snapshot}/{path}",
                ),
                sets=(DebSet(name="build", packages=("g++", "libc6-dev"), arches=("amd64", "arm64")),),
            ),
        ),
    ],
)
def test_a_pin_of_every_other_kind(file: Path, name: str, expected: Any) -> None:
    pin = read(file, VALID)[name]
    assert {**vars(pin), "line": 0} == vars(expected)
    assert type(pin) is type(expected)


def test_a_requirements_pin_takes_the_releases_of_sdist_pins_wherever_they_stand(file: Path) -> None:
    pin = read(file, {"schema": 1, "runtime": VALID["runtime"], "package": VALID["package"]})["runtime"]
    assert pin == RequirementsPin(
        name="runtime",
        line=3,
        lock="images/runtime.lock",
        platform="linux/arm64",
        python="3.11",
        exclude_newer=datetime(2026, 11, 20, tzinfo=UTC),
        packages=("a-package==1.0",),
        requirements=read_requirements(file.parent / "images/requirements.yaml"),
    )


def on_image(**provides: str) -> dict[str, Any]:
    """Requirements on an image that provides this."""
    image = {"kind": "image", "ref": "example.org/base:1", "digest": f"sha256:{'1' * 64}", "provides": provides}
    return {"schema": 1, "runtime": {**VALID["runtime"], "on": "base"}, "package": VALID["package"], "base": image}


def test_requirements_on_an_image_know_what_it_provides(file: Path) -> None:
    pin = read(file, on_image(torch="2.10.0a0+nv", cuda="13.1.1", python="3.11"))["runtime"]

    assert isinstance(pin, RequirementsPin)
    assert (pin.base, pin.provided) == ("base", (("torch", "2.10.0a0+nv"),))


@pytest.mark.parametrize(
    ("provides", "why"),
    [
        ({"python": "3.12"}, "runtime.python: `base` has Python 3.12"),
        ({"torch": "main"}, "runtime.on: `base` provides torch main, which is no version of a Python project"),
    ],
)
def test_requirements_do_not_go_with_every_image(file: Path, provides: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(file, on_image(**provides))
    assert why in caught.value.what


@pytest.mark.parametrize(
    ("sdists", "build_with", "packages", "mistake"),
    [
        ("sdists: {d: {version: '1', because: x}}", "tools", ["build==1.5.0"], ""),
        ("", "tools", ["build==1.5.0"], "images/requirements.yaml has no sdists, so there is nothing to build"),
        ("sdists: {d: {version: '1', because: x}}", "", ["build==1.5.0"], "missing: "),
        ("sdists: {d: {version: '1', because: x}}", "tols", ["build==1.5.0"], "did you mean `tools`?"),
        ("sdists: {d: {version: '1', because: x}}", "tools", ["setuptools==80.10.2"], "`tools` has no `build`"),
    ],
)
def test_what_builds_sdists_is_named_where_there_are_some(
    file: Path, sdists: str, build_with: str, packages: list[str], mistake: str
) -> None:
    (file.parent / "images/requirements.yaml").write_text(REQUIREMENTS + sdists)
    tools = {"kind": "wheels", "version": "1", "lock": "a.lock", "platforms": ["linux/amd64"], "packages": packages}
    runtime = {**VALID["runtime"], **({"build-with": build_with} if build_with else {})}
    content = {"schema": 1, "runtime": runtime, "package": VALID["package"], "tools": tools}
    if not mistake:
        pin = read(file, content)["runtime"]
        assert isinstance(pin, RequirementsPin)
        assert pin.build_with == "tools"
        return
    with pytest.raises(ConfigError) as caught:
        read(file, content)
    assert "runtime.build-with: " in caught.value.what
    assert mistake in caught.value.what


def test_requirements_of_what_is_no_sdist_pin_are_refused(file: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read(file, {**VALID, "runtime": {**VALID["runtime"], "for": ["packag"]}})
    text = caught.value.what
    assert "runtime.for[0]: expected a pin of kind sdist, `package`, got `packag`; did you mean `package`?" in text


def test_a_mistake_in_the_requirements_file_is_told_of_that_file(file: Path) -> None:
    (file.parent / "images/requirements.yaml").write_text("schema: 1\nlayers: {all: ['*']}\noverride: {}\n")
    with pytest.raises(
        ConfigError, match=r"images/requirements\.yaml:3: override: unknown key; did you mean `overrides`"
    ):
        read(file, VALID)


@pytest.mark.parametrize("case", sorted(path.stem for path in GOLDEN.glob("*.yaml")))
def test_golden_error(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(GOLDEN)
    with pytest.raises(ConfigError) as caught:
        read_pins(Path(f"{case}.yaml"))
    assert caught.value.render() + "\n" == (GOLDEN / f"{case}.txt").read_text()


def test_a_missing_file_says_where_to_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read_pins(tmp_path / "pins.yaml")
    assert caught.value.what == f"there is no file `{tmp_path}/pins.yaml`"
    assert "clone" in caught.value.hint


@pytest.mark.parametrize("schema", ["2", "1.0", "one", ""])
def test_another_schema_says_which_one_is_read(file: Path, schema: str) -> None:
    with pytest.raises(
        ConfigError, match="schema: expected 1, the schema that this version of spark-images reads, got"
    ):
        read(file, f"schema: {schema}\n")


def test_a_second_debs_pin_is_refused(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"more.kind: a second pin of kind `debs`"):
        read(file, {**VALID, "more": VALID["debian"]})


def test_one_project_at_two_versions_is_refused(file: Path) -> None:
    text = mistake(file, VALID["libraries"], packages=["a==1", "b==1", "a==2"])
    assert text == "packages: `a` stands in it at two versions"


@pytest.mark.parametrize(
    ("name", "key", "value", "text"),
    [
        ("source", "commit", "main", "commit: expected 40 hex digits, got `main`"),
        ("source", "commit", HEX[:40].upper(), "commit: expected 40 hex digits, got `0123456789ABCDEF"),
        ("source", "tree", HEX, "tree: expected `sha256:` and 64 hex digits, got"),
        ("source", "committed", "2026-10-01", "committed: expected a time with its zone"),
        ("source", "committed", "2026-10-01T11:11:48", "committed: expected a time with its zone"),
        ("source", "committed", "2026-13-01T11:11:48Z", "committed: expected a time with its zone"),
        ("source", "committed", "1969-12-31T23:59:59Z", "committed: expected a time with its zone"),
        ("source", "url", "git@example.org:a/b", "url: expected an address"),
        ("source", "url", "ext::sh -c id", "url: expected an address"),
        ("source", "url", "https://user:secret@example.org/a", "url: expected an address"),
        ("source", "follow", "main", "follow: expected refs to follow, as `tags/v*`, got `main`"),
        (
            "source",
            "paths",
            ["a/../../b"],
            "paths[0]: expected a relative path",
        ),
        ("source", "paths", ["/etc"], "paths[0]: expected a relative path"),
        (
            "source",
            "paths",
            ["a//b"],
            "paths[0]: expected a relative path",
        ),
        (
            "source",
            "routes",
            ["gti"],
            "routes[0]: expected `{archive: URL}`, `{sdist: name==version}` or `git`, got `gti`;",
        ),
        ("source", "routes", [{"sdist": "a"}], "routes[0].sdist: expected a project at an exact version"),
        ("source", "routes", [{"archiv": "https://a.org/b"}], "routes[0].archiv: unknown key; did you mean `archive`?"),
        (
            "source",
            "hold",
            {"until": "soon", "because": "x"},
            "hold.until: expected a date, as `2026-12-01`, got `soon`",
        ),
        ("source", "hold", {"until": "2026-12-01"}, "hold.because: missing"),
        ("base", "ref", "moby/buildkit:v1", "ref: expected an image as"),
        ("base", "ref", "docker.io/moby/buildkit", "ref: expected an image as"),
        (
            "patch",
            "urls",
            [],
            "urls: expected a list, each an address (https://, http:// or file:///), got an empty one",
        ),
        ("patch", "urls", None, "urls: missing; expected a list, each an address"),
        ("package", "name", "Flash_Attn", "name: expected a project's name as an index normalises it"),
        ("libraries", "packages", ["a>=1"], "packages[0]: expected a project at an exact version, as `numpy==2.4.6`"),
        ("libraries", "platforms", ["linux/arm"], "platforms[0]: expected one of `linux/amd64`, `linux/arm64`, got"),
        ("libraries", "lock", "../a.lock", "lock: expected a relative path"),
        ("runtime", "python", "2.7", "python: expected a version of Python, as `3.11`, got `2.7`"),
        ("runtime", "requirements", "images/a.yaml", "requirements: there is no file `images/a.yaml`"),
        (
            "debian",
            "routes",
            ["https://a.org/{archive}"],
            "routes[0]: expected an address with {archive} and {path} in it",
        ),
        ("debian", "routes", ["https://a.org/{0}/{path}"], "routes[0]: expected an address with {archive} and {path}"),
        (
            "debian",
            "sets",
            {"a": {"packages": ["g++"]}},
            "sets.a.arches: missing; expected a list, each one of `amd64`",
        ),
        ("debian", "sets", {"a": ["g++"]}, "sets.a: expected a mapping, got a list"),
    ],
)
def test_a_wrong_value_is_one_mistake_that_says_what_belongs_there(
    file: Path, name: str, key: str, value: Any, text: str
) -> None:
    assert mistake(file, VALID[name], **{key: value}).startswith(text)


# --- properties -------------------------------------------------------------------------------------------------------

DANGEROUS = ["\n", "a\nRUN id", "\r", "\x00", "\x1b[2J", "\u2028", "$(id)", "a`id`", 'a"', "a\\", "${HOME}"]
DANGEROUS_IN_WORDS = [
    "'",
    "a b",
    " ",
    "",
    "a;id",
    "a&id",
    "a|id",
    "a>b",
    "a<b",
    "a#b",
    "(a)",
    "~root",
    "-rf",
    "--output=a",
]


def leaves(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The places of all scalars in nested dictionaries and lists."""
    pairs = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else None
    if pairs is None:
        return [path]
    return [leaf for key, value in pairs for leaf in leaves(value, (*path, key))]


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """As leaves, with everything in between."""
    pairs = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path, *(place for key, value in pairs for place in places(value, (*path, key)))]


def changed(place: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """The valid pins with another value in one place."""
    pins = deepcopy(VALID)
    parent: Any = pins
    for key in place[:-1]:
        parent = parent[key]
    parent[place[-1]] = value
    return pins


@pytest.mark.parametrize("place", leaves(VALID), ids=lambda place: ".".join(map(str, place)))
def test_shell_and_dockerfile_syntax_is_refused_everywhere(file: Path, place: tuple[Any, ...]) -> None:
    for value in DANGEROUS if FOR_PEOPLE.intersection(place) else DANGEROUS + DANGEROUS_IN_WORDS:
        with pytest.raises(ConfigError):
            read(file, changed(place, value))


@pytest.mark.parametrize("name", ["A", "a b", "a\nb", "$(id)", "-a", "a/b", "../a", "a.b", ""])
def test_a_pins_name_is_refused_when_it_is_no_plain_name(file: Path, name: str) -> None:
    with pytest.raises(ConfigError):
        read(file, {"schema": 1, name: VALID["package"]})


def words(value: Any, key: str = "") -> list[str]:
    """All texts in a frozen value that are not for people."""
    if is_dataclass(value):
        return [text for field in fields(value) for text in words(getattr(value, field.name), field.name)]
    if isinstance(value, tuple):
        return [text for entry in value for text in words(entry, key)]
    return [value] if isinstance(value, str) and value and key not in FOR_PEOPLE else []


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(DANGEROUS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=4,
)
SAFE = set(string.ascii_letters + string.digits + "._+-:/=~%*{}")
quick = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


def pins_or_refusal(file: Path, content: str) -> None:
    """Anything but pins of plain words and ConfigError is a failure."""
    file.write_text(content, errors="surrogatepass")
    try:
        pins = read_pins(file)
    except ConfigError:
        return
    for word in words(pins.pins):
        assert set(word) <= SAFE
        assert not word.startswith("-")


@quick
@given(place=st.sampled_from(places(VALID)[1:]), value=ANYTHING)
def test_another_value_anywhere_gives_pins_or_a_config_error(file: Path, place: tuple[Any, ...], value: Any) -> None:
    pins_or_refusal(file, json.dumps(changed(place, value), ensure_ascii=False))


@quick
@given(place=st.sampled_from(places(VALID)[1:]), key=st.text(max_size=8), value=ANYTHING)
def test_a_further_key_anywhere_gives_a_config_error_or_pins(
    file: Path, place: tuple[Any, ...], key: str, value: Any
) -> None:
    pins_or_refusal(file, json.dumps(changed(place, {key: value, "kind": "git"}), ensure_ascii=False))


@pytest.mark.parametrize("place", places(VALID)[1:], ids=lambda place: ".".join(map(str, place)))
def test_a_missing_key_anywhere_gives_pins_or_a_config_error(file: Path, place: tuple[Any, ...]) -> None:
    pins = deepcopy(VALID)
    parent: Any = pins
    for key in place[:-1]:
        parent = parent[key]
    del parent[place[-1]]
    pins_or_refusal(file, json.dumps(pins))


@quick
@given(start=st.integers(0, 2000), length=st.integers(0, 60), text=st.text(max_size=12))
def test_other_text_anywhere_gives_pins_or_a_config_error(file: Path, start: int, length: int, text: str) -> None:
    own = (REPOSITORY / "pins.yaml").read_text()
    pins_or_refusal(file, own[:start] + text + own[start + length :])


@quick
@given(content=st.binary(max_size=40))
def test_any_bytes_give_pins_or_a_config_error(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(ConfigError):
        read_pins(file)
