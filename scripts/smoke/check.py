"""What every smoke check is: a program with options, stages under a time limit, and one line of JSON at its end.

The last line of stdout is the result, and the exit status follows it: 0 green or skipped, 1 red. A skip says why:
`no-gpu`, `other-gpu` (this GPU has no such instructions), `memory` (too little is free), `missing` (a program or
package that the check works on is not here). Only the standard library is used, so that any image can run it.
With `--spoil` a check falsifies one number that the GPU gave, and must end red: the proof that it can.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import driver

spoiling = False  # --spoil


class Skip(Exception):
    """The check cannot be made here; why: one of the words of this module's docstring."""

    def __init__(self, why: str, sentence: str) -> None:
        super().__init__(sentence)
        self.why = why


class Red(Exception):
    """What the check looks for is wrong; the text says what was found and what was expected."""


class Check:
    """A check that is under way: what was asked for, the GPU, and the facts that go into the result."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.name = name
        self.options = options
        self.facts: dict[str, Any] = {}
        self.stages: list[dict[str, Any]] = []
        self.groups: list[int] = []  # process groups to end with us
        self._started = time.monotonic()
        self._result = threading.Lock()  # taken by whoever says the result: the check, or the clock that runs out

    @contextlib.contextmanager
    def stage(self, what: str, limit_s: float) -> Iterator[None]:
        """A part of the check that has to end within the limit; otherwise it is named as what hangs, and we exit."""
        print(f"stage: {what}", file=sys.stderr, flush=True)
        clock = threading.Timer(limit_s * self.options.patience, self._hangs, (what, limit_s * self.options.patience))
        clock.daemon = True
        clock.start()
        began = time.monotonic()
        try:
            yield
        finally:
            clock.cancel()
            self.stages.append({"stage": what, "seconds": round(time.monotonic() - began, 2)})

    def gpu(self, need_gib: float) -> driver.Gpu:
        """The GPU, with `need_gib` free on it; Skip where there is none or less is free."""
        try:
            gpu = driver.first_gpu()
        except driver.NoGpu as err:
            raise Skip("no-gpu", str(err)) from err
        free = driver.free_gib(gpu)
        self.facts["gpu"] = gpu.name
        self.facts["compute_capability"] = f"{gpu.major}.{gpu.minor}"
        self.facts["driver"] = gpu.driver
        self.facts["free_gib"] = round(free, 1)
        if free < need_gib:
            raise Skip("memory", f"{free:.1f} GiB are free on {gpu.name}, this check needs {need_gib:g}")
        return gpu

    def finished(
        self, command: Sequence[str], env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """A program that was run to its end; it ends with us where we end first."""
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
        self.groups.append(process.pid)
        out, err = process.communicate()
        self.groups.remove(process.pid)
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def architecture(self, gpu: driver.Gpu) -> str:
        """What compilers are told: the target's `121a` where it was given, else the GPU's own with its suffix."""
        if self.options.compute_capability:
            return str(self.options.compute_capability).replace(".", "")
        return f"{gpu.major}{gpu.minor}" + ("a" if gpu.major >= 9 else "")

    def finish(self, verdict: str, why: str = "", sentence: str = "") -> NoReturn:
        """Print the result and exit, whatever other threads still do."""
        self._result.acquire()  # never released: there is one result
        for group in self.groups:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        result = {
            "check": self.name,
            "verdict": verdict,
            "why": why,
            "sentence": sentence,
            "seconds": round(time.monotonic() - self._started, 1),
            "facts": self.facts,
            "stages": self.stages,
        }
        print(json.dumps(result), flush=True)
        sys.stderr.flush()
        os._exit(1 if verdict == "red" else 0)  # a hung kernel would keep the interpreter from ending

    def _hangs(self, what: str, limit_s: float) -> None:
        self.finish("red", "hangs", f"`{what}` did not end within {limit_s:g} s")


def run(name: str, does: str, body: Callable[[Check], None], *options: tuple[str, dict[str, Any]]) -> NoReturn:
    """Read the command line, run the check and say what came out. options: further ones, as add_argument takes them."""
    parser = argparse.ArgumentParser(prog=name, description=does, allow_abbrev=False)
    parser.add_argument("--compute-capability", default="", metavar="12.1a", help="of the target (default: the GPU's)")
    parser.add_argument("--patience", type=float, default=1.0, metavar="TIMES", help="stretches every time limit")
    parser.add_argument("--work", type=Path, default=None, metavar="FOLDER", help="to write to (default: /tmp)")
    falsify = "falsify what the GPU gave, so that the check must be red: proof that it can be"
    parser.add_argument("--spoil", action="store_true", help=falsify)
    for flag, settings in options:
        parser.add_argument(flag, **settings)
    check = Check(name, parser.parse_args())
    global spoiling
    spoiling = check.options.spoil
    signal.signal(signal.SIGTERM, lambda number, frame: check.finish("red", "stopped", "stopped from outside"))
    try:
        body(check)
    except Skip as skip:
        check.finish("skipped", skip.why, str(skip))
    except Red as red:
        check.finish("red", "wrong", str(red))
    except Exception as err:  # whatever a library raises: the image does not do what it must
        traceback.print_exc()
        check.finish("red", "error", f"{type(err).__name__}: {err}"[:2000])
    check.finish("green")


def spoil(numbers: Any, by: float = 1) -> None:
    """With `--spoil`, falsify the first of these numbers that the GPU gave; whatever judges some hands them here first.

    numbers: a list, or a flat tensor, which is changed in place.
    """
    if spoiling:
        numbers[0] += by


def module(name: str) -> Any:
    """Import a package that the check works on; Skip where the image has none."""
    import importlib

    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as err:
        if err.name is None or err.name.partition(".")[0] != name.partition(".")[0]:
            raise  # the package is here, and broken
        raise Skip("missing", f"no Python package `{name}` here") from err
