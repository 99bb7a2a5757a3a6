"""All that is done here. What stands after `--` goes to the verb: see `./noxw -s build-llamacpp -- --help`."""

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
    "build": "Build {image}, or say that it is built already (-- --explain --engine docker --memory 48GiB --cold)",
    "test": "Test the built {image}: every file in it, and the container at work (-- --engine docker)",
    "audit": "Audit the built {image} without a GPU: GPU code, linking, Python, settings, secrets (-- --json FILE)",
    "smoke": "Try the built {image} on the GPU that is here: right numbers, right answers (-- --host --require-gpu)",
    "verify": "Put the built {image} through all gates: audit, tests, GPU smoke (-- --require-gpu)",
    "push": "Push {image} under its plan_id, described and signed (-- --registry HOST/NAME --key FILE --layers gzip)",
    "promote": "Move the readable tags to the pushed {image} once its gates are passed (-- --registry HOST/NAME)",
    "rollback": "Move the readable tags of {image} back to the last good one (-- --registry HOST/NAME)",
    "list": "What of {image} a registry has: pins, sizes, verdicts, tags (-- --registry HOST/NAME --json)",
    "prune-registry": "Say which pushed {image} no rule keeps (-- --registry HOST/NAME --keep 5 --delete)",
    "plan": "Print the plan of {image}: what goes in, and its plan_id",
    "bisect": "Find what broke {image} (-- --good REF --bad REF --check test, or a command; --stage source)",
    "reproduce": "Build {image} twice without any cache and compare the digests (-- --engine podman --engine docker)",
}

nox.options.default_venv_backend = "none"
nox.options.sessions = []
if logging.getLogger().level >= logging.DEBUG:  # without `nox -v` only errors: the verbs speak for themselves
    logging.getLogger("nox").setLevel(logging.ERROR)


def ensure_environment(session: nox.Session) -> None:
    """Make .venv where nox itself comes from elsewhere."""
    if Path(sys.prefix) != ROOT / ".venv":
        session.run(str(ROOT / "noxw"), "--ensure", external=True, stderr=None)


def run(session: nox.Session, program: str, *arguments: str, quiet: bool = False) -> None:
    """Run a program of .venv; where it fails, its exit status becomes nox's own, and further sessions do not start."""
    ensure_environment(session)
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
        sys.exit(getattr(failed, "return_code", None) or 1)  # nox before 2026.7 does not tell it


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
        "How to serve models with {image} (-- RECIPE --as docker|compose|kubernetes|systemd)",
        _path.parent.name,
    )


for _path in sorted(ROOT.glob("images/*/profiles")):
    add_image_session(
        "units",
        "Compile single objects of {image}'s real build and check them; no image (-- '*cache_kernels*' --twice)",
        _path.parent.name,
    )
    add_image_session(
        "estimate",
        "What the whole compile of {image} would take (-- --cores 20 --memory 64GiB --all-kernels)",
        _path.parent.name,
    )


@nox.session(name="learn-vllm")
def learn_vllm(session: nox.Session) -> None:
    """Read what new releases of vLLM know by name, against which recipes are checked (-- RELEASE… --sdists FOLDER)"""
    verb(session, "learn")


@nox.session
def pull(session: nox.Session) -> None:
    """Pull an image by digest, verify every blob, load it into the engine (-- HOST/NAME/IMAGE@sha256:… --verify)"""
    verb(session, "pull")


@nox.session
def explain(session: nox.Session) -> None:
    """Say from a reference alone what is inside, how it was made and how to make it again (-- HOST/NAME/IMAGE:TAG)"""
    verb(session, "explain")


@nox.session(name="verify-reference")
def verify_reference(session: nox.Session) -> None:
    """Check signature, provenance and pins of an image in a registry (-- HOST/NAME/IMAGE:TAG --key FILE)"""
    verb(session, "verify-reference")


@nox.session
def fetch(session: nox.Session) -> None:
    """Put what images are made of into the store; builds then need no network (-- IMAGE… --all)"""
    verb(session, "fetch")


@nox.session
def prune(session: nox.Session) -> None:
    """Empty the store of what no pin of this clone names (-- --dry-run)"""
    verb(session, "prune")


@nox.session
def clean(session: nox.Session) -> None:
    """Remove containers, builders and folders that killed runs left behind"""
    verb(session, "clean")


@nox.session
def report(session: nox.Session) -> None:
    """What was built when, how long it took, how large it is (-- --json); what one held (-- memory RECORD|IMAGE)"""
    verb(session, "report")


@nox.session
def doctor(session: nox.Session) -> None:
    """Check this machine: what is missing, what it is for, how to get it (-- --install)"""
    verb(session, "doctor")


@nox.session
def render(session: nox.Session) -> None:
    """Write the Dockerfiles that templates and pins give (-- --check)"""
    verb(session, "render")


@nox.session
def lock(session: nox.Session) -> None:
    """Resolve every lock anew: requirements.lock, and those of the pins (-- PIN…: these only)"""
    if not session.posargs:
        options = (
            "--quiet --upgrade --universal --python-version 3.11 --fork-strategy fewest --generate-hashes --group dev"
        )
        said = ("--custom-compile-command", "./noxw -s lock")
        run(session, "uv", "pip", "compile", *options.split(), *said, "-o", "requirements.lock", "pyproject.toml")
    verb(session, "lock")


@nox.session(name="update-pins")
def update_pins(session: nox.Session) -> None:
    """Find newer versions of the pins, prove them, take them over (-- --verify --apply|--branch NAME)"""
    verb(session, "update-pins")


@nox.session(name="check-pins")
def check_pins(session: nox.Session) -> None:
    """Ask every route of every pin whether it still serves the pinned content; for cron (-- --strict)"""
    verb(session, "check-pins")


@nox.session
def ci(session: nox.Session) -> None:
    """Write the workflows of both forges into ci/; install those of one (-- --forge gitea|github --check --force)"""
    verb(session, "ci")


@nox.session
def matrix(session: nox.Session) -> None:
    """What is to be built on which runner, as JSON for a forge's matrix (-- --registry HOST/NAME --since COMMIT)"""
    verb(session, "matrix")


@nox.session(name="ci-job")
def ci_job(session: nox.Session) -> None:
    """One job of a workflow (-- build|audit|gpu IMAGE --target T; -- checks|check-pins|update-pins|bisect|rollback)"""
    verb(session, "ci-job")


@nox.session
def bench(session: nox.Session) -> None:
    """Measure the pipeline's own speed against what README.md promises (-- BENCH…)"""
    verb(session, "bench")


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests; a small image goes through every stage on each engine that answers (-- PYTEST OPTIONS)"""
    if os.geteuid() == 0:
        run(session, "python", "-m", "spark_images", "doctor", "--install", quiet=True)
    run(session, "python", "-m", "pytest", *session.posargs)


@nox.session(name="e2e-gitea")
def e2e_gitea(session: nox.Session) -> None:
    """Run the workflows on a real Gitea on this machine, from push to promotion; see docs/e2e-gitea.md (-- -s)"""
    run(session, "python", "-m", "pytest", "tests/e2e", "-v", "-x", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check the form of everything that is written here, and that generated files are current"""
    ensure_environment(session)
    failed = []
    for program, *arguments in lint_commands():
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
