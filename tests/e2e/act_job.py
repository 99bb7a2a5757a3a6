"""One job of a workflow, as Gitea hands it to a runner, executed by nektos' act on this machine.

Gitea's own runner is built on a fork of act. Here stands act itself, so what the fork does by its API is done by files:
jobs that this one needs are replayed by jobs that end as those did, and one more job behind it says what became of it.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import yaml

from spark_images.engine.freezer import below

ORDERLY_S = 60.0  # for what a stopped job has to put away
COLLECTOR = "what-became-of-it"
REPLAY = "replay"  # label of the jobs around the one
REPLAYED = {"RESULT_SUCCESS": "exit 0", "RESULT_FAILURE": "exit 1", "RESULT_CANCELLED": "exit 1"}


@dataclass(frozen=True, kw_only=True)
class Line:
    """What act said: text of the job's log, or the end of a step."""

    time: str  # RFC 3339
    text: str
    step: int | None = None  # which of the job's steps says it; None before and after them
    ended: str = ""  # success or failure, where the step is over


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """result: success, failure or skipped. outputs: of the job."""

    result: str
    outputs: dict[str, str]


@dataclass
class ActJob:
    """A task of Gitea's runner protocol in a folder of its own. environment: what act and the steps start with."""

    task: Mapping[str, Any]
    folder: Path
    act: str
    server: str
    environment: Mapping[str, str]
    process: subprocess.Popen[str] | None = None
    steps: list[str] = field(default_factory=list)  # ids, as act names them

    def prepare(self, labels: Sequence[str]) -> list[str]:
        """Write all that act reads; its command. Secrets stand in files that nobody else may read."""
        self.folder.mkdir(parents=True, mode=0o700)
        (self.folder / "work").mkdir()
        context = self.task["context"]
        workflow = _compose(base64.b64decode(self.task["workflowPayload"]).decode())
        _unquote(workflow)
        self.steps = _replay_needs(workflow, self.task.get("needs", {}), self.folder / "outcome.json")
        self._write("workflow.yaml", yaml.serialize(workflow))
        self._write("event.json", json.dumps(context["event"]))
        self._write("secrets.yaml", json.dumps(self.task.get("secrets", {})))
        self._write("vars.yaml", json.dumps(self.task.get("vars", {})))
        self._write("env.yaml", json.dumps(_context_variables(context, self.server)))
        self._write("input", "")
        command = [self.act, str(context["event_name"]), "--json", "--no-cache-server", "--job", COLLECTOR]
        command += ["--directory", str(self.folder / "work"), "--action-cache-path", str(self.folder / "act")]
        command += ["--actor", str(context["actor"])]
        files = {
            "workflows": "workflow.yaml", "eventpath": "event.json", "secret-file": "secrets.yaml",
            "var-file": "vars.yaml", "env-file": "env.yaml", "input-file": "input",
        }  # fmt: skip
        for option, name in files.items():
            command += [f"--{option}", str(self.folder / name)]
        for label in (*labels, REPLAY):
            command += ["--platform", f"{label}=-self-hosted"]
        return command

    def run(self, labels: Sequence[str]) -> Iterator[Line]:
        """Start act and give what it says of the job, as it says it."""
        self.process = subprocess.Popen(
            self.prepare(labels), env=self.environment, text=True, errors="replace", stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        assert self.process.stdout
        for line in self.process.stdout:
            if said := self._read(line):
                yield said
        self.process.wait()

    def stop(self) -> None:
        """End act and all that it started, if it still runs; each may end its work in order first."""
        if self.process is None or self.process.poll() is not None:
            return
        family = [*below(self.process.pid), self.process.pid]  # act gives every step a session of its own
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in family:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            last = time.monotonic() + ORDERLY_S
            while any(map(_runs, family)) and time.monotonic() < last:
                time.sleep(0.2)
        self.process.wait()

    @property
    def outcome(self) -> Outcome:
        """Failure where act ended before it could say."""
        try:
            found = json.loads((self.folder / "outcome.json").read_text())
        except FileNotFoundError:
            return Outcome(result="failure", outputs={})
        return Outcome(result=found["result"], outputs=found["outputs"] or {})

    def _write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.touch(mode=0o600)
        path.write_text(text)

    def _read(self, line: str) -> Line | None:
        try:
            said = json.loads(line)
        except ValueError:
            replayed = line.startswith("Error: Job '")  # act's own last word, also on a job that failed long ago
            return None if replayed else Line(time="", text=line.rstrip("\n"))
        if said.get("jobID") in (*self.task.get("needs", {}), COLLECTOR) or said.get("level") == "debug":
            return None
        path = said.get("stepID") or [""]
        step = self.steps.index(path[0]) if path[0] in self.steps and said.get("stage") == "Main" else None
        ended = said.get("stepResult", "") if step is not None and len(path) == 1 else ""
        return Line(time=said["time"], text=said["msg"].rstrip("\n"), step=step, ended=ended)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _unquote(node: yaml.Node) -> None:
    """Gitea hands on some numbers and bools as strings, which act refuses."""
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        if key.value in ("fail-fast", "max-parallel", "timeout-minutes") and isinstance(value, yaml.ScalarNode):
            plain = _compose(value.value)
            value.tag, value.style = plain.tag, None
        _unquote(value)
    for item in node.value if isinstance(node, yaml.SequenceNode) else ():
        _unquote(item)


def _replay_needs(workflow: yaml.MappingNode, needs: Mapping[str, Any], outcome: Path) -> list[str]:
    """Put the jobs around the one job of a workflow that act needs; the ids of its steps."""
    jobs = _value(workflow, "jobs")
    ((key, job),) = jobs.value
    added: dict[str, Any] = {}
    for name, need in needs.items():
        added[name] = {
            "runs-on": REPLAY, "outputs": need.get("outputs", {}),
            "steps": [{"run": REPLAYED.get(need["result"], "exit 0")}],
        }  # fmt: skip
        if need["result"] == "RESULT_SKIPPED":
            added[name]["if"] = "false"
        assert "${{" not in json.dumps(added[name]["outputs"]), "act would evaluate what a job put out"
    if needs:
        job.value.append((_node("needs"), _node(list(needs))))
    write = 'printf %s "$OUTCOME" >"$OUTCOME_FILE"'
    tell = {"OUTCOME": f"${{{{ toJSON(needs.{key.value}) }}}}", "OUTCOME_FILE": str(outcome)}
    added[COLLECTOR] = {
        "runs-on": REPLAY, "if": "always()", "needs": [key.value], "steps": [{"run": write, "env": tell}],
    }  # fmt: skip
    jobs.value += [(_node(name), _node(one)) for name, one in added.items()]
    steps = _value(job, "steps")
    ids = [[value.value for key, value in step.value if key.value == "id"] for step in steps.value]
    return [one[0] if one else str(number) for number, one in enumerate(ids)]


def _value(mapping: yaml.MappingNode, key: str) -> Any:
    return next(value for name, value in mapping.value if name.value == key)


def _node(value: object) -> yaml.Node:
    return _compose(json.dumps(value))


def _compose(text: str) -> yaml.MappingNode:
    """YAML as nodes, which keep how every scalar is written: read as values, `on` would become `true`."""
    node = yaml.compose(text)
    assert node
    return cast(yaml.MappingNode, node)


def _context_variables(context: Mapping[str, Any], server: str) -> dict[str, str]:
    """What act takes of the `github` context from variables. Its name for the commit is indeed SHA_REF."""
    taken = ("ref", "ref_name", "ref_type", "base_ref", "head_ref", "repository", "repository_owner", "run_id",
             "run_number", "run_attempt")  # fmt: skip
    found = {f"GITHUB_{name.upper()}": str(context[name]) for name in taken}
    return {
        **found, "SHA_REF": context["sha"], "GITHUB_SERVER_URL": server, "GITHUB_API_URL": f"{server}/api/v1",
        "GITEA_ACTIONS": "true",
    }  # fmt: skip
