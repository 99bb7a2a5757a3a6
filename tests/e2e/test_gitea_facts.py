"""What the workflows are written for: how Gitea itself takes a workflow apart, as docs/e2e-gitea.md says."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from forge import Repository, running_forge
from pipeline import git
from registries import tool
from small_runner import SmallRunner, wait_until

PROBE = """
name: probe
on: {push: {branches: [main]}, workflow_dispatch: {inputs: {word: {type: string}}}}
permissions: {contents: write}
jobs:
  first:
    runs-on: "${{ vars.RUNNER }}"
    outputs: {list: "${{ steps.list.outputs.list }}"}
    steps:
      - id: list
        run: echo 'list=["a", "b"]' >>"$GITHUB_OUTPUT"
      - name: the job's token
        env: {TOKEN: "${{ github.token }}"}
        run: |
          git clone --quiet "$GITHUB_SERVER_URL/$GITHUB_REPOSITORY" clone
          login="http.extraHeader=Authorization: Bearer $TOKEN"
          git -C clone -c "$login" push --quiet origin "HEAD:by-$GITHUB_EVENT_NAME"
          printf %s "$TOKEN" | skopeo login --authfile login.json --tls-verify=false --username x --password-stdin \
            "${GITHUB_SERVER_URL#http://}" && echo "the registry knows it" || echo "the registry refuses it"
      - env: {WORD: "${{ inputs.word }}", SECRET: "${{ secrets.SECRET }}"}
        run: echo "word=[$WORD] secret=[$SECRET]"
  dynamic:
    needs: first
    runs-on: small
    strategy: {matrix: {one: "${{ fromJSON(needs.first.outputs.list) }}"}}
    steps:
      - env: {ONE: "${{ matrix.one }}", ALL: "${{ needs.first.outputs.list }}"}
        run: echo "one=[$ONE] all=$ALL"
  static:
    name: static ${{ matrix.one }}
    needs: first
    runs-on: small
    strategy: {fail-fast: false, matrix: {one: [a, b]}}
    steps:
      - env: {ONE: "${{ matrix.one }}"}
        timeout-minutes: 5
        run: test "$ONE" = a
  after:
    needs: static
    runs-on: small
    steps: [{run: echo after}]
  always:
    needs: [first, static]
    if: always()
    runs-on: small
    steps:
      - env: {RESULTS: "${{ needs.first.result }} ${{ needs.static.result }}"}
        run: echo "results=$RESULTS"
"""


class Probed:
    """The probe after a push and after a start by hand."""

    def __init__(self, repository: Repository, commit: str) -> None:
        self.repository, self.commit = repository, commit

    def jobs(self, event: str) -> dict[str, dict[str, Any]]:
        """The jobs of the event's run by name, when it is over."""
        over = partial(self.repository.jobs_when_over, self.commit, event)
        return {job["name"]: job for job in wait_until(f"the run for {event}", over, within_s=300)}

    def log(self, event: str, job: str) -> str:
        return self.repository.log(self.jobs(event)[job])


@pytest.fixture(scope="module")
def probed() -> Iterator[Probed]:
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder)
        top.chmod(0o755)
        with running_forge(top / "gitea") as forge:
            repository = forge.make_repository("probe")
            repository.settle(secrets={"SECRET": "not for logs"}, variables={"RUNNER": "small"})
            workflows = top / "clone/.gitea/workflows"
            workflows.mkdir(parents=True)
            (workflows / "probe.yaml").write_text(PROBE)
            clone = top / "clone"
            git("init", "-q", "-b", "main", cwd=clone)
            git("add", "-A", cwd=clone)
            git("commit", "-q", "-m", "the probe", cwd=clone)
            git("push", "-q", repository.push_url, "main", cwd=clone)
            environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "TERM": "dumb"}
            runner = SmallRunner(
                server=forge.url, registration=repository.registration(), name="small", labels=["small"],
                folder=top / "runner", act=str(tool("act")), environment=environment,
            )  # fmt: skip
            runner.start()
            try:
                commit = git("rev-parse", "HEAD", cwd=clone)
                wait_until("the push to be noticed", lambda: repository.runs(commit, "push"), within_s=60)
                repository.dispatch("probe.yaml", {"word": 'a "b" $c'})
                yield Probed(repository, commit)
            finally:
                runner.stop()


def test_a_matrix_from_another_jobs_output_is_no_matrix(probed: Probed) -> None:
    assert 'one=[] all=["a", "b"]' in probed.log("push", "dynamic")


def test_a_literal_matrix_is_a_job_for_each(probed: Probed) -> None:
    jobs = probed.jobs("push")
    assert jobs["static a"]["conclusion"] == "success", probed.log("push", "static a")
    assert jobs["static b"]["conclusion"] == "failure"


def test_after_a_failure_only_a_job_with_a_condition_runs(probed: Probed) -> None:
    assert probed.jobs("push")["after"]["conclusion"] == "skipped"
    assert "results=success failure" in probed.log("push", "always")


def test_the_jobs_token_pushes_a_branch_and_no_image(probed: Probed) -> None:
    assert "the registry refuses it" in probed.log("push", "first")
    branches = probed.repository.forge.ask("GET", f"{probed.repository.path}/branches")
    assert "by-push" in {one["name"] for one in branches}


def test_an_input_arrives_as_it_was_typed_and_a_secret_is_masked(probed: Probed) -> None:
    assert 'word=[a "b" $c] secret=[***]' in probed.log("workflow_dispatch", "first")


def test_only_the_push_shows_on_the_commit(probed: Probed) -> None:
    probed.jobs("push")
    probed.jobs("workflow_dispatch")
    shown = probed.repository.status(probed.commit)
    assert shown[""] == "failure"
    assert {context.rpartition(" ")[2] for context in shown if context} == {"(push)"}
