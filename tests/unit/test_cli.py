"""The command line as a user meets it: what it prints where, its exit status, and never a traceback."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from small_project import make_project

from spark_images import cli
from spark_images.engine.base import EngineFacts
from spark_images.errors import FileError, SparkImagesError
from spark_images.errors_page import errors
from spark_images.verbs import machine

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
NOXFILE = (ROOT / "noxfile.py").read_text()
VERBS = (
    *(
        "audit",
        "bisect",
        "update-pins",
        "check-pins",
        "ci",
        "matrix",
        "ci-job",
        "build",
        "plan",
        "reproduce",
        "test",
        "verify",
        "promote",
        "rollback",
        "list",
        "explain",
        "verify-reference",
        "prune-registry",
        "push",
        "pull",
        "fetch",
        "prune",
        "render",
        "lock",
        "report",
    ),
    *("doctor", "clean", "bench", "recipe", "learn", "units", "estimate", "smoke"),
)


@dataclass(frozen=True)
class Said:
    """How a verb ended."""

    status: int
    out: str
    err: str


Run = Callable[..., Said]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project(tmp_path / "clone").root


@pytest.fixture
def run(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Run]:
    """Runs a verb in the project, in this process, with a cache of its own."""
    monkeypatch.setenv("SPARK_IMAGES_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(project)

    def main(*arguments: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["spark_images", *arguments])
        status = cli.main(arguments)
        out, err = capsys.readouterr()
        return Said(status, out, err)

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield main
    for number, handler in handlers.items():
        signal.signal(number, handler)


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start a verb in a process of its own, its output buffered as it is for most users."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.Popen(
        [sys.executable, "-m", "spark_images", *arguments],
        cwd=folder,
        env={**env, "PYTHONPATH": str(SOURCE), "SPARK_IMAGES_CACHE": str(folder.parent / "cache")},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


# --- words that are not known -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("buld hello", "build"),
        ("plan helo", "hello"),
        ("plan hello --targt gb10", "--target"),
        ("plan hello --target gb1", "gb10"),
        ("plan hello --base debain", "debian"),
        ("build hello --engine podmann", "podman"),
        ("build hello --engine=podmann", "podman"),
        ("build hello --memmory=8GiB", "--memory"),
        ("build hello --explian", "--explain"),
        ("--projct=. plan hello", "--project"),
        ("fetch helo", "hello"),
        ("lock debain", "debian"),
    ],
)
def test_a_mistyped_word_is_refused_and_the_nearest_one_offered(run: Run, typed: str, meant: str) -> None:
    said = run(*typed.split())
    assert said.status == 2
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert f"did you mean `{meant}`?" in said.err


@pytest.mark.parametrize(
    "typed", ["", "plan", "push hello", "plan hello --frobnicate", "xyzzy hello", "plan hello world"]
)
def test_a_command_line_that_nothing_is_near_to_points_to_help(run: Run, typed: str) -> None:
    said = run(*typed.split())
    assert said.status == 2
    assert "--help`" in said.err
    assert "did you mean" not in said.err


def test_an_option_is_not_guessed_from_its_beginning(run: Run) -> None:
    assert run("plan", "hello", "--targ", "gb10").status == 2


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_every_verb_has_help(run: Run, verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run(*verb.split(), "--help")
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: spark_images {verb}".rstrip())


def test_the_verbs_that_are_tested_here_are_all_that_there_are() -> None:
    (verbs,) = (action for action in cli._parser()._actions if isinstance(action, argparse._SubParsersAction))
    assert sorted(verbs.choices) == sorted(VERBS)


def parsers() -> dict[str, argparse.ArgumentParser]:
    (verbs,) = (action for action in cli._parser()._actions if isinstance(action, argparse._SubParsersAction))
    return verbs.choices


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_says_what_it_is_for(verb: str) -> None:
    assert [action.dest for action in parsers()[verb]._actions if not action.help] == []


@pytest.mark.parametrize("verb", VERBS)
def test_the_example_of_every_verb_is_a_session_with_options_that_it_takes(verb: str) -> None:
    example = parsers()[verb].epilog or ""
    session, *words = shlex.split(example.removeprefix("example: ./noxw -s ").replace(" -- ", " ", 1))
    image = session.removeprefix(verb).removeprefix("-")
    if verb == "learn":
        image = ""
    options = cli._read([verb, *([image] if image else []), *words])
    assert options.verb == verb
    assert f'"{verb}"' in NOXFILE or f"def {verb}(" in NOXFILE
    assert not image or (ROOT / "images" / image / "image.yaml").exists()


def test_what_stands_after_the_second_dashes_is_for_pytest(run: Run) -> None:
    assert cli._read(["test", "hello", "--engine", "podman", "--", "-k", "server"]).pytest == ["-k", "server"]
    assert "takes nothing after `--`" in run("plan", "hello", "--", "x").err


def test_a_file_in_a_folder_that_is_not_there_is_refused_before_the_work(run: Run, tmp_path: Path) -> None:
    said = run("report", "memory", "--svg", str(tmp_path / "none/memory.svg"))
    assert said.status == 2
    assert f"there is no folder {tmp_path / 'none'}" in said.err


# --- the project's files ----------------------------------------------------------------------------------------------


def test_a_folder_without_pins_says_where_to_run(run: Run, tmp_path: Path) -> None:
    said = run("--project", str(tmp_path), "plan", "hello")
    assert said.status == 10
    assert f"error: no pins.yaml in {tmp_path}\n" in said.err
    assert "--project" in said.err


def test_a_mistake_in_pins_is_named_by_its_line(run: Run, project: Path) -> None:
    path = project / "pins.yaml"
    path.write_text(path.read_text().replace("a" * 64, "main"))
    line = path.read_text().splitlines().index("  tree: sha256:main") + 1
    said = run("plan", "hello")
    assert said.status == 10
    assert f"pins.yaml:{line}: hello.tree: expected `sha256:` and 64 hex digits, got `sha256:main`" in said.err


def test_pins_that_are_no_yaml_are_an_error_and_no_traceback(run: Run, project: Path) -> None:
    (project / "pins.yaml").write_text("hello: [")
    said = run("plan", "hello")
    assert said.status == 10
    assert "pins.yaml:2:1: not YAML" in said.err
    assert "Traceback" not in said.err


def test_a_stale_lock_has_a_status_of_its_own(run: Run, project: Path) -> None:
    path = project / "pins.yaml"
    path.write_text(path.read_text().replace("nvcc==13,", "nvcc==14,"))
    assert run("render").status == 0
    said = run("plan", "hello")
    assert said.status == 11
    assert "hint: make it with `./noxw -s lock -- " in said.err


# --- plan, render, report ---------------------------------------------------------------------------------------------


def test_plan_prints_the_document_that_its_id_is_the_digest_of(run: Run) -> None:
    said = run("plan", "hello")
    assert said.status == 0
    document = json.loads(said.out)
    plan_id = document.pop("plan_id")
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert plan_id == hashlib.sha256(canonical.encode()).hexdigest()
    assert (document["image"], document["target"], document["base"]) == ("hello", "gb10", "debian")


def test_plan_takes_target_and_base(run: Run) -> None:
    document = json.loads(run("plan", "hello", "--target", "gb10", "--base", "ngc").out)
    assert (document["target"], document["base"]) == ("gb10", "ngc")


def test_render_check_prints_the_difference_and_writes_nothing(run: Run, project: Path) -> None:
    committed = project / "images/hello/gb10-debian.Dockerfile"
    edited = committed.read_text().replace("USER 10001:10001", "USER 0:0")
    committed.write_text(edited)
    said = run("render", "--check")
    assert said.status == 13
    assert "-USER 0:0\n+USER 10001:10001\n" in said.out
    assert "error: out of date: images/hello/gb10-debian.Dockerfile\n" in said.err
    assert committed.read_text() == edited


def test_render_writes_what_is_out_of_date_and_nothing_else(run: Run, project: Path) -> None:
    committed, other = (project / f"images/hello/{variant}.Dockerfile" for variant in ("gb10-debian", "cpu-debian"))
    right, before = committed.read_text(), other.stat().st_ino
    committed.write_text("FROM scratch\n")
    said = run("render")
    assert said.status == 0
    assert said.err == "wrote images/hello/gb10-debian.Dockerfile\n"
    assert committed.read_text() == right
    assert other.stat().st_ino == before  # write_text makes a new file
    assert run("render", "--check") == Said(0, "", "")


def test_render_check_tells_of_a_dockerfile_that_is_missing(run: Run, project: Path) -> None:
    (project / "images/hello/gb10-debian.Dockerfile").unlink()
    said = run("render", "--check")
    assert said.status == 13
    assert "+USER 10001:10001\n" in said.out


def test_explain_says_that_it_was_never_built(run: Run) -> None:
    said = run("build", "hello", "--explain")
    assert said.status == 0
    assert "hello for gb10 on debian: a build would make plan" in said.out
    assert "it was never built here" in said.out


def test_report_of_nothing_is_valid_json(run: Run) -> None:
    assert json.loads(run("report", "--json").out)["attempts"] == []


def test_testing_an_image_that_is_not_built_says_how_to_build_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_images.doctor.require", lambda *needs, **facts: None)
    said = run("test", "hello")
    assert said.status == 2
    assert "hint: build it: `./noxw -s build-hello`" in said.err


@pytest.mark.parametrize("verb", ["build", "reproduce", "test"])
def test_a_wrong_name_is_told_before_what_the_machine_lacks(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, verb: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    assert run(*verb.split(), "helo").status == 2
    assert run(*verb.split(), "hello").status == 14


def test_a_tag_is_no_plan_to_promote(run: Run) -> None:
    said = run("promote", "hello", "--registry", "127.0.0.1:1/you", "--plan", "0123456789ab-gzip")
    assert said.status == 2
    assert "hint: `--layers gzip` promotes its gzip form" in said.err


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["build", "reproduce"])
@pytest.mark.parametrize(
    ("size", "problem"), [("12", "has no unit"), ("lots", "is not a size"), ("0GiB", "is not a size")]
)
def test_a_memory_size_that_is_none_is_refused_before_anything_else(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, verb: str, size: str, problem: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # there is no engine either, and that is not what he hears first
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    said = run(verb, "hello", "--memory", size)
    assert said.status == 2
    assert f"error: `--memory {size}`: `{size}` {problem}\n" in said.err
    assert "write it like `--memory 8GiB`" in said.err


class QuietEngine:
    """An engine that answers, and would not build."""

    name = "podman"

    def prepare(self) -> None:
        pass

    def facts(self) -> EngineFacts:
        return EngineFacts(name="podman", version="5", builder="buildah", runtime="crun", cgroup="v2")


def test_more_memory_than_there_is_is_refused_before_anything_is_fetched(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("spark_images.doctor.require", lambda *needs, **facts: None)
    monkeypatch.setattr("spark_images.engine.choose_engine", lambda *name, **facts: QuietEngine())
    said = run("build", "hello", "--memory", "900TiB")
    assert said.status == 43
    assert "`--memory` asks for 900 TiB, but a build here can have at most" in said.err
    assert "hint: ask for at most `--memory " in said.err
    assert not (tmp_path / "cache/store").exists()
    assert not (tmp_path / "cache/records").exists()


# --- how it ends ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", errors(), ids=lambda kind: kind.__name__)
def test_an_error_is_shown_on_stderr_and_ends_with_its_status(
    run: Run, monkeypatch: pytest.MonkeyPatch, kind: type[SparkImagesError]
) -> None:
    def fail(options: argparse.Namespace) -> int:
        try:
            raise OSError("the disk is on fire")
        except OSError as err:
            raise kind("it `failed`", why=["a fact"], hint="do this") from err

    monkeypatch.setattr(machine, "_report", fail)
    assert run("report") == Said(
        kind.exit_status, "", "error: it `failed`\n  a fact\n  because: the disk is on fire\n\nhint: do this\n"
    )


def test_a_cause_that_the_error_has_told_is_not_told_again() -> None:
    error = SparkImagesError("templates/a.j2:3: `nix` is undefined")
    error.__cause__ = KeyError("another")
    assert "because: 'another'" in error.render()
    error.__cause__ = NameError("`nix` is undefined")
    assert "because" not in error.render()


def test_an_error_in_the_program_itself_is_not_hidden(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(options: argparse.Namespace) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(machine, "_report", fail)
    with pytest.raises(ZeroDivisionError):
        run("report")


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_verb_that_is_stopped_says_so_without_a_traceback(project: Path, ending: signal.Signals) -> None:
    targets = project / "images/targets.yaml"
    targets.unlink()
    os.mkfifo(targets)  # whoever reads it waits for what nobody writes
    with start(project, "plan", "hello") as running:
        writer = wait_for_reader(targets, running)
        out, err = stop(running, ending)
        os.close(writer)
    assert running.returncode == 130
    assert out == ""
    assert err == "\nerror: stopped\n\nhint: the same command again goes on from what is finished\n"


def stop(running: subprocess.Popen[str], ending: signal.Signals) -> tuple[str, str]:
    """Send the signal until it is seen: one that comes just before a read blocks is seen only with the next one."""
    for _ in range(12):
        running.send_signal(ending)
        try:
            return running.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            continue
    running.kill()
    raise AssertionError(f"{ending.name} does not stop it")


def wait_for_reader(fifo: Path, reader: subprocess.Popen[str]) -> int:
    """Waits until the process has the fifo open, and keeps it waiting for as long as the descriptor is open."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # ENXIO: nobody reads yet
            assert reader.poll() is None, reader.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.mark.parametrize("verb", ["plan hello", "report --json"], ids=["much", "little"])
def test_a_reader_that_goes_away_is_no_error_of_ours(project: Path, verb: str) -> None:
    with start(project, *verb.split()) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()  # as `… | head` does
        err = running.stderr.read()
    assert (running.returncode, err) == (141, "")


def test_the_module_is_a_program(project: Path) -> None:
    with start(project, "plan", "helo") as running:
        out, err = running.communicate(timeout=60)
    assert (running.returncode, out) == (2, "")
    assert err == "error: no image `helo` (did you mean `hello`?)\n\nhint: known: hallway, hello\n"


def test_a_cache_that_cannot_be_made_is_named_with_the_way_out(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_IMAGES_CACHE", "/dev/null/cache")
    said = run("fetch")
    assert said.status == FileError.exit_status
    assert said.err == (
        "error: `/dev/null/cache/store`: not a directory\n\n"
        "hint: `SPARK_IMAGES_CACHE` names another folder for the cache\n"
    )


def test_a_user_without_a_home_is_told_to_name_a_cache(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("SPARK_IMAGES_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)  # of nobody
    said = run("report")
    assert said.status == 2
    assert "`SPARK_IMAGES_CACHE`" in said.err
