"""The steps of a job: one program after another under the job's time-out, again where only a network failed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from spark_images.ci.summary import End, StepDone, Summary
from spark_images.engine.guard import guarded
from spark_images.errors import HostProgramError, JobTimeoutError, RegistryError, RouteError
from spark_images.own_verbs import verb_command
from spark_images.process import quoted, stream
from spark_images.terminal import tell
from spark_images.units import format_duration

# What waiting can mend: no route answered, or a registry did not. The clients have tried again by themselves before;
# the waits are for outages of minutes. Compile errors, red tests and wrong contents stay what they are.
PASSING = (RouteError.exit_status, RegistryError.exit_status)
WAITS_S = (30.0, 180.0)
ERROR_LINES, TAIL_LINES = 60, 20  # that go into the summary


class Steps:
    """Runs steps and writes each into the summary; after one that failed, the others are noted and not run."""

    def __init__(
        self,
        summary: Summary,
        *,
        project: Path,
        env: Mapping[str, str],
        note: Path,
        timeout_s: float,
        waits_s: Sequence[float] = WAITS_S,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.summary = summary
        self.status = 0  # of the first step that failed
        self._project, self._env, self._note = project, env, note
        self._waits_s, self._clock, self._sleep = waits_s, clock, sleep
        self._timeout_s, self._deadline = timeout_s, clock() + timeout_s

    def verb(self, name: str, *words: str, env: Mapping[str, str] | None = None) -> bool:
        """Run one of our verbs on the project; whether it, and all before it, ended well. env: the job's if None."""
        return self.program(name, verb_command(self._project, *words), env=env)

    def session(self, name: str, *words: str) -> bool:
        """Run a nox session of the project; as verb."""
        return self.program(name, [sys.executable, "-m", "nox", "-s", *words], cwd=self._project)

    def program(
        self, name: str, command: list[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> bool:
        """Run any program; as verb. env: the job's if None. JobTimeoutError when time is up."""
        if self.status:
            self.summary.steps.append(StepDone(name=name, end=End.NOT_RUN))
            return False
        began = self._clock()
        tries = 0
        for wait_s in (*self._waits_s, None):
            tries += 1
            status, error = self._once(name, command, cwd, env or self._env, began)
            if status not in PASSING or wait_s is None or self._clock() + wait_s >= self._deadline:
                break
            tell(f"{name} failed with status {status}, which may pass; again in {wait_s:g} s")
            self._sleep(wait_s)
        end = End.FAILED if status else End.GOOD
        seconds = self._clock() - began
        self.summary.steps.append(StepDone(name=name, end=end, seconds=seconds, tries=tries, error=error))
        self.status = self.status or status
        return self.status == 0

    def _once(
        self, name: str, command: list[str], cwd: Path | None, env: Mapping[str, str], began: float
    ) -> tuple[int, str]:
        said = _Errors()

        def on_line(line: str) -> None:
            print(line, flush=True)
            said.feed(line)

        left_s = self._deadline - self._clock()
        tell(quoted(command))
        if left_s > 0:
            try:
                status = stream(guarded(command, self._note), on_line, env=env, cwd=cwd, timeout_s=left_s)
                return status, said.text if status else ""
            except HostProgramError as err:
                if not err.timed_out:
                    raise
        late = JobTimeoutError(
            f"the job's {format_duration(self._timeout_s)} were over in `{name}`, and it was ended",
            hint="what was compiled stays in the cache, so that the next run is faster; `--timeout` gives more",
        )
        seconds = self._clock() - began
        self.summary.steps.append(StepDone(name=name, end=End.FAILED, seconds=seconds, error=late.render()))
        raise late


class _Errors:
    """The errors of ours in an output, in order; where there is none, the last lines."""

    def __init__(self) -> None:
        self._errors: list[str] = []
        self._tail: list[str] = []
        self._inside = False

    def feed(self, line: str) -> None:
        if line.startswith("::"):  # for the runner
            return
        goes_on = not line or line.startswith(("  ", "hint: "))  # as SparkImagesError.render writes them
        self._inside = line.startswith("error: ") or (self._inside and goes_on)
        if self._inside:
            self._errors.append(line)
        self._tail = [*self._tail[1 - TAIL_LINES :], line]

    @property
    def text(self) -> str:
        return "\n".join(self._errors[-ERROR_LINES:] or self._tail).strip()
