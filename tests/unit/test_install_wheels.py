"""scripts/install_wheels, run as a build stage runs it."""

from __future__ import annotations

import csv
import hashlib
import os
import subprocess
import zipfile
from pathlib import Path

import pytest
from wheels import make_wheel

SCRIPT = Path(__file__).parents[2] / "scripts/install_wheels"
SITE = "usr/local/lib/python3.11/dist-packages"
SAME = b"# of every nvidia package\n"
INFO = ("METADATA", "RECORD", "WHEEL")


def install(wheels: Path, out: Path, *without: str, umask: int = 0o022) -> subprocess.CompletedProcess[str]:
    command = [str(SCRIPT), "3.11", str(wheels), str(out), *without]
    return subprocess.run(command, capture_output=True, text=True, umask=umask, check=False)


def refusal(wheels: Path, out: Path, *without: str) -> str:
    done = install(wheels, out, *without)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return done.stderr.removeprefix("install_wheels: ").strip()


def tree(folder: Path) -> dict[str, tuple[int, int, str]]:
    """Path -> mode, time and content of everything in a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path.relative_to(folder))] = (path.stat().st_mode, int(path.stat().st_mtime), content)
    return found


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    blas = {"nvidia/__init__.py": SAME, "nvidia/cu13/lib/libblas.so": b"\x7fELF of another machine"}
    make_wheel(folder / "cuda", "nvidia-blas", files=blas, tag="py3-none-manylinux_2_27_aarch64")
    make_wheel(folder / "cuda", "nvidia-fft", files={"nvidia/__init__.py": SAME, "nvidia/cu13/lib/libfft.so": b"fft"})
    make_wheel(
        folder / "app",
        "an-app",
        "2.0",
        files={
            "an_app/__init__.py": b"def main() -> int:\n    print('it runs')\n    return 3\n",
            "an_app/bin/tool": b"\x7fELF",
            "an_app-2.0.data/scripts/old-style": b"#!python -s\nimport an_app\n",
            "an_app-2.0.data/scripts/shell": b"#!/bin/sh\n",
            "an_app-2.0.data/data/share/man/man1/an-app.1": b"manual",
            "an_app-2.0.data/purelib/an_app/more.py": b"MORE = 1\n",
        },
        programs=frozenset({"an_app/bin/tool"}),
        entry_points="[console_scripts]\nan-app = an_app:main\nOther = an_app.more:Class.run [extra]\n[other]\nx = y\n",
    )
    return folder


def test_each_layer_gets_what_its_own_wheels_hold(wheels: Path, tmp_path: Path) -> None:
    done = install(wheels, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    files = {name for name in tree(tmp_path / "out") if (tmp_path / "out" / name).is_file()}
    assert files == {
        "app/usr/local/bin/Other",
        "app/usr/local/bin/an-app",
        "app/usr/local/bin/old-style",
        "app/usr/local/bin/shell",
        "app/usr/local/share/man/man1/an-app.1",
        *(
            f"app/{SITE}/an_app{name}"
            for name in ("/__init__.py", "/bin/tool", "/more.py", *(f"-2.0.dist-info/{one}" for one in INFO))
        ),
        f"app/{SITE}/an_app-2.0.dist-info/entry_points.txt",
        f"cuda/{SITE}/nvidia/__init__.py",
        f"cuda/{SITE}/nvidia/cu13/lib/libblas.so",
        f"cuda/{SITE}/nvidia/cu13/lib/libfft.so",
        *(f"cuda/{SITE}/nvidia_{name}-1.0.dist-info/{one}" for name in ("blas", "fft") for one in INFO),
    }
    assert "installed cuda: 2 wheels, 9 files" in done.stdout


def test_two_runs_give_the_same_tree_whatever_umask_and_order(wheels: Path, tmp_path: Path) -> None:
    install(wheels, tmp_path / "one")
    turned = tmp_path / "turned"
    for path in sorted(wheels.glob("*/*.whl"), reverse=True):
        (turned / path.parent.name).mkdir(parents=True, exist_ok=True)
        (turned / path.parent.name / path.name).write_bytes(path.read_bytes())
    install(turned, tmp_path / "other", umask=0o077)
    assert tree(tmp_path / "one") == tree(tmp_path / "other") != {}


def test_another_wheel_in_one_layer_leaves_the_others_as_they_are(wheels: Path, tmp_path: Path) -> None:
    install(wheels, tmp_path / "one")
    make_wheel(wheels / "app", "an-app", "2.1", files={"an_app/__init__.py": b"new"})
    (wheels / "app/an_app-2.0-py3-none-any.whl").unlink()
    install(wheels, tmp_path / "other")
    assert tree(tmp_path / "one/cuda") == tree(tmp_path / "other/cuda")
    assert tree(tmp_path / "one/app") != tree(tmp_path / "other/app")


def test_scripts_run_with_debians_python(wheels: Path, tmp_path: Path) -> None:
    install(wheels, tmp_path / "out")
    program = tmp_path / "out/app/usr/local/bin/an-app"
    assert program.read_text().startswith("#!/usr/bin/python3\n")
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "out/app" / SITE), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([program], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "it runs\n")
    assert "from an_app.more import Class\n" in program.with_name("Other").read_text()
    assert "sys.exit(Class.run())" in program.with_name("Other").read_text()


def test_a_script_for_python_gets_the_images_python_and_others_stay(wheels: Path, tmp_path: Path) -> None:
    install(wheels, tmp_path / "out")
    bin_folder = tmp_path / "out/app/usr/local/bin"
    assert (bin_folder / "old-style").read_bytes() == b"#!/usr/bin/python3\nimport an_app\n"
    assert (bin_folder / "shell").read_bytes() == b"#!/bin/sh\n"


def test_modes_are_those_of_the_wheel_whatever_else_is_in_them(wheels: Path, tmp_path: Path) -> None:
    install(wheels, tmp_path / "out", umask=0o077)
    modes = {name: oct(mode & 0o7777) for name, (mode, _, _) in tree(tmp_path / "out/app").items()}
    assert modes[f"{SITE}/an_app/bin/tool"] == modes["usr/local/bin/shell"] == modes["usr/local/bin/an-app"] == "0o755"
    assert modes[f"{SITE}/an_app/more.py"] == "0o644"
    assert modes[SITE] == "0o755"


def test_record_says_where_each_file_lies_now(wheels: Path, tmp_path: Path) -> None:
    install(wheels, tmp_path / "out")
    site = tmp_path / "out/app" / SITE
    rows = list(csv.reader((site / "an_app-2.0.dist-info/RECORD").read_text().splitlines()))
    assert rows[-1] == ["an_app-2.0.dist-info/RECORD", "", ""]
    assert [row[0] for row in rows[:-1]] == sorted(row[0] for row in rows[:-1])
    assert {(site / row[0]).resolve() for row in rows} == {
        path.resolve() for path in (tmp_path / "out/app").rglob("*") if path.is_file()
    }
    assert all((site / name).stat().st_size == int(size) for name, _, size in rows[:-1])


def test_a_file_that_is_left_out_is_in_no_record(wheels: Path, tmp_path: Path) -> None:
    install(wheels, tmp_path / "out", "an_app/more.py")
    site = tmp_path / "out/app" / SITE
    assert not (site / "an_app/more.py").exists()
    assert "more.py" not in (site / "an_app-2.0.dist-info/RECORD").read_text()


def test_leaving_out_what_no_wheel_has_is_an_error(wheels: Path, tmp_path: Path) -> None:
    assert refusal(wheels, tmp_path / "out", "an_app/gone.py") == "no wheel has an_app/gone.py, which is to be left out"


def test_two_wheels_with_other_content_at_one_path_are_an_error_that_names_both(wheels: Path, tmp_path: Path) -> None:
    make_wheel(wheels / "app", "sloppy", files={"nvidia/__init__.py": b"something else"})
    assert refusal(wheels, tmp_path / "out") == (
        f"sloppy-1.0-py3-none-any.whl and nvidia_blas-1.0-py3-none-manylinux_2_27_aarch64.whl both write "
        f"/{SITE}/nvidia/__init__.py, and not the same"
    )


def test_a_conflict_goes_away_when_the_file_is_left_out(wheels: Path, tmp_path: Path) -> None:
    make_wheel(wheels / "app", "sloppy", files={"nvidia/__init__.py": b"something else"})
    assert install(wheels, tmp_path / "out", "nvidia/__init__.py").returncode == 0


def test_a_file_of_one_wheel_that_is_a_folder_of_another_is_an_error(wheels: Path, tmp_path: Path) -> None:
    make_wheel(wheels / "app", "sloppy", files={"nvidia/cu13": b"a file"})
    assert f"/{SITE}/nvidia/cu13 is a file in sloppy-1.0" in refusal(wheels, tmp_path / "out")


def test_one_project_twice_is_an_error(wheels: Path, tmp_path: Path) -> None:
    make_wheel(wheels / "cuda", "an.app", "3.0")
    text = refusal(wheels, tmp_path / "out")
    assert text == "an_app-2.0-py3-none-any.whl and an.app-3.0-py3-none-any.whl are the same project"


def test_byte_code_is_not_installed(wheels: Path, tmp_path: Path) -> None:
    make_wheel(wheels / "app", "compiled", files={"compiled/__pycache__/a.cpython-311.pyc": b"code"})
    install(wheels, tmp_path / "out")
    assert not list((tmp_path / "out").rglob("*.pyc"))
    assert "pyc" not in (tmp_path / "out/app" / SITE / "compiled-1.0.dist-info/RECORD").read_text()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("../../etc/passwd", "the name `../../etc/passwd` leads out of the folder"),
        ("/etc/passwd", "the name `/etc/passwd` leads out of the folder"),
        ("odd-1.0.data/lib/x", "nobody knows where `odd-1.0.data/lib/x` belongs"),
    ],
)
def test_a_name_that_has_no_place_is_an_error(tmp_path: Path, name: str, text: str) -> None:
    make_wheel(tmp_path / "wheels/app", "odd", files={name: b"x"})
    assert refusal(tmp_path / "wheels", tmp_path / "out") == f"odd-1.0-py3-none-any.whl: {text}"
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_not_what_record_says_is_an_error(tmp_path: Path) -> None:
    wrong = "sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU"
    make_wheel(tmp_path / "wheels/app", "odd", files={"odd.py": b"x = 1\n"}, record={"odd.py": wrong})
    text = refusal(tmp_path / "wheels", tmp_path / "out")
    assert text == "odd-1.0-py3-none-any.whl: `odd.py` is not what its RECORD says"


def test_a_file_that_record_does_not_know_is_an_error(tmp_path: Path) -> None:
    make_wheel(tmp_path / "wheels/app", "odd", files={"odd.py": b"x = 1\n"}, record={"odd.py": ""})
    text = refusal(tmp_path / "wheels", tmp_path / "out")
    assert text == "odd-1.0-py3-none-any.whl: its RECORD has no sha256 of `odd.py`"


def test_a_symbolic_link_is_an_error(tmp_path: Path) -> None:
    path = make_wheel(tmp_path / "wheels/app", "odd")
    link = zipfile.ZipInfo("odd/link")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(link, "/etc/passwd")
    assert "`odd/link` is a symbolic link" in refusal(tmp_path / "wheels", tmp_path / "out")


def test_another_form_of_wheels_is_an_error(tmp_path: Path) -> None:
    make_wheel(tmp_path / "wheels/app", "odd", form="2.0")
    text = refusal(tmp_path / "wheels", tmp_path / "out")
    assert text == "odd-1.0-py3-none-any.whl has the form 2.0, and 1.x is what is known here"


def test_what_is_no_archive_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "wheels/app").mkdir(parents=True)
    (tmp_path / "wheels/app/odd-1.0-py3-none-any.whl").write_bytes(b"<html>")
    assert refusal(tmp_path / "wheels", tmp_path / "out") == (
        "odd-1.0-py3-none-any.whl cannot be read: File is not a zip file"
    )


def test_no_wheels_at_all_are_an_error(tmp_path: Path) -> None:
    assert refusal(tmp_path, tmp_path / "out") == f"there is no {tmp_path}/<layer>/*.whl"
