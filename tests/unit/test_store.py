from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from file_server import digest

from spark_images.errors import ContentError
from spark_images.store import Pruned, Store

DATA = b"content of an object\n" * 1000


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def put(store: Store, data: bytes) -> str:
    with store.incoming(digest(data)) as incoming:
        incoming.open()
        incoming.write(data)
        incoming.commit()
    return digest(data)


def test_committed_object_lies_by_its_digest_and_cannot_be_written(store: Store) -> None:
    name = digest(DATA).removeprefix("sha256:")

    put(store, DATA)

    path = store.root / "sha256" / name[:2] / name
    assert store.path(digest(DATA)) == path
    assert path.read_bytes() == DATA
    assert path.stat().st_mode & 0o777 == 0o444
    assert list((store.root / "partial").iterdir()) == []


def test_object_is_invisible_until_it_is_committed(store: Store) -> None:
    with store.incoming(digest(DATA)) as incoming:
        incoming.open()
        incoming.write(DATA)
        assert not store.has(digest(DATA))
        incoming.commit()
        assert store.has(digest(DATA))


def test_commit_of_other_bytes_is_refused(store: Store) -> None:
    with store.incoming(digest(DATA)) as incoming:
        incoming.open()
        incoming.write(DATA[:-1])
        with pytest.raises(ContentError):
            incoming.commit()
    assert not store.has(digest(DATA))


def test_partial_is_resumed_with_its_hash(store: Store) -> None:
    with store.incoming(digest(DATA)) as incoming:
        incoming.open()
        incoming.write(DATA[:777])
    with store.incoming(digest(DATA)) as incoming:
        assert incoming.open() == 777
        incoming.write(DATA[777:])
        incoming.commit()
    assert store.verify(digest(DATA))


def test_partial_is_emptied_where_it_must_not_be_resumed(store: Store) -> None:
    with store.incoming(digest(DATA)) as incoming:
        incoming.open()
        incoming.write(b"from another time")
        assert incoming.open(resume=False) == 0
        incoming.write(DATA)
        incoming.commit()
    assert store.verify(digest(DATA))


def test_add_file_moves_what_has_the_digest(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "made"
    file.write_bytes(DATA)

    path = store.add_file(file, digest(DATA))

    assert path.read_bytes() == DATA
    assert path.stat().st_mode & 0o777 == 0o444
    assert not file.exists()


def test_add_file_refuses_another_content_and_leaves_the_file(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "made"
    file.write_bytes(b"other")

    with pytest.raises(ContentError) as caught:
        store.add_file(file, digest(DATA))

    assert digest(b"other") in caught.value.render()
    assert file.exists()
    assert not store.has(digest(DATA))


def test_add_file_works_across_file_systems(store: Store) -> None:
    other = Path("/dev/shm")
    store.root.mkdir(parents=True)
    if not other.is_dir() or other.stat().st_dev == store.root.stat().st_dev:
        pytest.skip("this host has no second file system to write to")
    file = other / f"spark-images-test-{os.getpid()}"
    file.write_bytes(DATA)

    assert store.add_file(file, digest(DATA)).read_bytes() == DATA
    assert not file.exists()


def test_link_is_the_same_file(store: Store, tmp_path: Path) -> None:
    put(store, DATA)

    store.link(digest(DATA), tmp_path / "linked")

    assert (tmp_path / "linked").samefile(store.path(digest(DATA)))


def test_link_across_file_systems_is_a_read_only_copy(store: Store) -> None:
    put(store, DATA)
    folder = Path("/dev/shm")
    if not folder.is_dir() or folder.stat().st_dev == store.root.stat().st_dev:
        pytest.skip("this host has no second file system to write to")
    dest = folder / f"spark-images-test-link-{os.getpid()}"
    try:
        store.link(digest(DATA), dest)
        assert dest.read_bytes() == DATA
        assert dest.stat().st_mode & 0o777 == 0o444
    finally:
        dest.unlink()


def test_verify_sees_a_changed_object(store: Store) -> None:
    put(store, DATA)
    assert store.verify(digest(DATA))
    path = store.path(digest(DATA))
    path.chmod(0o644)
    path.write_bytes(DATA + b"!")
    assert not store.verify(digest(DATA))


@pytest.mark.parametrize("name", ["sha256:" + "A" * 64, "sha256:abc", "md5:" + "0" * 64, "0" * 64, "sha256:../../x"])
def test_what_is_no_digest_never_becomes_a_path(store: Store, name: str) -> None:
    with pytest.raises(ValueError, match="not a digest"):
        store.path(name)


def test_prune_removes_what_is_not_named_and_says_how_much(store: Store) -> None:
    kept, gone = put(store, DATA), put(store, b"x" * 5000)
    with store.incoming(digest(b"never complete")) as incoming:
        incoming.open()
        incoming.write(b"nev")

    pruned = store.prune({kept})

    assert (pruned.count, pruned.size_bytes) == (2, 5003)
    assert store.has(kept)
    assert not store.has(gone)
    assert list((store.root / "partial").iterdir()) == []
    assert store.prune({kept}).count == 0


def test_prune_on_trial_counts_and_removes_nothing(store: Store) -> None:
    gone = put(store, b"x" * 5000)
    assert store.prune(set(), dry_run=True) == Pruned(count=1, size_bytes=5000)
    assert store.has(gone)


def test_prune_does_not_count_as_freed_what_a_build_still_links_to(store: Store, tmp_path: Path) -> None:
    store.link(put(store, DATA), tmp_path / "input")
    assert store.prune(set()) == Pruned(count=1, size_bytes=0)
    assert (tmp_path / "input").read_bytes() == DATA


def test_prune_leaves_what_is_being_brought(store: Store) -> None:
    with store.incoming(digest(DATA)) as incoming:
        incoming.open()
        incoming.write(DATA)
        assert store.prune(set()).count == 0
        incoming.commit()
    assert store.has(digest(DATA))


def _bring(root: Path, at: float, log: multiprocessing.Queue[str]) -> None:
    time.sleep(max(0.0, at - time.time()))
    with Store(root).incoming(digest(DATA)) as incoming:
        if incoming.present:
            log.put("present")
            return
        incoming.open()
        incoming.write(DATA)
        time.sleep(0.3)
        incoming.commit()
        log.put("brought")


def test_of_many_processes_one_brings_and_the_others_wait(store: Store) -> None:
    context = multiprocessing.get_context("spawn")
    log: multiprocessing.Queue[str] = context.Queue()
    at = time.time() + 1.0
    processes = [context.Process(target=_bring, args=(store.root, at, log)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)

    assert [process.exitcode for process in processes] == [0, 0, 0, 0]
    assert sorted(log.get(timeout=5) for _ in range(4)) == ["brought", "present", "present", "present"]
    assert store.verify(digest(DATA))


def test_kill_9_frees_the_lock_and_keeps_the_partial(store: Store) -> None:
    script = (
        "import sys, time; from pathlib import Path; from spark_images.store import Store\n"
        "with Store(Path(sys.argv[1])).incoming(sys.argv[2]) as incoming:\n"
        "    incoming.open(); incoming.write(b'begun'); print('ready', flush=True); time.sleep(60)\n"
    )
    source = Path(__file__).parents[2] / "src"
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(store.root), digest(b"begun and done")],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(source)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()

    with store.incoming(digest(b"begun and done")) as incoming:
        assert incoming.open() == len(b"begun")
        incoming.write(b" and done")
        incoming.commit()
    assert store.verify(digest(b"begun and done"))


def test_working_folder_is_empty_though_a_killed_process_left_files(store: Store) -> None:
    with store.incoming(digest(DATA)) as incoming:
        left = incoming.path.with_suffix(".d")
        left.mkdir()
        (left / "old").touch()
        with incoming.folder() as folder:
            assert list(folder.iterdir()) == []
        assert not folder.exists()


def test_really_full_file_system_is_reported_and_nothing_is_visible(tmp_path: Path) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    script = (
        "import sys; from pathlib import Path; from spark_images.store import Store\n"
        "from spark_images.errors import DiskFullError\n"
        "store = Store(Path(sys.argv[1]))\n"
        "try:\n"
        "    with store.incoming('sha256:' + '0' * 64) as incoming:\n"
        "        incoming.open()\n"
        "        while True: incoming.write(b'x' * (1 << 20))\n"
        "except DiskFullError as err:\n"
        "    print(err.render()); assert not store.has('sha256:' + '0' * 64)\n"
    )
    source = Path(__file__).parents[2] / "src"
    inside = 'mount -t tmpfs -o size=3m tmpfs "$1" && exec "$2" -c "$3" "$1"'
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", inside, "sh"]
    if not shutil.which("unshare") or subprocess.run([*command[:4], "true"], check=False).returncode != 0:
        pytest.skip("this host does not let us mount a small file system")

    ended = subprocess.run(
        [*command, str(mount), sys.executable, script],
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
    assert f"no room left to write `{mount}`" in ended.stdout
    assert "0 bytes free of 3 MiB" in ended.stdout
