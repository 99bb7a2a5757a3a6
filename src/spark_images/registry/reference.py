"""Names in a registry: HOST/NAME:TAG and HOST/NAME@sha256:… as values. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from spark_images.errors import UsageError

_HOST = (
    r"(?:localhost(?::\d+)?|\[[0-9a-fA-F:]+\](?::\d+)?|[A-Za-z0-9-]+:\d+|[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+(?::\d+)?)"
)
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_TAG = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
NAME = re.compile(_PART)


@dataclass(frozen=True, kw_only=True)
class Repository:
    """Where the manifests and blobs of one image lie."""

    host: str  # "ghcr.io", "127.0.0.1:5000"
    name: str  # "you/llamacpp"

    def __str__(self) -> str:
        return f"{self.host}/{self.name}"

    def at(self, reference: str) -> str:
        """The whole reference of a tag or a digest in it."""
        return f"{self}{'@' if DIGEST.fullmatch(reference) else ':'}{reference}"


@dataclass(frozen=True, kw_only=True)
class Reference:
    """One image or artifact: a repository, and a tag or a digest."""

    repository: Repository
    tag: str = ""
    digest: str = ""  # "sha256:…"; where there is one, it decides

    def __str__(self) -> str:
        return self.repository.at(self.wanted)

    @property
    def wanted(self) -> str:
        """What a registry is asked for: the digest, else the tag."""
        return self.digest or self.tag


def parse_registry(text: str, image: str) -> Repository:
    """The repository of an image under `HOST[:PORT][/NAME…]`; UsageError for anything else, schemes included."""
    if not re.fullmatch(f"{_HOST}(?:/{_PART})*", text):
        raise UsageError(
            f"`{text}` is not HOST/NAME in lower case",
            hint="name the registry without a scheme, e.g. `ghcr.io/you` or `127.0.0.1:5000/you`",
        )
    host, _, path = text.partition("/")
    return Repository(host=host, name=f"{path}/{image}" if path else image)


def parse_reference(text: str, *, digest_needed: bool = False) -> Reference:
    """`HOST/NAME:TAG` or `HOST/NAME@sha256:…`, or both; UsageError for anything else.

    digest_needed: a tag alone will not do, as it may be another image tomorrow.
    """
    found = re.fullmatch(f"({_HOST})/({_PART}(?:/{_PART})*)(?::({_TAG}))?(?:@({DIGEST.pattern}))?", text)
    if not found or not (found[4] or (found[3] and not digest_needed)):
        raise UsageError(
            f"`{text}` is not HOST/NAME{'' if digest_needed else ':TAG or HOST/NAME'}@sha256:…",
            hint="`push` and `list` print it: a digest never moves",
        )
    repository = Repository(host=found[1], name=found[2])
    return Reference(repository=repository, tag=found[3] or "", digest=found[4] or "")


def tag_of(*parts: str) -> str:
    """A tag of these words, joined by `-`; what a tag cannot hold (the `+` of local versions) becomes `_`."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", "-".join(parts)).lstrip(".-")[:128]
