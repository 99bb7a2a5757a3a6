import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spark_images.errors import DiskFullError
from spark_images.files import create_text, room_on, write_text


def test_write_replaces_the_whole_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_text(path, "a long first text\n")
    write_text(path, "ü\n")
    assert path.read_bytes() == "ü\n".encode()
    assert [file.name for file in tmp_path.iterdir()] == ["result.json"]


def test_write_honours_mode_and_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "replay.sh", "", mode=0o777)
        write_text(tmp_path / "plan.json", "")
    finally:
        os.umask(before)
    assert (tmp_path / "replay.sh").stat().st_mode & 0o777 == 0o750
    assert (tmp_path / "plan.json").stat().st_mode & 0o777 == 0o640


def test_create_leaves_an_existing_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "tests.json"
    create_text(path, "first")
    with pytest.raises(FileExistsError):
        create_text(path, "second")
    assert path.read_text() == "first"
    assert [file.name for file in tmp_path.iterdir()] == ["tests.json"]


def test_file_is_whole_while_it_is_rewritten_and_after_the_writer_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "index"
    write_text(path, "a" * 3_000_000)
    writer = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from pathlib import Path; from spark_images.files import write_text\n"
            "while True:\n"
            "    for letter in 'ab': write_text(Path(sys.argv[1]), letter * 3_000_000)",
            str(path),
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    seen = []
    end_s = time.monotonic() + 1.0
    while time.monotonic() < end_s:
        text = path.read_text()
        seen.append((len(text), len(set(text))))
    writer.send_signal(signal.SIGKILL)
    assert writer.wait() == -signal.SIGKILL
    text = path.read_text()
    assert {*seen, (len(text), len(set(text)))} == {(3_000_000, 1)}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_no_room_names_the_place_and_the_way_out(tmp_path: Path, number: int) -> None:
    with pytest.raises(DiskFullError) as caught, room_on(tmp_path / "not" / "there", 5 << 20):
        raise OSError(number, os.strerror(number))
    assert f"no room left to write `{tmp_path}/not/there`" in caught.value.render()
    assert "5 MiB are needed; its file system has " in caught.value.render()
    assert "./noxw -s prune" in caught.value.hint


def test_other_errors_stay_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(NotADirectoryError), room_on(tmp_path):
        raise NotADirectoryError(errno.ENOTDIR, "")


def test_full_file_system_keeps_the_old_file(tmp_path: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("a small file system can only be mounted by root, outside of most containers")
    try:
        write_text(tmp_path / "lock", "old")
        with pytest.raises(DiskFullError):
            write_text(tmp_path / "lock", "x" * 200_000)
        assert (tmp_path / "lock").read_text() == "old"
        assert [file.name for file in tmp_path.iterdir()] == ["lock"]
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
