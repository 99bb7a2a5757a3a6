from __future__ import annotations

import pytest

from spark_images.cuobjdump import GpuCode
from spark_images.elf import ElfFacts
from spark_images.imagechecks import (
    ImageFile,
    Tree,
    check_build_tools,
    check_elf_machine,
    check_gpu_code,
    check_leftovers,
    check_licences,
    check_setuid,
    check_world_writable,
    find_library,
    real_path,
    tree_of,
)


def file(path: str, mode: int = 0o644, **more: object) -> ImageFile:
    return ImageFile(path=path, kind="file", mode=mode, size=10, **more)  # type: ignore[arg-type]


def folder(path: str, mode: int = 0o755) -> ImageFile:
    return ImageFile(path=path, kind="directory", mode=mode)


def link(path: str, target: str) -> ImageFile:
    return ImageFile(path=path, kind="symlink", mode=0o777, link=target)


def library(path: str, *needed: str, machine: str = "aarch64", rpath: str = "", runpath: str = "") -> ImageFile:
    facts = ElfFacts(
        machine=machine, needed=needed, rpath=tuple(filter(None, [rpath])), runpath=tuple(filter(None, [runpath]))
    )
    return file(path, elf=facts)


def tree(*files: ImageFile) -> Tree:
    return tree_of(files)


def missing(image: Tree) -> list[str]:
    """What files need and the loader does not find."""
    needs = [(user, name) for user in image.values() if user.elf for name in user.elf.needed]
    return [f"{user.path}: {name}" for user, name in needs if find_library(image, user, name) is None]


# --- links ------------------------------------------------------------------------------------------------------------


def test_links_are_followed_inside_the_image() -> None:
    found = tree(
        link("/lib", "usr/lib"),
        link("/usr/lib/a.so", "/lib/a.so.1"),
        link("/usr/lib/a.so.1", "../lib/./b"),
        file("/usr/lib/b"),
    )
    assert real_path(found, "/lib/a.so") == "/usr/lib/b"


@pytest.mark.parametrize("target", ["b", "/a", "nowhere", "../../x"])
def test_links_that_lead_nowhere_or_in_circles_end(target: str) -> None:
    assert real_path(tree(link("/a", target), link("/b", "a")), "/a") is None


# --- machine ----------------------------------------------------------------------------------------------------------


def test_elf_files_of_the_target_hold() -> None:
    assert check_elf_machine(tree(library("/usr/lib/a.so"), file("/etc/passwd")), "arm64") == ()


def test_one_elf_file_of_the_builder_is_found() -> None:
    found = check_elf_machine(tree(library("/usr/lib/a.so"), library("/opt/b.so", machine="x86_64")), "arm64")
    assert found == ("/opt/b.so: x86_64, not aarch64",)


def test_image_without_elf_files_does_not_hold() -> None:
    assert check_elf_machine(tree(file("/etc/passwd")), "arm64") == ("no ELF file at all",)


def test_elf_file_that_cannot_be_read_is_found() -> None:
    image = tree(library("/usr/lib/a.so"), file("/usr/lib/b.so", broken="not readable as ELF"))
    assert check_elf_machine(image, "arm64") == ("/usr/lib/b.so: not readable as ELF",)


# --- needed libraries -------------------------------------------------------------------------------------------------


def test_library_beside_its_user_is_found_by_origin_only() -> None:
    user, needed = "/opt/bin/server", library("/opt/bin/liba.so")
    assert missing(tree(needed, library(user, "liba.so", runpath="$ORIGIN"))) == []
    assert missing(tree(needed, library(user, "liba.so"))) == [f"{user}: liba.so"]


def test_origin_may_be_in_braces_and_lead_upwards() -> None:
    user = library("/opt/bin/x", "liba.so", rpath="${ORIGIN}/../lib")
    assert missing(tree(library("/opt/lib/liba.so"), user)) == []


def test_rpath_is_ignored_where_there_is_a_runpath() -> None:
    user = library("/opt/bin/x", "liba.so", rpath="/opt/lib", runpath="/opt/other")
    assert len(missing(tree(library("/opt/lib/liba.so"), user))) == 1


@pytest.mark.parametrize("where", ["/usr/lib/aarch64-linux-gnu", "/usr/lib"])
def test_debians_folders_are_searched_through_the_merged_usr(where: str) -> None:
    image = tree(link("/lib", "usr/lib"), library(f"{where}/libc.so.6"), library("/opt/x", "libc.so.6"))
    assert missing(image) == []


@pytest.mark.parametrize("where", ["/usr/local/lib", "/usr/lib/x86_64-linux-gnu"])
def test_folders_that_the_loader_does_not_search_do_not_count(where: str) -> None:
    assert len(missing(tree(library(f"{where}/libc.so.6"), library("/opt/x", "libc.so.6")))) == 1


def test_library_of_another_machine_does_not_count() -> None:
    image = tree(library("/usr/lib/libc.so.6", machine="x86_64"), library("/opt/x", "libc.so.6"))
    assert len(missing(image)) == 1


def test_folders_of_the_environment_come_after_rpath_and_before_runpath() -> None:
    image = tree(library("/path/a.so"), library("/env/a.so"), library("/env/b.so"))
    by_rpath, by_runpath = library("/opt/x", "a.so", rpath="/path"), library("/opt/y", "a.so", runpath="/path")
    assert find_library(image, by_rpath, "a.so", variable=["/env"]) == "/path/a.so"
    assert find_library(image, by_runpath, "a.so", variable=["/env"]) == "/env/a.so"


def test_loader_cache_counts_only_where_its_library_is_there() -> None:
    image, user = tree(library("/usr/local/cuda/lib64/a.so")), library("/opt/x", "a.so", "b.so")
    cache = {"a.so": ("/usr/local/cuda/lib64/a.so",), "b.so": ("/usr/local/cuda/lib64/b.so",)}
    assert find_library(image, user, "a.so", cache=cache) == "/usr/local/cuda/lib64/a.so"
    assert find_library(image, user, "b.so", cache=cache) is None


def test_library_that_is_needed_by_its_path_is_taken_from_there() -> None:
    assert missing(tree(library("/opt/lib/a.so"), library("/opt/x", "/opt/lib/a.so"))) == []


def test_link_to_nothing_does_not_count() -> None:
    assert len(missing(tree(link("/usr/lib/liba.so", "liba.so.1"), library("/opt/x", "liba.so")))) == 1


def test_first_folder_of_the_path_wins() -> None:
    user = file("/opt/x", elf=ElfFacts(machine="aarch64", needed=("a.so",), runpath=("/one", "/two")))
    image = tree(library("/two/a.so"), library("/one/a.so"), user)
    assert find_library(image, user, "a.so") == "/one/a.so"


# --- GPU code ---------------------------------------------------------------------------------------------------------


def test_cubins_of_the_target_and_nothing_else_hold() -> None:
    assert check_gpu_code(GpuCode(cubins={"sm_121a": 144}, ptx={}), "121a-real") == ()


@pytest.mark.parametrize(
    ("cubins", "ptx", "expected"),
    [
        ({"sm_120a": 144}, {}, ("no cubin for sm_121a", "144 cubins for sm_120a")),
        ({"sm_121": 144}, {}, ("no cubin for sm_121a", "144 cubins for sm_121")),
        ({"sm_121a": 143, "sm_120": 1}, {}, ("1 cubins for sm_120",)),
        ({"sm_121a": 144}, {"sm_121a": 1}, ("1 PTX texts for sm_121a",)),
        ({}, {}, ("no cubin for sm_121a",)),
    ],
)
def test_other_gpu_code_is_found(cubins: dict[str, int], ptx: dict[str, int], expected: tuple[str, ...]) -> None:
    assert check_gpu_code(GpuCode(cubins=cubins, ptx=ptx), "121a-real") == expected


def test_architecture_without_real_has_ptx_as_well() -> None:
    code = GpuCode(cubins={"sm_120a": 1, "sm_121a": 1}, ptx={"sm_121a": 1})
    assert check_gpu_code(code, "120a-real;121a") == ()
    assert check_gpu_code(code, "120a;121a-real") == ("no PTX for sm_120a", "1 PTX texts for sm_121a")


# --- what should not be there -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        *("gcc", "gcc-12", "aarch64-linux-gnu-gcc-12", "g++", "c++", "tcc", "ld", "ld.bfd", "as", "ar", "nvcc", "cicc"),
        *("ptxas", "cudafe++", "cmake", "ninja", "make", "ccache", "apt", "apt-get", "dpkg", "dpkg-deb", "git", "pip3"),
        *("python3", "python3.11", "perl5.36.0"),
    ],
)
def test_build_tools_are_found_wherever_they_lie(name: str) -> None:
    assert check_build_tools(tree(file(f"/opt/x/{name}", 0o755))) == (f"/opt/x/{name}: build tool",)


def test_link_to_a_build_tool_is_found() -> None:
    assert check_build_tools(tree(link("/usr/bin/cc", "/etc/alternatives/cc"))) == ("/usr/bin/cc: build tool",)


@pytest.mark.parametrize(
    "name", ["cat", "dash", "ldconfig", "ld-linux-aarch64.so.1", "ld.so", "arch", "cmp", "llama-server", "asan", "nl"]
)
def test_other_programs_are_no_build_tools(name: str) -> None:
    assert check_build_tools(tree(file(f"/usr/bin/{name}", 0o755))) == ()


def test_file_that_is_named_like_a_tool_but_cannot_be_run_is_none() -> None:
    assert check_build_tools(tree(file("/usr/share/bash-completion/completions/make", 0o644))) == ()


@pytest.mark.parametrize("name", ["libx.a", "x.o", "cuda.h", "x.cmake", "x.pc", "__init__.cpython-311.pyc"])
def test_development_files_are_found(name: str) -> None:
    assert check_build_tools(tree(file(f"/usr/lib/{name}"))) == (f"/usr/lib/{name}: development file",)


@pytest.mark.parametrize(
    "path", ["/tmp/x", "/root/.cache/pip/x", "/var/log/dpkg.log", "/var/cache/apt/pkgcache.bin", "/home/spark/x"]
)
def test_leftovers_are_found(path: str) -> None:
    assert any(path in finding for finding in check_leftovers(tree(file(path))))


@pytest.mark.parametrize("path", ["/spark", "/build", "/opt/__pycache__", "/opt/src/.git", "/root/.cache"])
def test_folders_of_the_build_are_found_even_when_empty(path: str) -> None:
    assert check_leftovers(tree(folder(path))) == (f"{path}: left behind by the build",)


def test_empty_folders_of_the_system_are_no_leftovers() -> None:
    assert check_leftovers(tree(*map(folder, ("/var/cache/ldconfig", "/home/spark", "/tmp", "/run/lock")))) == ()


@pytest.mark.parametrize("mode", [0o4755, 0o2755, 0o6711])
def test_setuid_and_setgid_files_are_found(mode: int) -> None:
    assert check_setuid(tree(file("/usr/bin/su", mode))) == (f"/usr/bin/su: mode {mode:04o}",)


def test_setgid_folders_and_sticky_files_are_no_finding() -> None:
    assert check_setuid(tree(folder("/var/mail", 0o2775), file("/usr/bin/x", 0o1755))) == ()


@pytest.mark.parametrize(
    "place", [folder("/opt/x", 0o777), file("/etc/x", 0o666), folder("/opt/t", 0o1777), folder("/tmp", 0o777)]
)
def test_world_writable_places_are_found(place: ImageFile) -> None:
    assert check_world_writable(tree(place)) == (f"{place.path}: mode {place.mode:04o}",)


def test_sticky_tmp_and_links_are_no_finding() -> None:
    assert check_world_writable(tree(folder("/tmp", 0o1777), link("/bin", "usr/bin"))) == ()


# --- licences ---------------------------------------------------------------------------------------------------------


def test_licences_hold_through_a_linked_folder() -> None:
    image = tree(
        file("/usr/share/licenses/x/LICENSE"),
        file("/var/lib/dpkg/status.d/libstdc++6"),
        file("/var/lib/dpkg/status.d/libstdc++6.md5sums"),
        link("/usr/share/doc/libstdc++6", "gcc-12-base"),
        file("/usr/share/doc/gcc-12-base/copyright"),
    )
    assert check_licences(image, ["/usr/share/licenses/x"]) == ()


def test_missing_and_empty_licences_are_found() -> None:
    empty = ImageFile(path="/usr/share/doc/sed/copyright", kind="file", mode=0o644)
    image = tree(
        folder("/usr/share/licenses/x"), file("/var/lib/dpkg/status.d/grep"), file("/var/lib/dpkg/status.d/sed"), empty
    )
    assert check_licences(image, ["/usr/share/licenses/x"]) == (
        "/usr/share/licenses/x: no licence text",
        "/usr/share/doc/grep/copyright: missing or empty",
        "/usr/share/doc/sed/copyright: missing or empty",
    )


def test_image_that_lists_no_package_does_not_hold() -> None:
    assert check_licences(tree(file("/usr/share/licenses/x/LICENSE")), ["/usr/share/licenses/x"]) == (
        "/var/lib/dpkg/status.d/: no package is listed",
    )
