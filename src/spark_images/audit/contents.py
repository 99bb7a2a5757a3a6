"""Checks of what lies around in an image: secrets, modes, leftovers. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from spark_images.audit.checks import Severity, check
from spark_images.audit.facts import Subject
from spark_images.imagechecks import LEFTOVER_NAMES, check_leftovers, check_setuid, check_world_writable

SECRET_NAME = re.compile(
    r"(?i)(?:^|_)(?:TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|CREDENTIALS?)$|^(?:HF|GITHUB|WANDB)_TOKEN"
)
# NAME=value in a command: not `-DNAME=value`, which is CMake's, nor a value that is a path, a variable or too short.
# The value is only looked at: within its quotes there may be another one.
ASSIGNED = re.compile(
    r"""(?<![\w$.{-])(?P<name>[A-Z][A-Z0-9_]*)=(?=(?P<value>'[^'$]{8,}'|"[^"$]{8,}"|[^\s$'";&|)]{8,}))"""
)
PATH = re.compile(r"(?:/[\w.+-]+){2,}/?")
EXAMPLE = re.compile(r"(?i)example|xxxx|0{12}|user:pass|(.)\1{9}")
# Forms that mean nothing else. Each with what it always begins with or holds: to find that is quick, and it is rare.
SECRET_FORMS = (
    ("a private key", ("PRIVATE KEY-----",), r"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----\s+[A-Za-z0-9+/=]{40}"),
    ("a token of GitHub", ("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), r"\bgh[pousr]_[A-Za-z0-9]{36,}\b"),
    ("a token of GitHub", ("github_pat_",), r"\bgithub_pat_[A-Za-z0-9_]{60,}\b"),
    ("a token of Hugging Face", ("hf_",), r"\bhf_[A-Za-z0-9]{34,}\b"),
    ("a key of AWS", ("AKIA", "ASIA"), r"\b(?:AKIA|ASIA)[A-Z2-7]{16}\b"),
    ("a token of GitLab", ("glpat-",), r"\bglpat-[A-Za-z0-9_-]{20,}\b"),
    ("a token of PyPI", ("pypi-AgEI",), r"\bpypi-AgEI[A-Za-z0-9_-]{50,}"),
    ("a token of Slack", ("xox",), r"\bxox[abprs]-[0-9]{8,}-[0-9A-Za-z-]{20,}"),
    ("a key of OpenAI", ("sk-proj-", "sk-ant-"), r"\bsk-(?:proj|ant)-[A-Za-z0-9_-]{40,}"),
    ("a key of NGC", ("nvapi-",), r"\bnvapi-[A-Za-z0-9_-]{50,}"),
    ("a login in an address", ("://",), r"\bhttps?://[\w.~-]{1,64}:[\w.~%!-]{16,100}@[a-z0-9.-]+\.[a-z]{2,}"),
)
SECRET_FILES = re.compile(
    r"/(?:\.netrc|\.pypirc|\.git-credentials|\.npmrc|id_(?:rsa|ed25519|ecdsa)|\.aws/credentials|\.docker/config\.json"
    r"|\.huggingface/token|huggingface/token|containers/auth\.json)$"
)


def secret_in(text: str) -> str:
    """What kind of secret the text holds, "" for none. What documentation uses as an example is none."""
    for name, signs, form in SECRET_FORMS:
        if any(sign in text for sign in signs):
            for match in re.finditer(form, text):
                if not EXAMPLE.search(match[0]):
                    return name
    return ""


def _assigns_secret(command: str) -> bool:
    """Whether a command of the history gives any variable of a secret's name a value, quoted or not."""
    for match in ASSIGNED.finditer(command):
        value = match["value"].strip("'\"")
        if SECRET_NAME.search(match["name"]) and not (PATH.fullmatch(value) or EXAMPLE.search(value)):
            return True
    return False


@check(
    "secret.in-file",
    Severity.FAIL,
    reason="whoever may pull the image has the secret, also from a layer below that deletes it",
    source="OCI image spec, layer.md",
)
def secret_in_file(subject: Subject) -> Iterator[str]:
    yield from (f"{where}: {kind}" for where, kind in subject.secrets)


@check(
    "secret.in-config",
    Severity.FAIL,
    reason="`docker history` and `docker inspect` show it to whoever may pull the image",
    source="OCI image spec, config.md",
)
def secret_in_config(subject: Subject) -> Iterator[str]:
    if subject.settings is None:
        return
    for name, value in (*subject.settings.env, *subject.settings.labels):
        if value and (kind := secret_in(value) or ("a secret by its name" if SECRET_NAME.search(name) else "")):
            yield f"{name}: {kind}"
    for number, command in enumerate(subject.settings.history):
        if kind := secret_in(command) or ("a secret by its name" if _assigns_secret(command) else ""):
            yield f"history, entry {number + 1}: {kind}"


# --- files ------------------------------------------------------------------------------------------------------------


@check(
    "files.setuid",
    Severity.FAIL,
    reason="a program that runs as its owner, or with capabilities, gives a user of the container root's rights",
    source="execve(2); capabilities(7); CIS Docker Benchmark 4.8",
)
def setuid(subject: Subject) -> Iterator[str]:
    yield from check_setuid(subject.tree) if subject.settings else ()


@check(
    "files.world-writable",
    Severity.FAIL,
    reason="whatever runs in the container can change what the next program there reads or runs",
    source="CIS Docker Benchmark",
)
def world_writable(subject: Subject) -> Iterator[str]:
    yield from check_world_writable(subject.tree)


@check(
    "files.leftover",
    Severity.WARN,
    reason="caches, lists, logs and trees of a build cost space, differ from build to build, and may hold secrets",
    source="two builds of one Dockerfile, compared",
)
def leftover(subject: Subject) -> Iterator[str]:
    if subject.settings:
        yield from check_leftovers(subject.tree, LEFTOVER_NAMES - {"__pycache__"})


@check(
    "files.stale-bytecode",
    Severity.WARN,
    reason="it holds the time of its source: no two builds are equal, and it is compiled again where layers lose times",
    source="PEP 552",
)
def stale_bytecode(subject: Subject) -> Iterator[str]:
    yield from subject.stale_bytecode
