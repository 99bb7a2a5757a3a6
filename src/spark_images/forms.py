"""What a value in a project's files must look like: strict character sets, in one place.

Names, versions, addresses and paths end up in command lines, Dockerfiles and scripts. None of these forms lets a line
break or another control character through. But for text that people read and for environment values, which the
renderer quotes, none lets a blank, a quote, `$`, a backtick or a backslash through, nor a dash in front where it could
be taken for an option.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Generic, TypeVar

T = TypeVar("T")

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Form(Generic[T]):
    """expected: the words of a message. read: text to value, None where it has another form.

    blank: stands for a wrong value until its file has been read to the end. choices: for the nearest match.
    """

    expected: str
    read: Callable[[str], T | None]
    blank: T
    choices: tuple[str, ...] = ()


def matching(expected: str, pattern: str, *, most: int = 200) -> Form[str]:
    """Texts that the pattern matches as a whole, of at most so many characters."""
    return Form(expected, lambda text: text if len(text) <= most and re.fullmatch(pattern, text) else None, "")


def one_of(*choices: str, what: str = "one of") -> Form[str]:
    """One of a few words."""
    words = ", ".join(f"`{choice}`" for choice in choices) or "(there is none)"
    return Form(f"{what} {words}", lambda text: text if text in choices else None, "", choices)


def schema(number: int) -> Form[int]:
    """The version of a file's structure; another one needs another version of this program."""
    return Form(
        f"{number}, the schema that this version of spark-images reads",
        lambda text: number if text == str(number) else None,
        number,
    )


def _time(text: str) -> datetime | None:
    if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(Z|[+-][0-9]{2}:[0-9]{2})", text):
        return None
    try:
        time = datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return time if time >= EPOCH else None


def _date(text: str) -> date | None:
    try:
        return date.fromisoformat(text) if re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text) else None
    except ValueError:
        return None


def _gib(text: str) -> float | None:
    if not re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,3})?", text):
        return None
    return float(text) or None


def _port(text: str) -> str | None:
    number, _, protocol = text.partition("/")
    fits = re.fullmatch(r"[1-9][0-9]{0,4}", number) and int(number) < 65536 and protocol in ("tcp", "udp")
    return text if fits else None


def _relative(text: str) -> str | None:
    parts = text.split("/")
    fits = re.fullmatch(r"[A-Za-z0-9_.+][A-Za-z0-9_.+~%/-]*", text)
    return text if fits and all(part not in ("", ".", "..") for part in parts) and len(text) <= 300 else None


def _release(text: str) -> str | None:
    from packaging.version import InvalidVersion, Version

    try:
        Version(text)
    except InvalidVersion:
        return None
    return VERSION.read(text)


def _requirement(text: str) -> str | None:
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        return text if text.isprintable() and len(text) <= 300 and not Requirement(text).url else None
    except InvalidRequirement:
        return None


_ADDRESS = r"(?:https?://[A-Za-z0-9][A-Za-z0-9.-]*(?::[0-9]{1,5})?|file://)/"
_ADDRESS_CHARACTER = r"[A-Za-z0-9_.~+%=:/-]"
_VERSION = r"[0-9A-Za-z][0-9A-Za-z._+-]*"
_PROJECT = r"[a-z0-9]+(?:-[a-z0-9]+)*"

NAME = matching("a name of lower-case letters, digits and hyphens", r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*", most=63)
TEXT = Form(
    'a line of text without `"`, `$`, `\\` and backticks',
    lambda text: text if 0 < len(text) <= 500 and text.isprintable() and not set('"$\\`').intersection(text) else None,
    "",
)
VERSION = matching("a version of letters, digits and `._+-`", _VERSION, most=100)
SHA256 = matching("64 hex digits", r"[0-9a-f]{64}")
DIGEST = matching("`sha256:` and 64 hex digits", r"sha256:[0-9a-f]{64}")
COMMIT = matching("40 hex digits", r"[0-9a-f]{40}")
URL = matching("an address (https://, http:// or file:///)", f"{_ADDRESS}{_ADDRESS_CHARACTER}+", most=500)
RELATIVE_PATH = Form("a relative path of letters, digits and `_.+~%/-`, without `..`", _relative, "")
ABSOLUTE_PATH = matching("an absolute path", r"/|(?:/[A-Za-z0-9_+-][A-Za-z0-9_.+-]*)+")
PATH_PATTERN = matching("a path from its beginning, in which `*` stands for anything", r"[/*][A-Za-z0-9_.+*/-]*")
FILE_NAME = matching("a file name", r"[A-Za-z0-9_][A-Za-z0-9_.-]*", most=100)
TIME = Form("a time with its zone, as `2026-11-01T00:00:00Z`", _time, EPOCH)
DATE = Form("a date, as `2026-12-01`", _date, EPOCH.date())
SIZE: Form[int] = Form("a number of bytes", lambda text: int(text) if re.fullmatch(r"[0-9]{1,15}", text) else None, 0)
TRUTH: Form[bool] = Form(
    "`true` or `false`", lambda text: {"true": True, "false": False}.get(text), False, ("true", "false")
)
PLATFORM = one_of("linux/amd64", "linux/arm64")
ARCH = one_of("amd64", "arm64")

IMAGE_REF = matching(
    "an image as `registry.example/name:tag`",
    r"[a-z0-9][a-z0-9.-]*(?:\.[a-z]+|:[0-9]{1,5})(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)+(?::[A-Za-z0-9_][A-Za-z0-9._-]{0,127})",
)
FOLLOWED_REFS = matching("refs to follow, as `tags/v*`", r"(?:tags|heads)/[A-Za-z0-9._*+/-]+")

PROJECT = matching("a project's name as an index normalises it (lower case, hyphens)", _PROJECT, most=100)
PROJECT_PATTERN = matching("a project's name, or a pattern of it with `*`", r"[a-z0-9*]+(?:-[a-z0-9*]+)*", most=100)
PROJECT_START = matching("a project's name, or the beginning of one and `*`", rf"{_PROJECT}(?:-?\*)?|\*", most=100)
PYTHON = matching("a version of Python, as `3.11`", r"3\.[0-9]{1,2}")
PACKAGE = matching("a project at an exact version, as `numpy==2.4.6`", f"{_PROJECT}=={_VERSION}", most=200)
RELEASE = Form("a version of a Python project", _release, "")
REQUIREMENT = Form("what a distribution asks for, as `numpy>=2`, also with a marker", _requirement, "")
WHEEL_FILE = matching("a wheel's file name", r"[A-Za-z0-9_][A-Za-z0-9_.+-]*\.whl")
SDIST_FILE = matching("an sdist's file name", r"[A-Za-z0-9_][A-Za-z0-9_.+-]*\.(?:tar\.gz|zip)")
WHEEL_PLATFORM = one_of("linux/amd64", "linux/arm64", "any")

SUITE = matching("a suite of Debian", r"[a-z][a-z0-9-]*", most=63)
DEB_PACKAGE = matching("a Debian package's name", r"[a-z0-9][a-z0-9.+-]+", most=100)
DEB_VERSION = matching("a Debian version", r"[0-9][0-9A-Za-z.+:~-]*", most=100)
DEB_ARCH = one_of("amd64", "arm64", "all")
DEB_ARCHIVE = one_of("debian", "debian-security")
DEB_ROUTE = matching(
    "an address with {archive} and {path} in it, and {snapshot} where it is wanted",
    rf"{_ADDRESS}(?:{_ADDRESS_CHARACTER}|\{{(?:archive|snapshot)\}})*\{{path\}}",
    most=500,
)

COMPUTE_CAPABILITY = matching("a compute capability, as `12.1a`", r"[0-9]{1,2}\.[0-9][af]?")
CUDA_ARCHITECTURE = matching(
    "CMake's name of a CUDA architecture, as `121a-real`", r"[0-9]{2,3}[af]?(?:-real|-virtual)?"
)
DRIVER = matching("a branch of NVIDIA's driver, as `580`", r"[1-9][0-9]{2}")
CPU_ARCHITECTURE = matching("a value of GCC's -march", r"[a-z][a-z0-9.+_-]*", most=100)

LICENSES = matching("an SPDX expression", r"[A-Za-z0-9.+()-]+(?: [A-Za-z0-9.+()-]+)*")
USER = matching("numbers of user and group, as `10001:10001`", r"(?:0|[1-9][0-9]{0,8}):(?:0|[1-9][0-9]{0,8})")
ENV_NAME = matching("a variable's name", r"[A-Za-z_][A-Za-z0-9_]*", most=100)
ENV_VALUE = Form(
    "a line of text that is not empty",  # render.quoted makes a Dockerfile word of whatever it is
    lambda text: text if 0 < len(text) <= 1000 and text.isprintable() else None,
    "",
)
WORD = matching("a word of a command: letters, digits and `_./:=,+@%-`", r"[A-Za-z0-9_./:=,+@%-]+")
ARGUMENT_NAME = matching("a name of lower-case letters, digits and `_`", r"[a-z][a-z0-9_]*", most=63)
ARGUMENT = matching(
    "a word of letters, digits and `_./:=,+@%-` that starts with no dash", r"[A-Za-z0-9_./:=,+@%][A-Za-z0-9_./:=,+@%-]*"
)
PORT = Form("a port, as `8080/tcp`", _port, "")
GIB = Form("a number of GiB, as `0.75`", _gib, 0.0)
STOP_SIGNAL = one_of("SIGTERM", "SIGINT", "SIGQUIT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGKILL")
