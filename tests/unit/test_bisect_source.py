"""A whole search through the command line, over sdists that a package index on loopback serves; nothing is built."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shlex
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from file_server import FileServer
from small_project import make_project

from spark_images.cli import main
from spark_images.errors import BisectError, MissingError, UnfinishedError, UsageError
from spark_images.package_index import PipConfig

VERSIONS = tuple(str(number) for number in range(2, 16))
CULPRIT = "11"
CHECK = "grep -q old word"


def sdist(version: str, word: str) -> bytes:
    files = {
        "word": word,
        "PKG-INFO": "Name: extra\nProject-URL: Source, https://github.com/example/extra.git\n",
    }
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(f"extra-{version}/{name}")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return gzip.compress(raw.getvalue(), mtime=0)


class Case:
    """A project whose pin `extra` is an sdist, and the index that has it."""

    def __init__(self, root: Path, server: FileServer, capsys: pytest.CaptureFixture[str]) -> None:
        self.root, self.server, self.capsys = root, server, capsys
        self.said = ""
        self.publish()

    def publish(self, *, missing: tuple[str, ...] = (), gone: tuple[str, ...] = ()) -> None:
        """missing: only a wheel of them is there; gone: listed, and not served."""
        links = []
        for version in VERSIONS:
            data = sdist(version, "new\n" if VERSIONS.index(version) >= VERSIONS.index(CULPRIT) else "old\n")
            name = f"extra-{version}-py3-none-any.whl" if version in missing else f"extra-{version}.tar.gz"
            links.append(f'<a href="/files/{name}#sha256={hashlib.sha256(data).hexdigest()}">{name}</a>')
            if version not in gone:
                self.server.files[f"/files/{name}"] = data
        self.server.files["/simple/extra/"] = f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>".encode()
        self.server.types["/simple/extra/"] = "text/html"

    def __call__(self, *words: str, good: str = "2", bad: str = "15", check: str = CHECK) -> int:
        ends = ("--good", f"extra={good}", "--bad", f"extra={bad}") if good else ()
        command = ["--project", str(self.root), "bisect", "hello", "--stage", "source", *ends, "--check", check, *words]
        status = main(command)
        self.out, self.said = self.capsys.readouterr()
        return status

    def report(self, *words: str, **ends: str) -> dict[str, Any]:
        assert self("--json", *words, **ends) == 0, self.said
        document: dict[str, Any] = json.loads(self.out)
        return document


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Case]:
    with FileServer() as server:
        config = PipConfig(indexes=(server.url("/simple/"),))  # to ask pip for it takes a second each time
        monkeypatch.setattr("spark_images.package_index.read_pip_config", lambda env: config)
        monkeypatch.setenv("SPARK_IMAGES_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("SPARK_IMAGES_TIMEOUT_S", "5")
        make_project(tmp_path / "project")
        yield Case(tmp_path / "project", server, capsys)


def test_the_first_bad_release_is_named_with_all_that_was_tried(case: Case) -> None:
    report = case.report()
    assert report["exact"]
    assert report["before"]["label"] == "extra 10"
    assert report["after"]["label"] == "extra 11"
    assert report["compare"] == "https://github.com/example/extra/compare/v10...v11"
    assert report["reproduce"][1] == (
        "./noxw -s bisect-hello -- --check 'grep -q old word' --stage source --try extra=extra==11"
    )
    assert len(report["tried"]) <= 2 + 4 + 2  # the ends, a search of 12, and both sides once more
    assert "extra 15 said in the end" not in case.said  # this check says nothing


def test_the_report_is_for_people_too_and_is_kept_with_a_picture(case: Case, tmp_path: Path) -> None:
    assert case(check="echo looking at $SPARK_CANDIDATE; grep -q old word") == 0
    assert "first bad: extra 11 (last good: extra 10)" in case.out
    assert "  > looking at extra 15\nis this the failure you mean?" in case.said
    (folder,) = (tmp_path / "cache/records").glob("bisect-hello-*")
    assert "<title>extra 11: bad</title>" in (folder / "range.svg").read_text()
    assert json.loads((folder / "report.json").read_text())["exact"]


def test_a_second_run_asks_nothing_again(case: Case) -> None:
    first = case.report()
    fetched = len(case.server.asked)
    assert case.report()["tried"] == first["tried"]
    assert "answers of an earlier run are known" in case.said
    assert not [path for path, _ in case.server.asked[fetched:] if path.startswith("/files/")]


def test_the_range_is_honest_where_releases_around_the_culprit_cannot_be_told(case: Case) -> None:
    report = case.report(check='case "$SPARK_CANDIDATE" in *10|*11|*12) exit 125;; esac; grep -q old word')
    assert not report["exact"]
    assert (report["before"]["label"], report["after"]["label"]) == ("extra 9", "extra 13")
    assert report["candidates"] == 4
    assert {one["verdict"] for one in report["between"]} == {"skipped: cannot tell"}
    assert report["proved_unbuildable"] == 0


def test_releases_without_an_sdist_are_passed_over_and_named(case: Case) -> None:
    case.publish(missing=("10", "5"))
    report = case.report()
    assert report["exact"]
    assert (report["before"]["label"], report["after"]["label"]) == ("extra 9", "extra 11")
    assert report["absent_upstream"] == ["extra 10"]


def test_a_release_that_the_index_lists_and_does_not_serve_is_skipped(case: Case) -> None:
    case.publish(gone=("11", "10"))
    for version in ("10", "11"):
        case.server.files.pop(f"/files/extra-{version}.tar.gz", None)
    report = case.report()
    assert (report["before"]["label"], report["after"]["label"]) == ("extra 9", "extra 12")


def test_the_repair_is_found(case: Case) -> None:
    report = case.report("--find-fix", good="15", bad="2", check="grep -q new word")
    assert report["after"] == {"label": "extra 11", "is": "first good", "key": "pin:extra=extra==11"}
    assert report["before"]["is"] == "last bad"


def test_one_candidate_can_be_tried_by_itself(case: Case) -> None:
    assert case("--try", "extra=10", good="") == 0
    assert case("--try", "extra=extra==11", good="") == 1
    assert "extra 11: bad" in case.out
    assert case("--try", "extra=10", good="", check="exit 125") == 125


def test_budgets_end_a_run_and_the_next_goes_on(case: Case) -> None:
    assert case("--max-builds", "3") == UnfinishedError.exit_status
    assert "not finished: 3 tries were allowed" in case.said
    assert "after extra 8 and up to extra 15" in case.said
    assert case.report()["after"]["label"] == "extra 11"


def test_other_runners_try_what_the_matrix_says(case: Case, tmp_path: Path) -> None:
    matrix, verdicts = tmp_path / "matrix.json", tmp_path / "verdicts"
    verdicts.mkdir()
    rounds = 0
    while (status := case("--matrix", str(matrix), "--jobs", "3", "--verdicts", str(verdicts))) != 0:
        assert status == UnfinishedError.exit_status, case.said
        rounds += 1
        for entry in json.loads(matrix.read_text())["include"]:
            words = shlex.split(entry["command"])
            assert case("--try", words[words.index("--try") + 1], "--verdict", str(tmp_path / entry["verdict"])) == 0, (
                case.said
            )
    assert rounds <= 5
    assert "first bad: extra 11" in case.out


def test_a_verdict_of_another_search_is_refused(case: Case, tmp_path: Path) -> None:
    verdict = tmp_path / "verdicts/one.json"
    assert case("--try", "pin:extra=extra==9", "--verdict", str(verdict), check="true") == 0
    assert case("--verdicts", str(verdict.parent)) == BisectError.exit_status
    assert "verdict of another search" in case.said


def test_a_flaky_check_is_run_again_and_its_confidence_stated(case: Case, tmp_path: Path) -> None:
    count = tmp_path / "count"
    count.write_text("0")
    every_other = f"grep -q old word || {{ n=$(($(cat {count}) + 1)); echo $n >{count}; [ $((n % 2)) = 1 ]; }}"
    report = case.report("--repeat", "6", check=every_other)
    assert report["after"]["label"] == "extra 11"
    assert 0.5 < report["confidence"] < 1


def test_a_check_that_is_flaky_at_the_good_end_is_an_error(case: Case, tmp_path: Path) -> None:
    count = tmp_path / "count"
    count.write_text("0")
    every_other = f"n=$(($(cat {count}) + 1)); echo $n >{count}; [ $((n % 2)) = 1 ]"
    assert case("--repeat", "4", check=every_other) == BisectError.exit_status
    assert "the check is flaky at the good end: 2 of 4 runs failed" in case.said


@pytest.mark.parametrize(
    ("good", "bad", "words"),
    [
        ("2", "2", "good and bad are the same version, 2"),
        ("15", "2", "the good version 15 is newer than the bad one 2"),
        ("2", "16", "`extra` has no version 16"),
    ],
)
def test_ends_that_make_no_line_are_refused(case: Case, good: str, bad: str, words: str) -> None:
    assert case(good=good, bad=bad) == UsageError.exit_status
    assert words in case.said


def test_an_unknown_pin_is_refused_with_the_nearest_one(case: Case) -> None:
    arguments = ["--project", str(case.root), "bisect", "hello", "--check", "true"]
    assert main([*arguments, "--good", "extr=1", "--bad", "extr=2"]) == UsageError.exit_status
    assert "did you mean `extra`?" in case.capsys.readouterr().err


def test_an_end_in_no_known_form_is_refused_with_the_forms(case: Case) -> None:
    arguments = ["--project", str(case.root), "bisect", "hello", "--check", "true"]
    assert main([*arguments, "--good", "no-such-thing", "--bad", "."]) == UsageError.exit_status
    assert "an end is PIN=VERSION" in case.capsys.readouterr().err


def test_a_check_that_cannot_be_run_ends_the_search(case: Case) -> None:
    assert case(check="/no/such/program") == BisectError.exit_status
    assert "no such" in case.said.lower() or "not found" in case.said


def test_swapped_ends_by_their_verdicts_are_an_error(case: Case) -> None:
    assert case(check="grep -q new word") == BisectError.exit_status
    assert "the wrong way round" in case.said


def test_a_verb_cannot_check_a_source_tree(case: Case) -> None:
    assert case(check="test") == UsageError.exit_status
    assert "name a command: it runs in the unpacked tree" in case.said


def test_a_project_that_nobody_has_is_missing(case: Case) -> None:
    del case.server.files["/simple/extra/"]
    assert case() == MissingError.exit_status


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.org")
    return subprocess.check_output(["git", *identity, *words], cwd=folder, text=True).strip()


@pytest.fixture
def history(case: Case, tmp_path: Path) -> Path:
    """The repository of the git pin `hello`: ten commits, b1 to b10 every third of them, the seventh says new."""
    folder = tmp_path / "history"
    folder.mkdir()
    git(folder, "init", "-q")
    for number in range(1, 11):
        (folder / "word").write_text("new\n" if number >= 7 else "old\n")
        git(folder, "add", "word")
        git(folder, "commit", "-q", "--allow-empty", "-m", f"commit {number}")
        if number % 3 == 1:
            git(folder, "tag", f"b{number}")
    pins = case.root / "pins.yaml"
    old = "  url: https://example.org/hello\n  version: b12\n"
    new = f"  url: file://{folder}\n  follow: tags/b*\n  version: b1\n"
    pins.write_text(pins.read_text().replace(old, new))
    return folder


def test_tags_and_commits_of_a_git_pin_are_searched(
    case: Case, history: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["--project", str(case.root), "bisect", "hello", "--stage", "source", "--check", CHECK, "--json"]
    ends = ["--good", "hello=b1", "--bad", "hello=b10"]
    assert main([*command, *ends]) == 0
    tags = json.loads(capsys.readouterr().out)
    assert (tags["before"]["label"], tags["after"]["label"]) == ("hello b4", "hello b7")
    assert main([*command, *ends, "--commits"]) == 0
    commits = json.loads(capsys.readouterr().out)
    culprit = git(history, "rev-list", "--max-count=1", "--grep=commit 7", "HEAD")
    assert commits["after"]["key"] == f"pin:hello={culprit}"
    assert commits["exact"]


def test_wheels_are_unpacked_where_they_are_what_is_asked(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    links = []
    for number in range(2, 9):
        name, data = f"extra-{number}-py3-none-any.whl", io.BytesIO()
        with zipfile.ZipFile(data, "w") as wheel:
            wheel.writestr("word", "new\n" if number >= 5 else "old\n")
        case.server.files[f"/files/{name}"] = data.getvalue()
        links.append(f'<a href="/files/{name}#sha256={hashlib.sha256(data.getvalue()).hexdigest()}">{name}</a>')
        sdist_name = name.replace("-py3-none-any.whl", ".tar.gz")
        links.append(f'<a href="/files/{sdist_name}#sha256={"0" * 64}">{sdist_name}</a>')
    case.server.files["/simple/extra/"] = f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>".encode()
    ends = ["--good", "extra=2", "--bad", "extra=8", "--check", CHECK, "--json"]
    assert main(["--project", str(case.root), "bisect", "hello", "--stage", "wheel", *ends]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["after"]["label"] == "extra 5"
