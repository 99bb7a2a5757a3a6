"""A Gitea with Actions and packages on loopback, and what a test asks of its API."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
from registries import Registry, gitea

USER, PASSWORD = "keeper", "pass-w0rd-of-gitea"  # as secrets they are masked in logs: words of no program's name
SETTINGS = """[actions]
ENABLED = true
[packages]
ENABLED = true
[repository]
DEFAULT_BRANCH = main
"""


@dataclass(frozen=True)
class Forge:
    """A running Gitea, its one user and that user's token, which may do everything."""

    server: Registry
    token: str

    @property
    def url(self) -> str:
        return f"http://{self.server.host}"

    def ask(self, method: str, path: str, body: Any = None, *, by_password: bool = False) -> Any:
        """The answer of its API as JSON, or as text where it is none. by_password: tokens are made that way alone."""
        headers = {} if by_password else {"Authorization": f"token {self.token}"}
        login = (USER, PASSWORD) if by_password else None
        answer = requests.request(
            method, f"{self.url}/api/v1{path}", json=body, headers=headers, auth=login, timeout=60
        )
        assert answer.ok, f"{method} {path}: {answer.status_code} {answer.text}"
        kind = answer.headers.get("Content-Type", "")
        return answer.json() if kind.startswith("application/json") and answer.content else answer.text

    def make_repository(self, name: str) -> Repository:
        self.ask("POST", "/user/repos", {"name": name, "default_branch": "main", "private": False})
        return Repository(self, name)


@dataclass(frozen=True)
class Repository:
    """A repository of the user's."""

    forge: Forge
    name: str

    @property
    def path(self) -> str:
        return f"/repos/{USER}/{self.name}"

    @property
    def push_url(self) -> str:
        return self.forge.url.replace("://", f"://{USER}:{self.forge.token}@") + f"/{USER}/{self.name}.git"

    def registration(self) -> str:
        """What a runner of this repository registers with."""
        return str(self.forge.ask("POST", f"{self.path}/actions/runners/registration-token")["token"])

    def settle(self, *, secrets: Mapping[str, str], variables: Mapping[str, str]) -> None:
        for name, value in secrets.items():
            self.forge.ask("PUT", f"{self.path}/actions/secrets/{name}", {"data": value})
        for name, value in variables.items():
            self.forge.ask("POST", f"{self.path}/actions/variables/{name}", {"value": value})

    def runs(self, commit: str, event: str) -> list[dict[str, Any]]:
        """Of its workflows, for a commit and an event."""
        found = self.forge.ask("GET", f"{self.path}/actions/runs?head_sha={commit}&event={event}")
        return list(found["workflow_runs"] or [])

    def jobs_when_over(self, commit: str, event: str) -> list[dict[str, Any]]:
        """The jobs of the one run that an event started for a commit; [] as long as one of them is to come.

        Gitea calls a run completed as soon as a job of it has failed and none runs, also where others still wait.
        """
        runs = self.runs(commit, event)
        assert len(runs) < 2, runs
        jobs = self.jobs(runs[0]) if runs and runs[0]["status"] == "completed" else []
        return jobs if all(job["status"] == "completed" for job in jobs) else []

    def jobs(self, run: Mapping[str, Any]) -> list[dict[str, Any]]:
        return list(self.forge.ask("GET", f"{self.path}/actions/runs/{run['id']}/jobs")["jobs"])

    def log(self, job: Mapping[str, Any]) -> str:
        return str(self.forge.ask("GET", f"{self.path}/actions/jobs/{job['id']}/logs"))

    def status(self, commit: str) -> dict[str, str]:
        """What shows on a commit: the state of each context, and of the whole under ""."""
        found = self.forge.ask("GET", f"{self.path}/commits/{commit}/status")
        return {"": found["state"], **{one["context"]: one["status"] for one in found["statuses"] or []}}

    def dispatch(self, workflow: str, inputs: Mapping[str, str], *, ref: str = "main") -> None:
        self.forge.ask(
            "POST", f"{self.path}/actions/workflows/{workflow}/dispatches", {"ref": ref, "inputs": dict(inputs)}
        )

    def steps(self, job: Mapping[str, Any]) -> dict[str, str]:
        """How each step of a job ended, as the job's page shows it; Gitea 1.26's API gives every step the job's end."""
        states = {1: "success", 2: "failure", 3: "cancelled", 4: "skipped"}
        asked = (
            "SELECT step.name, step.status FROM action_task_step AS step JOIN action_run_job AS job USING (task_id) "
            "WHERE job.id = ? ORDER BY step.`index`"
        )
        with closing(self._database()) as database:
            return {name: states[status] for name, status in database.execute(asked, (job["id"],))}

    def let_the_hour_come(self) -> int:
        """Make every scheduled workflow due now, and have Gitea look what is due; how many there are."""
        with closing(self._database()) as database, database:
            due = database.execute("UPDATE action_schedule_spec SET next = 1").rowcount
        self.forge.ask("POST", "/admin/cron/start_schedule_tasks")
        return due

    def _database(self) -> sqlite3.Connection:
        return sqlite3.connect(self.forge.server.folder / "gitea.db", timeout=60)


@contextmanager
def running_forge(folder: Path) -> Iterator[Forge]:
    """folder: is made; Gitea's user may enter it."""
    with gitea(folder, user=USER, password=PASSWORD, scopes="all", settings=SETTINGS) as (server, token):
        yield Forge(server, token)
