"""What a candidate is asked: one of our verbs, one check of those by name, or any command."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from spark_images.bisect.answer import Cause, judge_check
from spark_images.engine.guard import guarded
from spark_images.errors import UsageError, did_you_mean
from spark_images.process import stream
from spark_images.search import Verdict

VERBS = ("build", "audit", "test", "smoke")


@dataclass(frozen=True, kw_only=True)
class Check:
    """verb: one of ours, with the name of one of its checks or ""; else a command for /bin/sh."""

    verb: str = ""
    name: str = ""
    command: str = ""

    def __str__(self) -> str:
        return self.command or (f"{self.verb}:{self.name}" if self.name else self.verb)

    def arguments(self, report: Path) -> tuple[str, ...]:
        """What the verb needs besides the image, so that judge_report can tell. report: a file that it may write."""
        if self.verb == "test" and self.name:
            return ("--", "-k", self.name)
        return {"audit": ("--json", str(report)), "smoke": ("--junit", str(report))}.get(self.verb, ())

    def judge_report(self, report: Path) -> tuple[Verdict, Cause] | None:
        """What the report of an audit or of smoke checks says; None where the verb's status says all there is.

        A smoke check that was skipped, as there is no GPU for it, says nothing about the candidate.
        """
        if not report.is_file():
            return None
        if self.verb == "audit" and self.name:
            found = json.loads(report.read_text(encoding="utf-8"))["findings"]
            failed = any(finding["check"] == self.name for finding in found)
            return (Verdict.BAD if failed else Verdict.GOOD), Cause.CHECK
        if self.verb == "smoke":
            cases = [case for case in ElementTree.parse(report).iter("testcase") if self.name in ("", case.get("name"))]
            if any(case.find("failure") is not None for case in cases):
                return Verdict.BAD, Cause.CHECK
            if all(case.find("skipped") is not None for case in cases):
                return Verdict.SKIP, Cause.CANNOT_TELL
            return Verdict.GOOD, Cause.CHECK
        return None


def parse_check(text: str) -> Check:
    """`build`, `audit`, `test`, `smoke`, `test:NAME`, or a command. UsageError for an empty one."""
    verb, _, name = text.strip().partition(":")
    if verb in VERBS and verb != "build" and name and " " not in name:
        if verb == "audit":
            from spark_images.audit.judge import CHECKS

            known = [check.id for check in CHECKS]
            if name not in known:
                hint = did_you_mean(name, known) or "`.venv/bin/python -m spark_images audit --list` lists them"
                raise UsageError(f"the audit has no check `{name}`", hint=hint)
        return Check(verb=verb, name=name)
    if text.strip() in VERBS:
        return Check(verb=verb)
    if not text.strip():
        raise UsageError("the check is empty", hint=f"name one of {', '.join(VERBS)}, or a command")
    return Check(command=text)


def run_check(
    command: str, *, env: Mapping[str, str], cwd: Path, note: Path, on_line: Callable[[str], None]
) -> tuple[Verdict, Cause]:
    """What a user's command says. It ends with us, however we end. note: a path that is not used."""
    return judge_check(stream(guarded(["/bin/sh", "-c", command], note), on_line, env=env, cwd=cwd))
