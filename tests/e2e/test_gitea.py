"""The workflows on a real Gitea: it schedules them, a runner of ours executes them, its registry gets the images.

One story: a first push, a push that breaks the image, its revert, a scheduled update. Each test tells what has to be
true after one of them; a test that is run alone brings about what comes before it.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from forge import USER, Forge, Repository, running_forge
from pipeline import make_pipeline
from registries import tool
from small_runner import SmallRunner, wait_until
from toy import Clone, Upstream

from spark_images.cache import Cache
from spark_images.engine.podman import PodmanEngine

LABEL = "this-machine"
JOB = "hello for here on debian"
RUN_WITHIN_S = 1800  # one run of a workflow: each of its jobs makes a Python environment before all else
TEST_OF_THE_GREETING = """

def test_the_program_greets(inside: Host) -> None:
    assert inside.run("hello world").stdout.startswith("hello ")
"""

pytestmark = pytest.mark.timeout(2 * RUN_WITHIN_S)


@dataclass(frozen=True)
class Place:
    """A Gitea with the image's upstream and the pushed repository, and two runners that wait for work."""

    forge: Forge
    upstream: Upstream
    repository: Repository
    clone: Clone
    registry_token: str  # that the jobs push with
    public_key: Path
    runners: tuple[SmallRunner, ...]
    folder: Path

    @property
    def image(self) -> str:
        return f"{self.forge.server.host}/{USER}/hello"

    def digest_of(self, tag: str) -> str:
        """What a tag points at, "" where it is not there; as any other program sees it."""
        asked = ["skopeo", "inspect", "--tls-verify=false", "--format", "{{.Digest}}", f"docker://{self.image}:{tag}"]
        return subprocess.run(asked, text=True, capture_output=True).stdout.strip()

    def tags(self) -> set[str]:
        listed = self.forge.ask("GET", f"/packages/{USER}?type=container&limit=50")
        return {one["version"] for one in listed if one["name"] == "hello"}


@dataclass(frozen=True)
class Ran:
    """A run of a workflow that is over. conclusions, steps and logs: by the names of its jobs."""

    commit: str
    conclusions: dict[str, str]
    steps: dict[str, dict[str, str]]
    logs: dict[str, str]


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    missing = [name for name in ("gitea", "act", "podman", "skopeo", "openssl") if not tool(name)]
    assert not missing, f"docs/e2e-gitea.md says where to get {', '.join(missing)}"
    with ExitStack() as stack:
        # pytest's folders are for one user alone, and Gitea runs as another.
        top = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        top.chmod(0o755)
        cache = Cache(top / "cache")
        stack.callback(clean_up, cache)
        forge = stack.enter_context(running_forge(top / "gitea"))
        project = make_pipeline(top, cache.root).project
        upstream = Upstream(forge.make_repository("hello"), top / "upstream", project / "source")
        repository = forge.make_repository("images")
        environment = runner_environment(top)
        clone = Clone(repository, top / "clone", environment)
        clone.take(project)
        tests = clone.folder / "images/hello/tests/test_hello.py"
        tests.write_text(tests.read_text() + TEST_OF_THE_GREETING)
        registry_token = settle(repository, top)
        runners = tuple(
            SmallRunner(
                server=forge.url, registration=repository.registration(), name=name, labels=[LABEL],
                folder=top / name, act=str(tool("act")), environment=environment,
            )
            for name in ("first", "second")
        )  # fmt: skip
        for runner in runners:
            runner.start()
            stack.callback(runner.stop)
        yield Place(forge, upstream, repository, clone, registry_token, top / "signing.pub", runners, top)


def clean_up(cache: Cache) -> None:
    """Take out of podman what the jobs have put in."""
    for plan in cache.images.glob("*"):
        subprocess.run(["podman", "rmi", f"localhost/spark-images/hello:{plan.name[:12]}"], capture_output=True)
    PodmanEngine(cache).drop_caches()


def runner_environment(top: Path) -> dict[str, str]:
    """What the jobs start with: this machine's programs and settings, but nobody's logins, identity or cache."""
    (top / "logins").mkdir()
    (top / "logins/config.json").write_text("{}")  # podman wants a file where DOCKER_CONFIG is set
    mine = {name: value for name, value in os.environ.items() if not name.startswith(("GITHUB_", "GITEA_", "GIT_"))}
    return {
        **mine, "SPARK_IMAGES_CACHE": str(top / "cache"), "SPARK_IMAGES_ENGINE": "podman", "NO_COLOR": "1",
        "TERM": "dumb", "DOCKER_CONFIG": str(top / "logins"), "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_TERMINAL_PROMPT": "0",
    }  # fmt: skip


def settle(repository: Repository, top: Path) -> str:
    """Give the repository the secrets and variables that its workflows read; the token among them.

    The key that signatures are checked by becomes signing.pub.
    """
    new = ["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]
    key = subprocess.run(new, text=True, capture_output=True, check=True).stdout
    public = ["openssl", "pkey", "-pubout", "-out", str(top / "signing.pub")]
    subprocess.run(public, input=key, text=True, check=True)
    forge = repository.forge
    asked = {"name": "packages", "scopes": ["write:package"]}
    token = str(forge.ask("POST", f"/users/{USER}/tokens", asked, by_password=True)["sha1"])
    repository.settle(
        secrets={
            "SPARK_IMAGES_REGISTRY_PASSWORD": token,
            "SPARK_IMAGES_SIGNING_KEY": key,
        },
        variables={
            "SPARK_IMAGES_REGISTRY": f"{forge.server.host}/{USER}", "SPARK_IMAGES_REGISTRY_USER": USER,
            "SPARK_IMAGES_CHECK_RUNNER": LABEL,
            "SPARK_IMAGES_RUNNER_ARM64": LABEL, "SPARK_IMAGES_RUNNER_AMD64": LABEL,
            "SPARK_IMAGES_UPDATE_OPTIONS": "hello --verify",
        },
    )  # fmt: skip
    return token


def ran(place: Place, commit: str, event: str) -> Ran:
    """Wait until the one workflow that an event starts has run."""

    def jobs_when_over() -> list[dict[str, Any]]:
        for runner in place.runners:
            runner.check()
        return place.repository.jobs_when_over(commit, event)

    jobs = wait_until(f"the run for {event} of {commit[:12]}", jobs_when_over, within_s=RUN_WITHIN_S)
    conclusions = {job["name"]: job["conclusion"] for job in jobs}
    steps = {job["name"]: place.repository.steps(job) for job in jobs}
    logs = {job["name"]: place.repository.log(job) for job in jobs if job["conclusion"] != "skipped"}
    print(f"\n{event} {commit[:12]}: {conclusions}")
    for name, log in logs.items():
        print(*(f"  {name} | {line}" for line in log.splitlines()), sep="\n")
    return Ran(commit, conclusions, steps, logs)


@pytest.fixture(scope="module")
def first(place: Place) -> Ran:
    """The first push: everything as it should be."""
    place.upstream.release("v1.0", {})
    place.clone.pin(place.upstream.pin("v1.0"))
    place.clone.run("python", "-m", "spark_images", "ci", "--forge", "gitea")
    return ran(place, place.clone.push("the first state"), "push")


@pytest.fixture(scope="module")
def digest(place: Place, first: Ran) -> str:
    """What the target's tag points at after the first push."""
    return place.digest_of("here")


@pytest.fixture(scope="module")
def broken(place: Place, digest: str) -> Ran:
    """A push that takes a release which does not greet."""
    source = (place.upstream.folder / "hello.c").read_text()
    place.upstream.release("v1.1", {"hello.c": source.replace('"hello %s', '"goodbye %s')})
    place.clone.pin(place.upstream.pin("v1.1"))
    return ran(place, place.clone.push("take v1.1"), "push")


@pytest.fixture(scope="module")
def mended(place: Place, broken: Ran) -> Ran:
    """The push that goes back to the first release."""
    place.clone.revert()
    return ran(place, place.clone.push("back to v1.0"), "push")


@pytest.fixture(scope="module")
def scheduled(place: Place, mended: Ran) -> Ran:
    """The schedule's hour, after upstream has made a good release."""
    source = (place.upstream.folder / "hello.c").read_text()
    place.upstream.release("v1.2", {"hello.c": source.replace('"goodbye %s', '"hello again, %s')})
    assert place.repository.let_the_hour_come() == 1
    return ran(place, mended.commit, "schedule")


def test_a_push_builds_verifies_pushes_and_promotes(place: Place, first: Ran) -> None:
    assert first.conclusions == {JOB: "success"}, first.logs
    assert place.repository.status(first.commit) == {"": "success", f"main / {JOB} (push)": "success"}
    assert set(first.steps[JOB].values()) == {"success"}
    assert {"here", "v1.0-here"} <= place.tags()


@pytest.mark.parametrize("by", ["tag", "digest"])
def test_the_image_comes_back_from_the_registry_and_runs(place: Place, digest: str, by: str) -> None:
    assert digest.startswith("sha256:")
    reference = f"{place.image}:here" if by == "tag" else f"{place.image}@{digest}"
    env = {**os.environ, **PodmanEngine(Cache(place.folder / "cache")).env}
    with tempfile.TemporaryDirectory(dir="/tmp") as storage:  # podman takes no runroot of more than 50 characters
        podman = ["podman", "--root", f"{storage}/root", "--runroot", f"{storage}/run", "--storage-driver", "vfs"]
        subprocess.run([*podman, "pull", "--quiet", "--tls-verify=false", reference], env=env, check=True)
        said = subprocess.check_output([*podman, "run", "--rm", "--network", "none", reference], env=env, text=True)
    assert said == 'hello world, version v1.0, a "quoted" $HOME\n'


def test_the_image_is_signed_and_its_provenance_holds(place: Place, digest: str) -> None:
    reference = f"{place.image}@{digest}"
    words = ["-m", "spark_images", "verify-reference", reference, "--key", str(place.public_key)]
    assert place.clone.run("python", *words).strip() == reference


def test_the_log_on_gitea_is_the_jobs_own_and_holds_no_secret(place: Place, first: Ran, digest: str) -> None:
    log = first.logs[JOB]
    assert digest in log
    assert "PRIVATE KEY" not in log
    assert place.registry_token not in log


def test_a_failing_image_test_is_red_on_the_commit_and_promotes_nothing(place: Place, broken: Ran, digest: str) -> None:
    assert broken.conclusions == {JOB: "failure"}
    assert list(broken.steps[JOB].values()) == ["success", "failure"]  # check out; build, verify, push, promote
    assert "test_the_program_greets" in broken.logs[JOB]
    assert place.repository.status(broken.commit) == {"": "failure", f"main / {JOB} (push)": "failure"}
    assert place.digest_of("here") == digest
    assert "v1.1-here" not in place.tags()


def test_what_the_registry_has_is_not_built_again(place: Place, mended: Ran, digest: str) -> None:
    assert mended.conclusions == {JOB: "success"}, mended.logs
    assert "compile: begins" not in mended.logs[JOB]
    assert place.digest_of("here") == digest


def test_a_scheduled_update_opens_a_branch(place: Place, scheduled: Ran) -> None:
    assert set(scheduled.conclusions.values()) == {"success"}, scheduled.logs
    branches = place.forge.ask("GET", f"{place.repository.path}/branches")
    (opened,) = [one["name"] for one in branches if one["name"] != "main"]
    assert opened.startswith("updates/")
    pins = place.forge.ask("GET", f"{place.repository.path}/raw/pins.yaml?ref={opened}")
    assert "version: v1.2" in pins
    assert "version: v1.0" in (place.clone.folder / "pins.yaml").read_text()
