from __future__ import annotations

import io
import tarfile
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from elf_files import EM_X86_64, shared_library
from values import GB10, HELLO

from spark_images.errors import CheckError
from spark_images.imagechecks import check_elf_machine, check_setuid, check_world_writable, find_library, tree_of
from spark_images.imagefiles import extract_file, walk_files
from spark_images.imagetest import ImageUnderTest, Subject, image_file
from spark_images.imagetest_run import Failure, TestResults, read_junit, run_image_tests
from spark_images.oci import read_layout, write_root_layout
from spark_images.project import Project

# --- from a layout to findings ----------------------------------------------------------------------------------------


def write_layout(folder: Path, *files: tuple[str, int, bytes]) -> Path:
    """An OCI layout of one layer. files: path, mode, content."""
    with tarfile.open(folder / "root.tar", "w") as tar:
        for name, mode, content in files:
            info = tarfile.TarInfo(name)
            info.mode, info.size = mode, len(content)
            tar.addfile(info, io.BytesIO(content))
    write_root_layout(folder / "root.tar", architecture="arm64", env=(), epoch=0, output=folder / "layout")
    return folder / "layout"


NEEDED = (("good", "libc.so.6"), ("lonely", "libmissing.so.1"))


def test_checks_find_what_is_wrong_in_a_layout(tmp_path: Path) -> None:
    path = write_layout(
        tmp_path,
        ("usr/lib/libc.so.6", 0o755, shared_library(soname="libc.so.6")),
        ("usr/bin/good", 0o755, shared_library(needed=["libc.so.6"])),
        ("usr/bin/foreign", 0o755, shared_library(machine=EM_X86_64)),
        ("usr/bin/lonely", 0o755, shared_library(needed=["libmissing.so.1"])),
        ("usr/bin/damaged", 0o755, shared_library()[:50]),
        ("usr/bin/su", 0o4755, b"#!/bin/sh\n"),
        ("etc/open", 0o666, b""),
    )
    tree = tree_of(image_file(entry) for entry in walk_files(read_layout(path)))
    machine = check_elf_machine(tree, "arm64")
    assert [finding.split(":")[0] for finding in machine] == ["/usr/bin/damaged", "/usr/bin/foreign"]
    assert [find_library(tree, tree[f"/usr/bin/{name}"], needed) for name, needed in NEEDED] == [
        "/usr/lib/libc.so.6",
        None,
    ]
    assert check_setuid(tree) == ("/usr/bin/su: mode 4755",)
    assert check_world_writable(tree) == ("/etc/open: mode 0666",)


def test_elf_file_of_many_megabytes_is_read(tmp_path: Path) -> None:
    path = write_layout(tmp_path, ("lib/big.so", 0o755, shared_library(needed=["a.so"]) + bytes(20 << 20)))
    (entry,) = (entry for entry in walk_files(read_layout(path)) if entry.path == "lib/big.so")
    file = image_file(entry)
    assert file.path == "/lib/big.so"
    assert file.elf is not None
    assert file.elf.needed == ("a.so",)


def test_file_larger_than_every_buffer_is_copied_out_whole(tmp_path: Path) -> None:
    content = b"".join(number.to_bytes(8, "big") for number in range(3 << 17))
    extract_file(read_layout(write_layout(tmp_path, ("lib/big.so", 0o755, content))), "/lib/big.so", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == content


# --- results ----------------------------------------------------------------------------------------------------------


def test_results_are_good_only_where_something_passed_and_nothing_else_happened() -> None:
    failure = Failure(test="test_x", reason="no")
    results = [
        TestResults(passed=passed, failures=failures, seconds=1)
        for passed, failures in ((1, ()), (0, ()), (1, (failure,)))
    ]
    assert [result.good for result in results] == [True, False, False]


def test_failures_errors_and_skips_of_junit_are_failures(tmp_path: Path) -> None:
    junit = tmp_path / "junit.xml"
    junit.write_text(
        """<testsuites><testsuite>
        <testcase name="test_a" time="1.25"/>
        <testcase name="test_b" time="0.5"><failure message="AssertionError: 1&#10;more">trace</failure></testcase>
        <testcase name="test_c" time="0"><error message="failed on setup"/></testcase>
        <testcase name="test_d" time="0"><skipped message="no reason"/></testcase>
        </testsuite></testsuites>"""
    )
    assert read_junit(junit) == TestResults(
        passed=1,
        failures=(
            Failure(test="test_b", reason="AssertionError: 1"),
            Failure(test="test_c", reason="failed on setup"),
            Failure(test="test_d", reason="no reason"),
        ),
        seconds=1.8,
    )


# --- the runner -------------------------------------------------------------------------------------------------------


@dataclass
class NoEngine:
    """An engine that is only asked for its name and environment."""

    name: str = "podman"
    env: dict[str, str] = field(default_factory=lambda: {"CONTAINERS_CONF": "/conf"})


def run(folder: Path, tests: str, *arguments: str, components: tuple[str, ...] = ()) -> TestResults:
    write_tests(folder, "toy", tests)
    return run_image_tests(
        Project(folder),
        replace(HELLO, name="toy", compile=replace(HELLO.compile, components=components)),
        GB10,
        "debian",
        layout=folder / "layout",
        reference="localhost/toy:1",
        engine=NoEngine(),  # type: ignore[arg-type]
        cuobjdump=folder / "cuobjdump",
        results=folder / "results",
        pytest_args=arguments,
    )


def test_runner_reports_what_passed_and_failed(tmp_path: Path) -> None:
    results = run(tmp_path, "def test_good():\n    pass\n\n\ndef test_bad():\n    assert 1 == 2\n")
    assert results.passed == 1
    assert results.failures == (Failure(test="test_bad", reason="assert 1 == 2"),)


def test_tests_get_the_subject_and_the_engines_environment(tmp_path: Path) -> None:
    results = run(
        tmp_path,
        "import json, os\n\n\ndef test_subject(pytestconfig):\n"
        "    subject = json.loads(pytestconfig.getoption('--subject').read_text())\n"
        "    assert (subject['reference'], subject['engine']) == ('localhost/toy:1', 'podman')\n"
        "    assert os.environ['CONTAINERS_CONF'] == '/conf'\n",
    )
    assert results.good, results.failures


def test_test_that_hangs_is_ended(tmp_path: Path) -> None:
    results = run(tmp_path, "import time\n\n\ndef test_hangs():\n    time.sleep(60)\n", "--timeout=1")
    assert [failure.test for failure in results.failures] == ["test_hangs"]
    assert "Timeout" in results.failures[0].reason


def write_tests(folder: Path, image: str, tests: str) -> None:
    place = folder / "images" / image / "tests"
    place.mkdir(parents=True)
    (place / f"test_{image or 'all'}.py").write_text(tests)


def test_tests_of_all_images_and_of_components_run_as_well(tmp_path: Path) -> None:
    write_tests(tmp_path, "", "def test_of_all():\n    assert 0\n")
    write_tests(tmp_path, "part", "def test_of_part():\n    assert 0\n")
    write_tests(tmp_path, "other", "def test_of_other():\n    assert 0\n")
    results = run(tmp_path, "def test_own():\n    pass\n", components=("part",))
    assert [failure.test for failure in results.failures] == ["test_of_all", "test_of_part"]
    assert results.passed == 1


def test_arguments_choose_tests(tmp_path: Path) -> None:
    assert run(tmp_path, "def test_a():\n    pass\n\n\ndef test_b():\n    assert 0\n", "-k", "test_a").good


@pytest.mark.parametrize(
    ("arguments", "meaning"), [(("-k", "nothing"), "no test was selected"), (("--no-such-option",), "bad arguments")]
)
def test_run_without_tests_is_an_error_and_not_a_success(
    tmp_path: Path, arguments: tuple[str, ...], meaning: str
) -> None:
    with pytest.raises(CheckError) as caught:
        run(tmp_path, "def test_a():\n    pass\n", *arguments)
    assert meaning in caught.value.render()


def test_test_file_that_cannot_be_imported_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckError, match="did not run"):
        run(tmp_path, "import nothing_of_this_name\n")


@pytest.mark.parametrize(("base", "stands_on"), [("debian", ""), ("ngc", "ngc-pytorch")])
def test_what_image_tests_ask_is_answered_for_the_base_under_test(base: str, stands_on: str) -> None:
    subject = Subject(
        project=str(Path(__file__).parents[2]),
        image="vllm",
        target="gb10",
        base=base,
        layout="",
        reference="",
        engine="podman",
        cuobjdump="",
    )
    assert ImageUnderTest(subject).image.runtime.image == stands_on
