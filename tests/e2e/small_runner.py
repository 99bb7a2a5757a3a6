"""A small runner for Gitea Actions: registers, takes one task after the other, reports steps, logs and outputs.

It stands for act_runner: the same protocol (runner.v1.RunnerService, connect with JSON), jobs executed on the host.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import requests
from act_job import ActJob

EVERY_S = 1.0  # between questions for work, and between reports on it


class RunnerError(Exception):
    """The server refuses what the runner says."""


@dataclass
class Report:
    """What was told of one task, and what is still to tell."""

    task_id: str
    steps: list[dict[str, Any]]
    rows: list[dict[str, str]] = field(default_factory=list)
    told: int = 0

    def log(self, when: str, text: str, step: int | None = None) -> None:
        """One line; it belongs to the step that runs."""
        if step is not None:
            state = self.steps[step]
            state.setdefault("startedAt", when or _now())
            state.setdefault("logIndex", len(self.rows))
            state["logLength"] = len(self.rows) + 1 - state["logIndex"]
        self.rows.append({"time": when or _now(), "content": text})

    def end_step(self, when: str, step: int, result: str) -> None:
        self.steps[step] |= {"result": f"RESULT_{result.upper()}", "stoppedAt": when or _now()}


class SmallRunner:
    """One runner of a Gitea, in a thread of its own from `start` to `stop`."""

    def __init__(
        self, *, server: str, registration: str, name: str, labels: Sequence[str], folder: Path, act: str,
        environment: Mapping[str, str],
    ) -> None:  # fmt: skip
        self.server, self.name, self.labels = server, name, list(labels)
        self.folder, self.act, self.environment = folder, act, environment
        self._session = requests.Session()
        registered = self._call("Register", name=name, token=registration, version="small", labels=self.labels)
        runner = registered["runner"]
        self._session.headers.update({"x-runner-uuid": runner["uuid"], "x-runner-token": runner["token"]})
        self._call("Declare", version="small", labels=self.labels)
        self._ending = threading.Event()
        self._failed: Exception | None = None
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End a task at work, and the thread. RunnerError as check()."""
        self._ending.set()
        self._thread.join()
        self.check()

    def check(self) -> None:
        """Raises RunnerError where the thread has ended by an error."""
        if self._failed:
            raise RunnerError(f"runner {self.name} failed") from self._failed

    def _call(self, method: str, **message: Any) -> dict[str, Any]:
        url = f"{self.server}/api/actions/runner.v1.RunnerService/{method}"
        answer = self._session.post(url, json=message, timeout=60)
        if answer.status_code != 200:
            raise RunnerError(f"{method}: {answer.status_code} {answer.text}")
        found: dict[str, Any] = answer.json()
        return found

    def _work(self) -> None:
        try:
            while not self._ending.is_set():
                # Version 0 is never the server's: it looks for work each time.
                task = self._call("FetchTask", tasksVersion="0").get("task")
                if task:
                    self._execute(task)
                else:
                    self._ending.wait(EVERY_S)
        except Exception as err:  # told by check(), in the thread of the test
            self._failed = err

    def _execute(self, task: Mapping[str, Any]) -> None:
        context = task["context"]
        job = ActJob(
            task=task, folder=self.folder / f"task-{task['id']}", act=self.act, server=self.server,
            environment=self.environment,
        )  # fmt: skip
        report = Report(task_id=task["id"], steps=[])
        report.log("", f"runner {self.name}, task {task['id']}, job {context['job']}")
        started, wanted = _now(), True
        feeder = threading.Thread(target=self._feed, args=(job, report))
        feeder.start()
        try:
            while feeder.is_alive():
                feeder.join(EVERY_S)
                wanted = wanted and self._tell(report, started)
                if not wanted or self._ending.is_set():
                    job.stop()
        finally:
            job.stop()
        outcome = job.outcome if wanted and not self._ending.is_set() else None
        result = f"RESULT_{outcome.result.upper()}" if outcome else "RESULT_CANCELLED"
        for state in report.steps:  # act does not speak of steps that it skips
            state.setdefault("result", "RESULT_SKIPPED")
        report.log("", f"the job ends: {result.removeprefix('RESULT_').lower()}")
        self._tell(report, started, result=result, outputs=outcome.outputs if outcome else {})

    def _feed(self, job: ActJob, report: Report) -> None:
        """Read what act says into the report."""
        for line in job.run(self.labels):
            if not report.steps:
                report.steps += [{"id": str(number)} for number in range(len(job.steps))]
            report.log(line.time, line.text, line.step)
            if line.step is not None and line.ended:
                report.end_step(line.time, line.step, line.ended)

    def _tell(
        self, report: Report, started: str, *, result: str = "", outputs: Mapping[str, str] | None = None
    ) -> bool:
        """Send new rows of the log and the state of all steps; whether the server still wants the task."""
        last = len(report.rows)
        if last > report.told or result:
            rows = report.rows[report.told : last]
            acknowledged = self._call(
                "UpdateLog", taskId=report.task_id, index=str(report.told), rows=rows, noMore=bool(result)
            )
            report.told = int(acknowledged.get("ackIndex", 0))
        state: dict[str, Any] = {"id": report.task_id, "startedAt": started, "steps": list(report.steps)}
        if result:
            state |= {"result": result, "stoppedAt": _now()}
        answer = self._call("UpdateTask", state=state, outputs=dict(outputs or {}))
        return bool(answer["state"].get("result") != "RESULT_CANCELLED")


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def wait_until(what: str, ready: Any, *, within_s: float) -> Any:
    """What `ready` gives, as soon as it gives something."""
    last = time.monotonic() + within_s
    while not (found := ready()):
        assert time.monotonic() < last, f"{what}: not within {within_s:.0f} s"
        time.sleep(EVERY_S)
    return found
