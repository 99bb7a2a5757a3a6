"""All that is done here. What stands after `--` goes to the session's program;
`./noxw -s build-llamacpp -- --help` says what that takes, with an example.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nox
from nox.command import CommandFailed

ROOT = Path(__file__).parent
BIN = ROOT / ".venv/bin"
IMAGES = sorted(path.parent.name for path in ROOT.glob("images/*/image.yaml"))

# One session per verb and image; {image} is the folder's name.
IMAGE_SESSIONS = {
    "build": "Build {image}, or say that it is built already",
    "test": "Test every file in {image}, and the container at work",
    "audit": "Look into {image} without a GPU and without starting it",
    "smoke": "Try {image} on the GPU that is here",
    "verify": "Put {image} through all gates: audit, tests, GPU smoke",
    "push": "Push {image} under its plan_id, described and signed",
    "promote": "Move the readable tags to the pushed {image}",
    "rollback": "Move the readable tags back to the last good one",
    "list": "What of {image} a registry has: sizes, verdicts, tags",
    "prune-registry": "Say which pushed {image} no rule keeps",
    "plan": "Print what goes into {image}, and its plan_id",
    "bisect": "Find which version or which pins broke {image}",
    "reproduce": "Build {image} twice and compare the digests",
}

LOGGER = logging.getLogger("nox")
nox.options.default_venv_backend = "none"
nox.options.sessions = []
if logging.getLogger().level >= logging.DEBUG:  # without `nox -v` only errors: the verbs speak for themselves
    LOGGER.setLevel(logging.ERROR)


def ensure_environment(session: nox.Session) -> None:
    """Make .venv where nox itself comes from elsewhere."""
    if Path(sys.prefix) != ROOT / ".venv":
        session.run(str(ROOT / "noxw"), "--ensure", external=True, stderr=None)


def run(session: nox.Session, program: str, *arguments: str, quiet: bool = False) -> None:
    """Run a program of .venv; where it fails, its exit status becomes nox's own, and further sessions do not start."""
    ensure_environment(session)
    if LOGGER.level == logging.ERROR:  # the program says itself why it fails
        LOGGER.setLevel(logging.CRITICAL)
    try:
        session.run(
            str(BIN / program),
            *arguments,
            env={"SPARK_IMAGES_INSTALL": "1"},
            external=True,
            stdout=subprocess.DEVNULL if quiet else None,
            stderr=None,
            interrupt_timeout=None,  # an interrupted verb ends its engine's work in order, however long that takes
        )
    except CommandFailed as failed:
        status = getattr(failed, "return_code", None)  # nox before 2026.7 does not tell it
        if status is None:
            print(f"error: {program}: {failed}", file=sys.stderr)
        sys.exit(status or 1)


def verb(session: nox.Session, name: str, *arguments: str) -> None:
    """Run `python -m spark_images NAME …` with what stands after `--`."""
    run(session, "python", "-m", "spark_images", name, *arguments, *session.posargs)


def add_image_session(name: str, does: str, image: str) -> None:
    def of_image(session: nox.Session) -> None:
        verb(session, name, image)

    of_image.__doc__ = does.format(image=image)
    nox.session(name=f"{name}-{image}")(of_image)


for _image in IMAGES:
    for _name, _does in IMAGE_SESSIONS.items():
        add_image_session(_name, _does, _image)


for _path in sorted(ROOT.glob("images/*/recipes.yaml")):  # whether or not there is an image.yaml
    add_image_session(
        "recipe",
        "Known ways to serve models with {image}",
        _path.parent.name,
    )


for _path in sorted(ROOT.glob("images/*/profiles")):
    add_image_session(
        "units",
        "Compile single objects of {image} and check them",
        _path.parent.name,
    )
    add_image_session(
        "estimate",
        "What the whole compile of {image} would take",
        _path.parent.name,
    )


@nox.session(name="learn-vllm")
def learn_vllm(session: nox.Session) -> None:
    """Read what releases of vLLM know by name, for the recipes"""
    verb(session, "learn")


@nox.session
def pull(session: nox.Session) -> None:
    """Bring an image from a registry, check every blob, load it"""
    verb(session, "pull")


@nox.session
def explain(session: nox.Session) -> None:
    """What an image in a registry is, and how to make it again"""
    verb(session, "explain")


@nox.session(name="verify-reference")
def verify_reference(session: nox.Session) -> None:
    """Check signature, provenance, pins of an image"""
    verb(session, "verify-reference")


@nox.session
def fetch(session: nox.Session) -> None:
    """Put all inputs into the store: builds need no network then"""
    verb(session, "fetch")


@nox.session
def prune(session: nox.Session) -> None:
    """Remove inputs and images that no pin of this clone stands for"""
    verb(session, "prune")


@nox.session
def clean(session: nox.Session) -> None:
    """Remove what killed runs left behind"""
    verb(session, "clean")


@nox.session
def report(session: nox.Session) -> None:
    """What was built: time, memory, size, changes; pictures of it"""
    verb(session, "report")


@nox.session
def doctor(session: nox.Session) -> None:
    """What this machine lacks, what for, and how to get it"""
    verb(session, "doctor")


@nox.session
def render(session: nox.Session) -> None:
    """Write the Dockerfiles that templates and pins give"""
    verb(session, "render")


@nox.session
def lock(session: nox.Session) -> None:
    """Resolve requirements.lock and every lock of the pins anew"""
    if not session.posargs:
        options = (
            "--quiet --upgrade --universal --python-version 3.11 --fork-strategy fewest --generate-hashes --group dev"
        )
        said = ("--custom-compile-command", "./noxw -s lock")
        run(session, "uv", "pip", "compile", *options.split(), *said, "-o", "requirements.lock", "pyproject.toml")
    verb(session, "lock")


@nox.session(name="update-pins")
def update_pins(session: nox.Session) -> None:
    """Find newer versions of the pins, prove them, take them over"""
    verb(session, "update-pins")


@nox.session(name="check-pins")
def check_pins(session: nox.Session) -> None:
    """Ask every route of every pin whether it still serves"""
    verb(session, "check-pins")


@nox.session
def ci(session: nox.Session) -> None:
    """Write the workflows of both forges, install those of one"""
    verb(session, "ci")


@nox.session
def matrix(session: nox.Session) -> None:
    """What is to be built on which runner, as JSON"""
    verb(session, "matrix")


@nox.session(name="ci-job")
def ci_job(session: nox.Session) -> None:
    """Do one job of a workflow, as a runner of the forge does"""
    verb(session, "ci-job")


@nox.session
def bench(session: nox.Session) -> None:
    """Measure the pipeline's speed against what docs/measured.md promises"""
    verb(session, "bench")


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests of this repository (-- PYTEST OPTIONS)"""
    if os.geteuid() == 0:
        run(session, "python", "-m", "spark_images", "doctor", "--install", quiet=True)
    # Two at a time, a file each: tests often wait. The long ones come first, in the order of pyproject.toml.
    at_once = ("--numprocesses=2", "--dist=loadfile", "--no-loadscope-reorder")
    run(session, "python", "-m", "pytest", *at_once, *session.posargs)


@nox.session(name="e2e-gitea")
def e2e_gitea(session: nox.Session) -> None:
    """Run the workflows on a real Gitea here: docs/e2e-gitea.md"""
    run(session, "python", "-m", "pytest", "tests/e2e", "-v", "-x", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check the form of all files, and of generated ones (-- CHECKER…)"""
    ensure_environment(session)
    failed, commands = [], list(lint_commands())
    known = list(dict.fromkeys(command[0] for command in commands))
    if unknown := [name for name in session.posargs if name not in known]:
        session.error(f"no checker `{unknown[0]}`; there are {', '.join(known)}")
    for program, *arguments in commands:
        if program not in (session.posargs or known):
            continue
        path = BIN / program if (BIN / program).exists() else program
        try:
            session.run(str(path), *arguments, external=True, silent=True)
        except CommandFailed:
            failed.append(program)
    if failed:
        session.error(f"not in order: {', '.join(dict.fromkeys(failed))}")
    print("lint: all in order")


def lint_commands() -> Iterator[tuple[str, ...]]:
    """The checkers, each over all that it understands."""
    runner = (ROOT / "ci/runner/buildkit-certs", ROOT / "ci/runner/docker/entry")
    scripts = [path for path in (ROOT / "noxw", ROOT / ".ci/run", *runner, *ROOT.glob("scripts/*")) if path.is_file()]
    shebangs = {str(path): path.read_text().split("\n", 1)[0] for path in scripts}
    python = [path for path, shebang in shebangs.items() if "python" in shebang]
    yield ("ruff", "check", ".", *python)
    yield ("ruff", "format", "--check", ".", *python)
    yield ("mypy",)
    yield ("lint-imports", "--no-logo")
    yield ("hadolint", *map(str, (*ROOT.glob("images/*/*.Dockerfile"), ROOT / "ci/runner/docker/Dockerfile")))
    yield ("shellcheck", *(path for path in shebangs if path not in python))  # arm64 has it from the host
    yield ("yamllint", "--strict", ".")
    yield ("python", "-m", "spark_images", "render", "--check")
    yield ("python", "-m", "spark_images", "ci", "--check")
    workflows = sorted(map(str, ROOT.glob("ci/gi*/*.yaml")))
    yield ("zizmor", "--offline", "--no-progress", "--quiet", *workflows)
    if shutil.which("actionlint"):  # no package index has it
        yield ("actionlint", *workflows)


def offer_nearest(words: list[str]) -> None:
    """Say which session was perhaps meant, as nox only says that there is none of that name."""
    known, option = nox.registry.get(), ""
    for word in words:
        if word.startswith("-"):
            option = word
        elif option in ("-s", "-e", "--session", "--sessions") and word not in known:
            import difflib

            for nearest in difflib.get_close_matches(word, known, n=1):
                print(f"hint: did you mean `{nearest}`?", file=sys.stderr)


offer_nearest(sys.argv[1 : sys.argv.index("--") if "--" in sys.argv else None])
