"""`reproduce` finds what is not determined by the plan, and names it."""

from __future__ import annotations

from pathlib import Path

from pipeline import make_pipeline

from spark_images.engine.base import Engine


def test_a_planted_non_determinism_is_found_and_its_file_named(engine: Engine, tmp_path: Path) -> None:
    pipeline = make_pipeline(tmp_path, tmp_path / "cache")
    pipeline.misbehave("head -c 8 /dev/urandom >/out/hello/opt/hello/planted\n")
    done = pipeline("reproduce", "hello", "--engine", engine.name, "--memory", "512MiB")
    assert done.returncode == 50, done.stdout + done.stderr
    assert "came out differently from the same plan" in done.stderr
    assert "opt/hello/planted" in done.stderr
    assert "Traceback" not in done.stderr
