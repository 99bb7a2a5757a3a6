"""What the audit prints, keeps and exits with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from audited import KERNELS, audit, auditor, program, write_image
from gpu_code import gpu_library
from small_project import make_project
from wheels import make_wheel

from spark_images import cli
from spark_images.audit.judge import CHECKS
from spark_images.audit.report import SHOWN, findings_text, listed, summary, table
from spark_images.audit.run import finish, target_of
from spark_images.errors import AuditError, ContentError, UsageError
from spark_images.images import Excuse
from spark_images.oci import read_layout
from spark_images.verdicts import kept_verdicts


def test_table_has_a_line_for_each_library(tmp_path: Path) -> None:
    excuse = Excuse(pattern="*/fa3.so", because="it is for 9.0")
    files = {
        "opt/app/fa3.so": gpu_library(["sm_90a"]),
        "opt/app/fa2.so": gpu_library(["sm_80", "compute_80"], ["sm_120f"]),
    }
    assert list(table(audit(tmp_path, files, about={"never_called": (excuse,)}).subject)) == [
        "GPU code for gb10 (compute capability 12.1):",
        "  library                 modules  native  by driver  not  code",
        "  /opt/app/fa2.so               2       1          1    0  compute_80 sm_120f sm_80",
        "  /opt/app/fa3.so               1       0          0    1  sm_90a (never called)",
        "  /opt/app/libkernels.so        2       2          0    0  sm_120f sm_121a sm_80",
    ]


def test_failures_come_first_and_many_findings_are_cut(tmp_path: Path) -> None:
    files = {f"opt/k{number:02}.so": gpu_library(["sm_90a"]) for number in range(SHOWN + 3)}
    result = audit(tmp_path, files, settings={"User": ""})
    lines = list(findings_text(result.findings))
    assert lines[0].startswith("fail: gpu.no-usable-code: the first call")
    assert lines[1] == "    /opt/k00.so: of 1 modules none runs on 12.1: 1 sm_90a"
    assert lines[SHOWN + 1] == "    and 3 more (`--json` has them all)"
    assert lines[-2:] == [
        "warn: config.root: what breaks out of the server is root in the container",
        "    it runs as root",
    ]
    assert len(result.document["findings"]) == SHOWN + 4


def test_summary_says_how_fast_it_was() -> None:
    assert summary(files=3, size_bytes=3_000_000_000, seconds=1.5) == "read 3 files, 2.8 GiB in 1.5 s: 2.00 GB/s"


def test_list_names_every_check_with_reason_and_source() -> None:
    lines = list(listed(CHECKS))
    assert len(lines) == len(CHECKS)
    assert lines[1].split()[:2] == ["gpu.no-usable-code", "fail"]
    assert "Compute Capabilities)" in lines[1]


def test_failure_is_an_error_of_its_own_class_after_the_json_was_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = audit(tmp_path, {KERNELS: gpu_library(["sm_90a"])}, settings={"Env": ["MAX_JOBS=4"]})
    with pytest.raises(AuditError) as caught:
        finish(result, tmp_path / "audit.json")
    assert caught.value.exit_status == 61
    assert caught.value.why == ("gpu.no-usable-code: 1", "config.build-variable: 1")
    assert json.loads((tmp_path / "audit.json").read_text()) == result.document
    assert "GB/s" in capsys.readouterr().out


def test_warnings_alone_are_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finish(audit(tmp_path, settings={"User": "0:0"}), None)
    assert "`image` holds what it must; warnings: 1" in capsys.readouterr().err


def test_target_is_the_one_that_is_named_or_the_labels(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    assert target_of(project, None, "gb10", "x").name == "gb10"
    assert target_of(project, "cpu", "gb10", "x").name == "cpu"
    with pytest.raises(UsageError, match="`x` does not say for which machine it is"):
        target_of(project, None, "", "x")
    with pytest.raises(UsageError, match="no target `pi`, which the label of `x` names"):
        target_of(project, None, "pi", "x")
    with pytest.raises(UsageError, match=r"no target `gb1`$"):
        target_of(project, "gb1", "", "x")


def test_built_image_gets_a_verdict(tmp_path: Path) -> None:
    own = auditor(tmp_path / "own")
    image = own.project.image("hello")
    target, base = own.project.variant(image, "gb10", "debian")
    plan = own.project.plan(image, target, base)
    place = own.cache.images / plan.plan_id
    place.parent.mkdir(parents=True)
    write_image(tmp_path, settings={"Env": ["MAX_JOBS=4"]}).rename(place)
    result = own.built(image, target, base)
    assert [finding.check.id for finding in result.findings] == ["config.build-variable"]
    (verdict,) = kept_verdicts(own.cache, plan.plan_id)
    assert (verdict.gate.value, verdict.colour.value, verdict.evidence) == ("audit", "red", "failures: 1, warnings: 0")
    assert verdict.digest == read_layout(place).manifest_digest


# --- wheels -----------------------------------------------------------------------------------------------------------


def test_wheel_is_judged_as_if_it_were_unpacked(tmp_path: Path) -> None:
    files = {"k/_C.so": gpu_library(["sm_121a"], ["sm_90a"]), "k/__init__.py": b"", "k/main.py": b"import k\n"}
    wheel = make_wheel(tmp_path, "k", files=files, entry_points="[console_scripts]\nk = k.main:run\n", tag=ARM64)
    own = auditor(tmp_path / "own")
    result = own.wheel(wheel, target_of(own.project, "gb10", "", ""))
    assert [finding.check.id for finding in result.findings] == ["gpu.module-not-usable"]
    assert [row["path"] for row in result.document["gpu"]] == ["/k/_C.so"]
    assert result.subject.sources.read == 2


def test_wheel_whose_record_is_wrong_fails(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "k", files={"k.py": b"x = 1\n"}, record={"k.py": "sha256=" + "A" * 43})
    own = auditor(tmp_path / "own")
    result = own.wheel(wheel, target_of(own.project, "gb10", "", ""))
    assert [finding.text for finding in result.failures] == ["/k.py: not as k 1.0 brought it"]


def test_file_that_is_no_wheel_is_refused(tmp_path: Path) -> None:
    own = auditor(tmp_path / "own")
    target = target_of(own.project, "gb10", "", "")
    (tmp_path / "k-1.0-py3-none-any.whl").write_bytes(b"PK, but no archive")
    with pytest.raises(ContentError, match="is no complete wheel"):
        own.wheel(tmp_path / "k-1.0-py3-none-any.whl", target)
    with pytest.raises(UsageError, match="is not a wheel's name"):
        own.wheel(tmp_path / "k.whl", target)


def test_damaged_member_of_a_wheel_is_an_error(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "k", files={"k.py": b"x = 1\n" * 1000})
    data = wheel.read_bytes()
    at = data.index(b"k.py") + 4
    wheel.write_bytes(data[:at] + bytes(20) + data[at + 20 :])
    own = auditor(tmp_path / "own")
    with pytest.raises(ContentError, match="is no complete wheel"):
        own.wheel(wheel, target_of(own.project, "gb10", "", ""))


ARM64 = "cp312-abi3-manylinux_2_28_aarch64"


# --- the command line -------------------------------------------------------------------------------------------------


def run(project: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setenv("SPARK_IMAGES_CACHE", str(cache))
    return cli.main(["--project", str(project), "audit", *words])


def test_layout_says_itself_what_it_is_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_project(tmp_path / "project")
    layout = write_image(tmp_path, {KERNELS: program("libc.so.6")})
    assert run(tmp_path / "project", tmp_path / "cache", monkeypatch, str(layout)) == 0


def test_mistyped_image_is_offered_the_nearest_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_project(tmp_path / "project")
    assert run(tmp_path / "project", tmp_path / "cache", monkeypatch, "helo") == 2
    assert "did you mean `hello`?" in capsys.readouterr().err


@pytest.mark.parametrize("what", ["xyz", "./no/such/folder", "k.whl"])
def test_what_is_nothing_is_refused_with_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    make_project(tmp_path / "project")
    assert run(tmp_path / "project", tmp_path / "cache", monkeypatch, what) == 2
    assert "is no image of this repository" in capsys.readouterr().err


def test_nothing_asked_for_is_refused_and_the_list_needs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, tmp_path / "cache", monkeypatch) == 2
    assert run(tmp_path, tmp_path / "cache", monkeypatch, "--list") == 0
    assert len(capsys.readouterr().out.splitlines()) == len(CHECKS)
