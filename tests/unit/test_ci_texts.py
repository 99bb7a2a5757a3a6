"""What forges are told in their own words: logins, annotations, summaries."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from spark_images import cli
from spark_images.ci.annotate import annotated, pin_lines
from spark_images.ci.login import with_login
from spark_images.ci.summary import End, StepDone, Summary, markdown, plain
from spark_images.errors import BuildError, ConfigError, RegistryError, SparkImagesError

REGISTRY = {"SPARK_IMAGES_REGISTRY": "registry.example:5000/you"}
LOGIN = {"SPARK_IMAGES_REGISTRY_USER": "robot", "SPARK_IMAGES_REGISTRY_PASSWORD": "s3cret"}
TOKEN = {"SPARK_IMAGES_FORGE_TOKEN": "t0ken", "GITHUB_ACTOR": "somebody"}


def logins(env: dict[str, str]) -> dict[str, str]:
    """Host -> `user:password` of what a job's programs are given."""
    auths = json.loads(with_login(env).get("DOCKER_AUTH_CONFIG", "{}")).get("auths", {})
    return {host: base64.b64decode(entry["auth"]).decode() for host, entry in auths.items()}


def test_user_and_password_become_the_login_of_the_registry() -> None:
    assert logins({**REGISTRY, **LOGIN}) == {"registry.example:5000": "robot:s3cret"}


def test_no_program_is_given_a_secret_under_its_own_name() -> None:
    env = with_login({**REGISTRY, **LOGIN, **TOKEN, "PATH": "/bin"})
    assert set(env) == {"SPARK_IMAGES_REGISTRY", "DOCKER_AUTH_CONFIG", "GITHUB_ACTOR", "PATH"}


def test_other_logins_stay() -> None:
    there = {"DOCKER_AUTH_CONFIG": json.dumps({"auths": {"ghcr.io": {"auth": base64.b64encode(b"a:b").decode()}}})}
    assert logins({**REGISTRY, **LOGIN, **there}) == {"registry.example:5000": "robot:s3cret", "ghcr.io": "a:b"}


@pytest.mark.parametrize(
    ("server", "registry", "trusted"),
    [
        ("https://git.example", "git.example/you", True),
        ("http://127.0.0.1:3000", "127.0.0.1:3000/you", True),
        ("https://github.com", "ghcr.io/you", True),
        ("https://github.com", "docker.io/you", False),
        ("https://git.example", "ghcr.io/you", False),
        ("", "ghcr.io/you", False),
    ],
)
def test_the_jobs_token_goes_to_the_forges_own_registry_alone(server: str, registry: str, trusted: bool) -> None:
    found = logins({"SPARK_IMAGES_REGISTRY": registry, "GITHUB_SERVER_URL": server, **TOKEN})
    assert found == ({registry.partition("/")[0]: "somebody:t0ken"} if trusted else {})


def test_a_set_login_comes_before_the_token() -> None:
    env = {"SPARK_IMAGES_REGISTRY": "git.example/you", "GITHUB_SERVER_URL": "https://git.example", **LOGIN, **TOKEN}
    assert logins(env) == {"git.example": "robot:s3cret"}


def test_half_a_login_is_refused_without_showing_it() -> None:
    with pytest.raises(RegistryError) as caught:
        with_login({**REGISTRY, "SPARK_IMAGES_REGISTRY_PASSWORD": "s3cret"})
    assert "$SPARK_IMAGES_REGISTRY_USER is not" in caught.value.what
    assert "s3cret" not in caught.value.render()


def test_the_token_of_a_job_on_gitea_is_no_login_as_its_registry_takes_none() -> None:
    forge = {"SPARK_IMAGES_REGISTRY": "git.example/you", "GITHUB_SERVER_URL": "https://git.example", **TOKEN}
    assert logins(forge) == {"git.example": "somebody:t0ken"}
    assert logins({**forge, "GITEA_ACTIONS": "true"}) == {}


# --- annotations ------------------------------------------------------------------------------------------------------


def test_an_error_with_a_place_is_shown_there() -> None:
    err = ConfigError("/clone/pins.yaml:14: vllm.sha256: expected 64 hex digits, got `main`", hint="look\nthere, 100%")
    assert list(annotated(err, "/clone", {})) == [
        "::error file=pins.yaml,line=14::vllm.sha256: expected 64 hex digits, got `main`%0Ahint: look%0Athere, 100%25"
    ]


def test_every_place_of_an_error_is_shown() -> None:
    err = ConfigError("2 mistakes", why=["images/a/image.yaml:3: one", "pins.yaml:9: two"])
    assert [line.partition("::one")[0].partition("::two")[0] for line in annotated(err, "/clone", {})] == [
        "::error file=images/a/image.yaml,line=3",
        "::error file=pins.yaml,line=9",
    ]


@pytest.mark.parametrize(
    "text", ["no route to `hello 1.0` of pin `hello` is left", "hello: git https://example.org/hello"]
)
def test_a_pin_that_an_error_names_is_its_place(text: str) -> None:
    lines = pin_lines("schema: 1\nfirst:\n  kind: git\nhello: {kind: git}\n")
    (said,) = annotated(ConfigError("contents are lost", why=[text]), "/clone", lines)
    assert said == f"::error file=pins.yaml,line=4::{text}"


def test_an_error_without_a_place_is_shown_as_it_is() -> None:
    err = BuildError("build of `x` failed", why=["log: ~/.cache/log.txt line 3"])
    assert list(annotated(err, "/clone", {})) == ["::error::build of `x` failed%0Alog: ~/.cache/log.txt line 3"]


@pytest.mark.parametrize(
    ("env", "said"), [({"GITHUB_ACTIONS": "true"}, True), ({"GITEA_ACTIONS": "true"}, True), ({}, False)]
)
def test_verbs_annotate_where_a_forge_reads_them(
    env: dict[str, str],
    said: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("GITHUB_ACTIONS", "GITEA_ACTIONS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pins.yaml").write_text("schema: 1\nx: {kind: gitt}\n")

    assert cli.main(["plan", "hello"]) == ConfigError.exit_status
    assert ("::error file=pins.yaml,line=2::" in capsys.readouterr().err) is said


# --- summaries --------------------------------------------------------------------------------------------------------


def failed() -> Summary:
    error = SparkImagesError("a `test` failed", why=["a | b", "```"], hint="look").render()
    return Summary(
        title="build x",
        facts=[("plan", "0123")],
        verdicts=[("test", "red", "1 | 2 <b>")],
        pictures=[("9 GiB |  █", "    0 | ██")],
        steps=[
            StepDone(name="build", end=End.GOOD, seconds=62, tries=2),
            StepDone(name="verify", end=End.FAILED, seconds=3, error=error),
            StepDone(name="push", end=End.NOT_RUN),
        ],
    )


def test_a_summary_has_steps_verdicts_and_the_failing_check_with_its_hint() -> None:
    text = markdown(failed())
    assert "| build | ok at try 2 | 1:02 |" in text
    assert "| push | not run |  |" in text
    assert "| test | red | 1 \\| 2 &lt;b> |" in text
    assert "hint: look" in text


def test_what_a_program_said_cannot_end_its_block() -> None:
    block = markdown(failed()).partition("**verify** said:\n\n")[2]
    assert block.startswith("````text\n")
    assert "\n````\n" in block


def test_pictures_keep_their_columns() -> None:
    assert "\n```text\n9 GiB |  █\n    0 | ██\n```\n" in markdown(failed())


def test_the_log_says_the_same_in_columns() -> None:
    assert plain(failed()) == (
        "build x",
        "  plan  0123",
        "  test  red  1 | 2 <b>",
        "  build   ok at try 2  1:02",
        "  verify  failed       0:03",
        "  push    not run",
        "",
        "  9 GiB |  █",
        "      0 | ██",
    )
