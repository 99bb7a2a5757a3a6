"""What a registry's answers say beyond their status: error codes, words, and when to come again."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import requests


class Missing(Exception):
    """The registry does not have what was asked for. code: its own word for it, "" where it has none."""

    def __init__(self, code: str = "") -> None:
        super().__init__(code)
        self.code = code


def said_by(response: requests.Response) -> tuple[str, str]:
    """Code and words of a registry's error answer, in one short line; ("", "") where it says nothing."""
    if response.request.method == "HEAD":
        return "", ""
    try:
        errors = response.json()["errors"]
        code = str(errors[0].get("code", ""))
        parts = [code, str(errors[0].get("message") or ""), str(errors[0].get("detail") or "")]
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        if "html" in response.headers.get("Content-Type", ""):
            return "", ""  # a proxy's page
        return "", _short(response.text)
    return code, _short(": ".join(part for part in parts if part and part not in ("{}", "None")))


def _short(text: str) -> str:
    """One line without the queries of addresses: they may hold a signature or a token.

    Of a long one the middle goes: what a registry's storage says of a full disk stands behind a path.
    """
    line = re.sub(r"(https?://[^\s\"?]*)\?[^\s\"]*", r"\1?…", " ".join(text.split()))
    return line if len(line) <= 300 else f"{line[:200]} … {line[-97:]}"


def retry_after_s(response: requests.Response) -> float | None:
    """What Retry-After asks for, in seconds. A date counts against the server's own clock, whatever ours says."""
    asked = response.headers.get("Retry-After", "")
    if asked.isdecimal():
        return float(asked)
    try:
        then = parsedate_to_datetime(asked)
        stated = response.headers.get("Date")
        now = parsedate_to_datetime(stated) if stated else datetime.fromtimestamp(time.time(), UTC)
        return max(0.0, (then - now).total_seconds())
    except (TypeError, ValueError):
        return None
