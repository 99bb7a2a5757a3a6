"""Bench of the compile cache that runners share: a second runner's first build, with what the first gave and without.

Three machines in network namespaces of their own, a Redis between them, and the small C++ project of tests/engine.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from spark_images.bench.base import Measured, NotMeasured, Subject
from spark_images.bench.compiling import Compiled, compiled, told
from spark_images.bench.machines import SWITCH, Machine, machines, unable
from spark_images.bench.serving import serving
from spark_images.cache import Cache
from spark_images.errors import CheckError
from spark_images.oci import read_layout
from spark_images.process import capture

if TYPE_CHECKING:
    from pipeline import Pipeline

UNITS = 24  # C++ files, some four seconds each: long enough to tell, short enough to be run
PORT = 6379


@dataclass(frozen=True, kw_only=True)
class First:
    """A machine's first build."""

    whole_s: float
    step: Compiled
    taking_s: float  # until the shared entries were there
    digest: str

    @property
    def compiling_s(self) -> float:
        """From inputs to objects."""
        return self.step.seconds + self.taking_s


def remote_cache(subject: Subject) -> Measured:
    """How much sooner a second runner's first build has compiled with a warm shared cache than with none."""
    if reason := unable():
        raise NotMeasured(reason)
    if shutil.which("redis-server") is None:
        raise NotMeasured("needs `redis-server` (the package has the same name)")
    engine = subject.choose_engine().name
    with tempfile.TemporaryDirectory(prefix="spark-images-bench-") as name:
        folder = Path(name)
        pipeline = _project(subject, folder)
        if engine == "docker":  # the small project pins no BuildKit
            pipeline.env["SPARK_IMAGES_BUILDKIT_IMAGE"] = subject.project.buildkit_image(os.environ)
        with machines(folder / "machines", 3, pipeline.env, store=subject.cache.store) as (switch, *three):
            remote = {"SPARK_IMAGES_CCACHE_REMOTE": f"redis://{SWITCH}:{PORT}"}
            try:
                with _redis(switch, folder):
                    giving, alone, taking = (
                        _first_build(pipeline, machine, engine, env)
                        for machine, env in zip(three, (remote, {}, remote), strict=True)
                    )
            finally:
                for machine in three:
                    _drop(subject, machine, engine)
    if not giving.digest == alone.digest == taking.digest:
        raise CheckError("the digest depends on the cache", why=[giving.digest, alone.digest, taking.digest])
    return Measured(
        value=alone.compiling_s / taking.compiling_s,
        facts=(
            f"first runner, empty remote cache: whole build {giving.whole_s:.0f} s",
            f"second runner without it: whole build {alone.whole_s:.0f} s, {told(alone.step)}",
            f"second runner with it: whole build {taking.whole_s:.0f} s, {taking.taking_s:.1f} s of them for taking "
            f"entries, {told(taking.step)}",
            f"{UNITS} C++ files, {engine}, the same digest three times",
        ),
    )


def _project(subject: Subject, folder: Path) -> Pipeline:
    """The tests' small project, with more to compile, and all that it is made of in the store."""
    tests = subject.project.root / "tests" / "engine"  # a bench runs in a clone
    sys.path.insert(0, str(tests))
    try:
        from pipeline import make_pipeline
    finally:
        sys.path.remove(str(tests))
    pipeline = make_pipeline(folder, subject.cache.root, "cached")
    (pipeline.project / "source" / "units").write_text(f"{UNITS}\n")
    pipeline.pin_source()
    fetched = pipeline("fetch", "cached")
    if fetched.returncode != 0:
        raise CheckError("the bench's project cannot be fetched", why=fetched.stderr.splitlines()[-5:])
    return pipeline


@contextmanager
def _redis(switch: Machine, folder: Path) -> Iterator[None]:
    command = ["redis-server", "--bind", SWITCH, "--port", str(PORT), "--protected-mode", "no", "--save", ""]
    connect = f"import socket; socket.create_connection(({SWITCH!r}, {PORT}), 5)"
    asking = [*switch.inside, sys.executable, "-c", connect]
    command = [*switch.inside, *command, "--dir", str(folder)]
    with serving(command, folder / "redis.log", lambda: capture(asking).status == 0):
        yield


def _first_build(pipeline: Pipeline, machine: Machine, engine: str, env: dict[str, str]) -> First:
    from spark_images.record import read_records

    command = [*machine.inside, *pipeline.command("build", "cached", "--engine", engine, "--memory", "2GiB")]
    began = time.monotonic()
    done = capture(command, env={**machine.env, **env})
    whole_s = time.monotonic() - began
    if done.status != 0:
        raise CheckError(f"a build on {machine.address} ended with {done.status}", why=done.stderr.splitlines()[-5:])
    (view,) = read_records(machine.cache / "records")
    step = compiled(view)
    if step is None:
        raise CheckError("the build left no record of its compile")
    kept = view.folder / "compile-cache.json"
    taken = json.loads(kept.read_text())["taken"] if kept.exists() else {"seconds": 0}
    (place,) = (machine.cache / "images").iterdir()
    return First(whole_s=whole_s, step=step, taking_s=taken["seconds"], digest=read_layout(place).manifest_digest)


def _drop(subject: Subject, machine: Machine, engine: str) -> None:
    from spark_images.engine import choose_engine

    buildkit_image = subject.project.buildkit_image(os.environ)
    choose_engine(engine, cache=Cache(machine.cache), buildkit_image=buildkit_image, env=machine.env).drop_caches()
