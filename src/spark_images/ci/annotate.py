"""Errors as a forge's annotations: `::error file=pins.yaml,line=14::…` puts one at that line of a change. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from spark_images.errors import SparkImagesError

# A file of the project, as our errors begin: `pins.yaml:14: vllm.sha256: …`; a lock or an image.yaml without a line.
_FILE = re.compile(r"(?P<file>[^\s:`]+\.(?:yaml|lock|j2|Dockerfile))(?::(?P<line>\d+))?: (?P<text>.+)", re.DOTALL)
_PIN = re.compile(r"pin `([\w.-]+)`|^([\w.-]+): ")  # as messages name one: "of pin `llama-cpp`", "llama-cpp: its route"


def wants_annotations(env: Mapping[str, str]) -> bool:
    """Whether a forge's runner reads our output."""
    return env.get("GITHUB_ACTIONS") == "true" or env.get("GITEA_ACTIONS") == "true"


def pin_lines(pins: str) -> dict[str, int]:
    """Where each pin begins in the text of a pins.yaml, however wrong the rest of it is."""
    lines = enumerate(pins.splitlines(), start=1)
    return {found[1]: number for number, line in lines if (found := re.match(r"([A-Za-z0-9][\w.-]*):", line))}


def annotated(err: SparkImagesError, root: str, pins: Mapping[str, int]) -> Iterator[str]:
    """The lines that tell a runner of an error: one for each place that it names, else one without a place.

    A pin that is named is a place as well. root: the project's folder, absolute; files are named relative to it. pins:
    name -> line in pins.yaml.
    """
    hint = f"\nhint: {err.hint}" if err.hint else ""
    found = [place for text in (err.what, *err.why) if (place := _place(text, root, pins))]
    for file, line, text in found:
        at = f",line={line}" if line else ""
        yield f"::error file={_property(file)}{at}::{_data(text + hint)}"
    if not found:
        yield f"::error::{_data(chr(10).join((err.what, *err.why)) + hint)}"


def _place(text: str, root: str, pins: Mapping[str, int]) -> tuple[str, str, str] | None:
    """File, line and what is said of it."""
    if found := _FILE.fullmatch(text):
        return _relative(found["file"], root), found["line"] or "", found["text"]
    for named in _PIN.finditer(text):
        if line := pins.get(named[1] or named[2]):
            return "pins.yaml", str(line), text
    return None


def _relative(file: str, root: str) -> str:
    return file.removeprefix(f"{root}/")


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
