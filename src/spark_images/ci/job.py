"""One job of a workflow: its steps under one time-out, and at its end, however that comes, results for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from spark_images.cache import Cache
from spark_images.ci.login import REGISTRY, TOKEN, with_login
from spark_images.ci.results import keep_results
from spark_images.ci.steps import Steps
from spark_images.ci.summary import End, StepDone, Summary
from spark_images.errors import SparkImagesError
from spark_images.project import Project
from spark_images.workfolder import work_folder


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a job is told, and what it writes into. env: with the registry's login, for every program that it runs."""

    project: Project
    cache: Cache
    env: Mapping[str, str]
    token: str = field(repr=False)  # the forge's; for its git repository alone, in no environment but git's
    registry: str  # "" for none: nothing is pushed
    engine: str | None
    memory: str | None
    summary: Summary
    steps: Steps
    results: Path

    @property
    def root(self) -> Path:
        """The project's folder."""
        return self.project.root

    def engine_words(self) -> tuple[str, ...]:
        """For verbs that run an engine."""
        return ("--engine", self.engine) if self.engine else ()

    def build_words(self) -> tuple[str, ...]:
        """For verbs that build."""
        return (*self.engine_words(), *(("--memory", self.memory) if self.memory else ()))

    def ends(self, sentence: str) -> None:
        """Note why there is nothing (more) to do."""
        self.summary.sentence = sentence


def run_job(
    title: str,
    work: Callable[[Job], str],
    *,
    project: Project,
    cache: Cache,
    env: Mapping[str, str],
    engine: str | None,
    memory: str | None,
    timeout_s: float,
    results: Path,
) -> int:
    """Do the work and keep its results; the status of its first step that failed. work: returns the plan_id or "".

    Raises what work raises, after it was written down as well.
    """
    summary = Summary(title=title)
    inside = with_login(env)
    plan_id = ""
    with work_folder(cache, "ci") as folder:
        steps = Steps(summary, project=project.root, env=inside, note=folder / "note", timeout_s=timeout_s)
        job = Job(
            project=project,
            cache=cache,
            env=inside,
            token=env.get(TOKEN, ""),
            registry=env.get(REGISTRY, ""),
            engine=engine or env.get("SPARK_IMAGES_ENGINE") or None,
            memory=memory,
            summary=summary,
            steps=steps,
            results=results,
        )
        results.mkdir(parents=True, exist_ok=True)
        try:
            plan_id = work(job)
        except SparkImagesError as err:
            if not any(step.error == err.render() for step in summary.steps):
                summary.steps.append(StepDone(name="this job", end=End.FAILED, error=err.render()))
            raise
        except KeyboardInterrupt:
            summary.sentence = "It was stopped from outside; the same job again goes on from what is finished."
            raise
        finally:
            keep_results(job, plan_id)
    return steps.status
