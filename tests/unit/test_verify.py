"""All gates in turn: one that cannot be had does not keep the others from running, and the end names it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from small_project import make_project

from spark_images.cache import Cache
from spark_images.errors import (
    AuditError,
    CheckError,
    HostProgramError,
    InterruptedByUser,
    RouteError,
    SparkImagesError,
)
from spark_images.verify import verify


def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, audit: SparkImagesError, smoke: SparkImagesError) -> None:
    """Verify an image whose audit and smoke end so, and whose tests say that they ran."""

    def fail(error: SparkImagesError) -> object:
        def failing(*_: object, **__: object) -> None:
            raise error

        return failing

    project = make_project(tmp_path / "project")
    image = project.image("hello")
    target, base = project.variant(image, None, None)
    monkeypatch.setattr("spark_images.verify.built_layout", lambda *_: SimpleNamespace(manifest_digest="sha256:1"))
    monkeypatch.setattr("spark_images.verify.cuobjdump_of", fail(audit))
    monkeypatch.setattr("spark_images.verify.test", lambda *_, **__: print("tests ran"))
    monkeypatch.setattr("spark_images.verify.smoke_image", fail(smoke))
    verify(project, image, target, base, cache=Cache(tmp_path / "cache"), engine=None, require_gpu=False)


def test_a_gate_that_cannot_run_here_does_not_keep_the_others_from_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CheckError) as failed:
        run(tmp_path, monkeypatch, audit=AuditError("findings: 1"), smoke=HostProgramError("no CDI file"))
    assert "tests ran" in capsys.readouterr().out
    assert failed.value.what == "`hello` did not pass audit, smoke"
    assert failed.value.why == ("audit: findings: 1", "smoke: no CDI file")


def test_where_nothing_is_red_the_error_is_the_one_that_ci_may_try_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RouteError, match="no route serves it"):
        run(tmp_path, monkeypatch, audit=RouteError("no route serves it"), smoke=HostProgramError("no CDI file"))
    assert "no CDI file" in capsys.readouterr().err


def test_ctrl_c_ends_it_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InterruptedByUser):
        run(tmp_path, monkeypatch, audit=InterruptedByUser("stopped"), smoke=HostProgramError("never reached"))
