"""`reproduce` finds what is not determined by the plan, and names it."""

from __future__ import annotations

from pathlib import Path

from pipeline import make_pipeline

from spark_images.cache import Cache
from spark_images.engine.base import Engine

PLANTS = {
    "chance": "head -c 8 /dev/urandom",
    "host": "cat /proc/sys/kernel/hostname",
    # where the host has what is mounted; BuildKit gets a copy of it, and no step sees a path of ours
    "path": r"sed -n 's:^[^/]*\(/[^ ]*\) /spark/inputs .*:\1:p' /proc/self/mountinfo",
}


def test_a_planted_non_determinism_is_found_and_its_file_named(
    engine: Engine, engine_caches: dict[str, Cache], tmp_path: Path
) -> None:
    pipeline = make_pipeline(tmp_path, engine_caches[engine.name].root)
    plants = [
        f"{how} >/out/hello/opt/hello/{name}\n[ -s /out/hello/opt/hello/{name} ]\n" for name, how in PLANTS.items()
    ]
    pipeline.misbehave("".join(plants))
    done = pipeline("reproduce", "hello", "--engine", engine.name, "--memory", "512MiB")
    assert done.returncode == 50, done.stdout + done.stderr
    assert "came out differently from the same plan" in done.stderr
    named = {name for name in PLANTS if f": opt/hello/{name}: differs" in done.stderr}
    assert named >= ({"chance", "host"} if engine.name == "docker" else set(PLANTS)), done.stderr
    assert "opt/hello/hello" not in done.stderr
    assert "Traceback" not in done.stderr
