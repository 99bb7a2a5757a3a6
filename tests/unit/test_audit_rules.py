"""The rules of the audit beyond one finding each: what counts, what is excused, what is no finding."""

from __future__ import annotations

import struct
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from audited import KERNELS, LIBS, SERVER, SITE, TARGET, audit, auditor, distribution, executable, program, write_image
from gpu_code import gpu_library
from raw_layouts import Item, file, folder, hardlink, item, symlink

from spark_images.audit.collect import subject_of
from spark_images.audit.contents import secret_in
from spark_images.audit.cuda import ptxas_too_old
from spark_images.audit.facts import Subject
from spark_images.audit.gpu import no_usable_code, rows
from spark_images.audit.installed import distributions, loader_cache, wheel_platforms
from spark_images.audit.scan import Budget
from spark_images.compat.build import Component
from spark_images.compat.command import Kernels
from spark_images.cuda_arch import Run, parse_torch_list
from spark_images.images import Excuse
from spark_images.project import Project

GITHUB = b"ghp_" + b"a1B2c3D4e5F6" * 3


def ids(root: Path, *arguments: object, **image: object) -> set[str]:
    return {finding.check.id for finding in audit(root, *arguments, **image).findings}  # type: ignore[arg-type]


# --- GPU code ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "run"),
    [
        (["sm_120"], Run.NATIVE),
        (["sm_120f"], Run.NATIVE),
        (["sm_121a"], Run.NATIVE),
        (["sm_120a"], Run.NOT),
        (["sm_121f"], Run.NATIVE),
        (["sm_100f"], Run.NOT),
        (["sm_90a", "compute_90"], Run.JIT),
        (["compute_90a"], Run.NOT),
        (["compute_120f"], Run.JIT),
        (["compute_120a"], Run.NOT),
        (["sm_80", "compute_80", "sm_120"], Run.NATIVE),
    ],
)
def test_module_runs_as_nvidias_rules_say(tmp_path: Path, module: list[str], run: Run) -> None:
    result = audit(tmp_path, {"opt/app/k.so": gpu_library(module)})
    row = next(row for row in rows(result.subject) if row.path == "/opt/app/k.so")
    assert row.run is run
    assert row.modules == {run: 1}


def test_library_of_native_and_jitted_modules_counts_each(tmp_path: Path) -> None:
    result = audit(tmp_path, {KERNELS: gpu_library(["sm_120"], ["sm_80", "compute_80"], ["sm_90a"], ["sm_75!"])})
    (row,) = result.document["gpu"]
    assert row["modules"] == {"natively": 1, "compiled by the driver at first use": 1, "not at all": 1}
    assert row["code"] == {"compute_80": 1, "sm_120": 1, "sm_75": 1, "sm_80": 1, "sm_90a": 1}
    assert row["ptx-bytes"] == 160


def test_driver_takes_the_newest_ptx_that_fits(tmp_path: Path) -> None:
    result = audit(tmp_path, {KERNELS: gpu_library(["compute_80", "compute_120", "compute_121a@9.1"])})
    assert {finding.check.id for finding in result.findings} == {"gpu.jit"}


def test_library_that_is_never_called_is_excused_and_said_so(tmp_path: Path) -> None:
    excuse = Excuse(pattern="*/fa3.so", because="it is for 9.0")
    result = audit(tmp_path, {"opt/app/fa3.so": gpu_library(["sm_90a"])}, about={"never_called": (excuse,)})
    assert result.findings == ()


def test_library_that_others_bring_is_not_missing_in_a_component(tmp_path: Path) -> None:
    files = {"opt/app/norm.so": program("libcublas.so.13")}
    about = {"brought": (Excuse(pattern="libcublas.so.13", because="torch needs it"),)}
    assert ids(tmp_path / "alone", files) == {"link.missing"}
    assert ids(tmp_path / "component", files, about=about) == set()


def test_excuse_for_what_runs_is_needless(tmp_path: Path) -> None:
    excuse = Excuse(pattern=f"/{KERNELS}", because="nobody knows")
    result = audit(tmp_path, about={"never_called": (excuse,)})
    assert [finding.text for finding in result.findings] == [f"/{KERNELS}: nothing is wrong there"]


def test_target_without_a_gpu_judges_no_gpu_code(tmp_path: Path) -> None:
    target = TARGET.__class__(**{**vars(TARGET), "compute_capability": "", "cuda_architecture": "", "driver": ""})
    result = audit(tmp_path, {KERNELS: gpu_library(["sm_90a"])}, about={"target": target})
    assert list(no_usable_code.find(result.subject)) == []
    assert result.document["gpu"] == []


def test_compile_that_holds_what_its_release_predicts_has_no_finding(tmp_path: Path) -> None:
    library = gpu_library(["sm_120"], ["sm_80", "compute_80"], ["sm_120f"], ["sm_75!"])
    about = {"predicted": predicted(None)}
    assert ids(tmp_path, {f"{SITE}/vllm/_C.so": library}, about=about) == {"gpu.jit"}


def test_files_without_a_kernel_count_as_modules(tmp_path: Path) -> None:
    library = gpu_library(["sm_120"], ["sm_120!"], *[["sm_80", "compute_80"]] * 2, *[["sm_120f"]] * 2)
    about = {"predicted": predicted(2)}
    assert ids(tmp_path, {f"{SITE}/vllm/_C.so": library}, about=about) == {"gpu.jit"}


def predicted(count: int | None) -> tuple[Component, ...]:
    """Three parts of `_C`, each with so many modules."""
    return tuple(
        Component(
            name=name, codes=parse_torch_list(archs), run=Run.NATIVE, called=True, source="x", modules=(("_C", count),)
        )
        for name, archs in {"base": "12.0", "marlin": "8.0+PTX", "sm120": "12.0f"}.items()
    )


def test_gpu_code_that_nothing_can_read_is_never_passed(tmp_path: Path) -> None:
    own = replace(auditor(tmp_path / "own"), cuobjdump=None)
    result = own.folder(write_image(tmp_path), None)
    assert [finding.text for finding in result.failures] == [f"/{KERNELS}: there is no `cuobjdump` to read it with"]


# --- layers -----------------------------------------------------------------------------------------------------------


def test_what_a_layer_deletes_is_no_part_of_the_image(tmp_path: Path) -> None:
    below = [file("opt/old.so", program("libnowhere.so.1")), file("opt/app/k.so", gpu_library(["sm_90a"]))]
    assert ids(tmp_path, {"opt/.wh.old.so": b"", "opt/app/.wh.k.so": b""}, below=below) == set()


def test_secret_that_a_layer_deletes_is_still_found(tmp_path: Path) -> None:
    result = audit(tmp_path, {"etc/.wh.token": b""}, below=[file("etc/token", GITHUB)])
    assert [finding.text for finding in result.findings] == ["/etc/token (hidden by a layer above): a token of GitHub"]


def test_secret_that_a_layer_replaces_is_still_found(tmp_path: Path) -> None:
    assert ids(tmp_path, {"etc/token": b"none"}, below=[file("etc/token", GITHUB)]) == {"secret.in-file"}


def test_hard_links_are_what_they_link_to(tmp_path: Path) -> None:
    first = f"{LIBS}/libb-1.0.so"
    links = {first: program(soname="libb.so.1"), f"{LIBS}/libb.so.1": hardlink(f"{LIBS}/libb.so.1", first)}
    assert ids(tmp_path, {**links, "opt/app/b.so": program("libb.so.1")}) == set()


def test_large_file_is_read_through_a_temporary_file_that_goes_away(tmp_path: Path) -> None:
    large = gpu_library(["sm_90a"]) + bytes(5 << 20)
    result = audit(tmp_path, {"opt/app/k.so": large, "opt/weights.bin": bytes(5 << 20)})
    assert {finding.check.id for finding in result.findings} == {"gpu.no-usable-code"}
    assert result.scan.bytes > 10 << 20
    assert list((tmp_path / "own/cache/work").iterdir()) == []


def test_large_files_wait_for_room_and_the_largest_gets_it_alone() -> None:
    budget, order = Budget(10), list[str]()

    def hold(name: str, size: int) -> None:
        budget.take(size)
        order.append(name)

    hold("small", 6)
    waiting = [threading.Thread(target=hold, args=case) for case in (("more", 5), ("all", 100))]
    for thread in waiting:
        thread.start()
    hold("fits", 4)
    assert order == ["small", "fits"]
    budget.give_back(6)
    budget.give_back(4)
    deadline = time.monotonic() + 60
    while len(order) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(order) == 3  # one of the two, and the other one only after it
    budget.give_back({"more": 5, "all": 100}[order[2]])
    for thread in waiting:
        thread.join(60)
    assert sorted(order[2:]) == ["all", "more"]


@pytest.mark.parametrize("kind", [b"6", b"3"])  # a pipe and a device
def test_other_kinds_of_files_are_passed_over(tmp_path: Path, kind: bytes) -> None:
    assert ids(tmp_path, {"opt/x": item("opt/x", kind)}) == set()


# --- linking ----------------------------------------------------------------------------------------------------------


def test_folders_of_ld_library_path_are_searched(tmp_path: Path) -> None:
    files = {"opt/lib/liba.so": program(soname="liba.so"), "opt/b.so": program("liba.so")}
    assert ids(tmp_path / "1", files) == {"link.only-if-loaded-before"}
    assert ids(tmp_path / "2", files, settings={"Env": ["LD_LIBRARY_PATH=/nowhere:/opt/lib"]}) == set()


def cache_of(libraries: dict[str, str]) -> bytes:
    """/etc/ld.so.cache as ldconfig of glibc 2.36 writes it: the old form's header first is optional."""
    strings, entries = b"", b""
    at = 48 + 24 * len(libraries)
    for name, path in libraries.items():
        entries += struct.pack("<iIIIQ", 0xA03, at + len(strings), at + len(strings) + len(name) + 1, 0, 0)
        strings += name.encode() + b"\0" + path.encode() + b"\0"
    header = b"glibc-ld.so.cache1.1" + struct.pack("<IIB3xI12x", len(libraries), len(strings), 2, 0)
    return header + entries + strings


def test_loader_cache_is_what_ldconfig_wrote(tmp_path: Path) -> None:
    cache = cache_of({"liba.so": "/opt/lib/liba.so", "libb.so": "/opt/lib/libb.so"})
    assert loader_cache(cache) == {"liba.so": ("/opt/lib/liba.so",), "libb.so": ("/opt/lib/libb.so",)}
    files = {"opt/lib/liba.so": program(soname="liba.so"), "opt/b.so": program("liba.so")}
    assert ids(tmp_path, {**files, "etc/ld.so.cache": cache}) == set()


@pytest.mark.parametrize("data", [b"", b"something else", cache_of({"a": "/a"})[:60]])
def test_file_that_is_no_loader_cache_holds_nothing(data: bytes) -> None:
    assert loader_cache(data) == {}


def test_equal_copies_of_one_library_are_one(tmp_path: Path) -> None:
    nccl = program(soname="libnccl.so.2")
    assert ids(tmp_path, {"opt/a/libnccl.so.2": nccl, "opt/b/libnccl.so.2": nccl}) == set()


def test_forward_compatibility_of_nvidia_may_bring_a_driver(tmp_path: Path) -> None:
    driver = program(soname="libcuda.so.1")
    assert ids(tmp_path, {"usr/local/cuda-13.1/compat/libcuda.so.590": driver}) == set()


def test_library_that_is_never_called_may_lack_its_libraries(tmp_path: Path) -> None:
    excuse = Excuse(pattern="/opt/plugins/*", because="there is no InfiniBand")
    result = audit(tmp_path, {"opt/plugins/ib.so": program("libibverbs.so.1")}, about={"never_called": (excuse,)})
    assert result.findings == ()


# --- CUDA -------------------------------------------------------------------------------------------------------------


def subject(**fields: object) -> Subject:
    return Subject(name="x", target=TARGET, tree={}, **fields)  # type: ignore[arg-type]


def test_ptxas_for_blackwell_beside_an_older_one_is_enough() -> None:
    marked = {"/triton/ptxas": frozenset({"sm_90"}), "/triton/ptxas-blackwell": frozenset({"sm_121a"})}
    assert list(ptxas_too_old.find(subject(marked=marked))) == []
    del marked["/triton/ptxas-blackwell"]
    assert list(ptxas_too_old.find(subject(marked=marked))) == ["/triton/ptxas: does not know sm_121a"]


def test_ptxas_that_the_environment_names_replaces_an_old_one(tmp_path: Path) -> None:
    old = executable("opt/triton/ptxas", program() + b"\0sm_90\0")
    assert ids(tmp_path / "1", {"opt/triton/ptxas": old}) == set()
    gone = {"opt/triton/ptxas": old, "opt/cuda/bin/ptxas": None}
    assert ids(tmp_path / "2", gone) == {"cuda.ptxas-too-old"}


def triton(blackwell: bytes) -> dict[str, Item | bytes | None]:
    """Its two programs: the first knows sm_90."""
    both = {"opt/triton/ptxas": b"\0sm_90\0", "opt/triton/ptxas-blackwell": blackwell}
    return {path: executable(path, program() + known) for path, known in both.items()}


@pytest.mark.parametrize(
    ("blackwell", "env", "found"),
    [
        (b"\0sm_90\0", "TRITON_PTXAS_PATH", {"cuda.ptxas-too-old"}),  # which stands for the other one
        (b"\0sm_90\0", "TRITON_PTXAS_BLACKWELL_PATH", set()),
        (b"\0sm_121a\0", "TRITON_PTXAS_PATH", set()),
        (b"\0sm_121a\0", "HOME", set()),
    ],
)
def test_of_tritons_two_programs_the_one_for_this_gpu_counts(
    tmp_path: Path, blackwell: bytes, env: str, found: set[str]
) -> None:
    assert ids(tmp_path, triton(blackwell), settings={"Env": [f"{env}=/opt/cuda/bin/ptxas"]}) == found


def test_for_an_older_gpu_tritons_first_program_counts(tmp_path: Path) -> None:
    target = replace(TARGET, compute_capability="9.0a")
    found = audit(tmp_path, triton(b"\0sm_90a\0"), about={"target": target}, settings={"Env": ["HOME=/tmp"]}).findings
    texts = [finding.text for finding in found if finding.check.id == "cuda.ptxas-too-old"]
    assert texts == [f"{path}: does not know sm_90a" for path in ("/opt/cuda/bin/ptxas", "/opt/triton/ptxas")]


def test_ptxas_that_is_named_and_too_old_is_said_once(tmp_path: Path) -> None:
    result = audit(tmp_path, {"opt/cuda/bin/ptxas": executable("opt/cuda/bin/ptxas", program() + b"\0sm_90\0")})
    assert len(result.findings) == 1


def test_ptxas_that_is_named_through_a_link_is_the_file_behind_it(tmp_path: Path) -> None:
    link = {"opt/bin/assemble": symlink("opt/bin/assemble", "/opt/cuda/bin/ptxas")}
    assert ids(tmp_path, link, settings={"Env": ["TRITON_PTXAS_PATH=/opt/bin/assemble"]}) == set()


# --- Python -----------------------------------------------------------------------------------------------------------


def test_one_content_of_two_distributions_is_no_conflict(tmp_path: Path) -> None:
    both = {"nvidia/__init__.py": b""}
    assert ids(tmp_path, {**distribution("a", files=both), **distribution("b", files=both)}) == set()


def test_distribution_within_another_one_is_not_installed() -> None:
    record = "outer/_vendor/inner-1.0.dist-info/METADATA,,\n"
    texts = {
        "/s/outer-1.0.dist-info/METADATA": "Name: outer\nVersion: 1.0\n",
        "/s/outer-1.0.dist-info/RECORD": record,
        "/s/outer/_vendor/inner-1.0.dist-info/METADATA": "Name: inner\nVersion: 1.0\n",
    }
    assert [one.name for one in distributions(texts)] == ["outer"]


def test_lock_and_image_are_compared_both_ways(tmp_path: Path) -> None:
    result = audit(tmp_path, about={"locked": (("torch", "1.0"), ("numpy", "2.4.6"))})
    assert [finding.text for finding in result.findings] == [
        "numpy: the lock says 2.4.6, installed is nothing",
        "tool: the lock says nothing, installed is 1.0",
    ]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("Torch[opt] >=1,<2", ""),
        ("torch>=2", "installed is 1.0"),
        ("gone; extra == 'more'", ""),
        ("gone; sys_platform == 'win32'", ""),
        ("gone; platform_machine == 'aarch64' and python_full_version < '3.11.3'", "and there is none"),
        ("left-out==3", ""),
        ("gone>=3.6.*", ""),  # pip and uv read it as they can
        ("gone; platform_version ~= '20.0'", ""),
        ("gone; 'x' in extras", ""),
        ("torch (>=0.5,\n  <2.0)", ""),
        ("torch (>=1.5,\n  <2.0)", "installed is 1.0"),
    ],
)
def test_what_distributions_ask_for_is_there_for_the_image_s_own_python_and_machine(
    tmp_path: Path, asked: str, found: str
) -> None:
    files = distribution("other", requires=(asked,))
    locked = (("other", "1.0"), ("tool", "1.0"), ("torch", "1.0"))
    result = audit(tmp_path, files, about={"locked": locked, "departed": frozenset({"left-out"})})
    texts = [finding.text for finding in result.findings]
    said = " ".join(asked.split())
    assert texts == ([f"/{SITE}/other-1.0.dist-info: other 1.0 asks for `{said}`, {found}"] if found else [])


def test_what_the_image_below_brought_may_ask_for_what_it_likes(tmp_path: Path) -> None:
    files = distribution("other", requires=("gone",))
    assert ids(tmp_path / "1", files, about={"locked": (("tool", "1.0"),), "stands_on": True}) == set()
    ours = {"locked": (("other", "1.0"),), "stands_on": True}
    assert ids(tmp_path / "2", files, about=ours) == {"python.requirement-unmet"}
    assert ids(tmp_path / "3", files) == set()  # of no lock, so nobody has said what it is to be installed with


@pytest.mark.parametrize(("asked", "expected"), [("numpy>=2.1", set()), ("numpy>=2.2", {"python.requirement-unmet"})])
def test_a_preview_of_a_release_in_the_image_below_counts_as_that_release(
    tmp_path: Path, asked: str, expected: set[str]
) -> None:
    files = {**distribution("numpy", "2.1.0a0+nv"), **distribution("other", requires=(asked,))}
    about = {"locked": (("other", "1.0"),), "stands_on": True, "given": (("numpy", "2.1.0a0"),)}
    assert ids(tmp_path, files, about=about) == expected


def test_triton_may_go_by_the_name_that_nvidia_gives_it(tmp_path: Path) -> None:
    files = {**distribution("pytorch-triton", "3.6.0+git1"), **distribution("other", requires=("triton>=3.6",))}
    about = {"locked": (("other", "1.0"),), "stands_on": True, "given": (("triton", "3.6.0"),)}
    assert ids(tmp_path, files, about=about) == set()


def test_a_version_that_is_none_meets_no_requirement(tmp_path: Path) -> None:
    files = {**distribution("odd", "unknown"), **distribution("other", requires=("odd>=1",))}
    locked = (("odd", "unknown"), ("other", "1.0"), ("tool", "1.0"), ("torch", "1.0"))
    assert [finding.text for finding in audit(tmp_path, files, about={"locked": locked}).findings] == [
        f"/{SITE}/other-1.0.dist-info: other 1.0 asks for `odd>=1`, installed is unknown"
    ]


def test_image_below_may_have_distributions_of_its_own_but_keeps_what_it_is_known_for(tmp_path: Path) -> None:
    about = {"locked": (("tool", "1.0"),), "stands_on": True, "given": (("torch", "2.10.0a0"),)}
    assert [finding.text for finding in audit(tmp_path / "1", about=about).findings] == [
        "torch: the image below has 2.10.0a0, installed is 1.0",
    ]
    own = {"torch/lib/libtorch_cuda.so": program("libc.so.6")}
    gone = {f"{SITE}/torch-1.0.dist-info/{name}": None for name in ("METADATA", "RECORD")}
    kept = {**gone, **distribution("torch", "2.10.0a0+a36e1d39eb", files=own)}
    assert ids(tmp_path / "2", kept, about=about) == set()


def test_audit_of_vllm_from_source_expects_what_its_release_compiles_and_of_a_wheel_nothing() -> None:
    project = Project(Path(__file__).parents[2])
    image, target = project.image("vllm"), project.target("gb10")
    source, ngc, wheel = (subject_of(project, image, target, base) for base in ("debian", "ngc", "debian-wheel"))
    assert {"marlin", "cutlass-sm120", "fa2"} <= {part.name for part in source.predicted}
    # The profile has 347 files of CUDA; FA3's 192 of them are left out.
    assert modules_of(source) == {"_C": 58, "_C_stable_libtorch": 17, "_moe_C": 28, "_vllm_fa2_C": 52}
    assert ngc.predicted == source.predicted
    assert wheel.predicted == ()
    assert dict(source.locked or ()) == dict(wheel.locked or ())
    assert (source.stands_on, wheel.stands_on) == (False, False)
    assert wheel.departed == {"flashinfer-cubin"}
    assert ngc.departed >= {"flashinfer-cubin", "torch"}
    assert ("MAX_JOBS", "4") in source.meant & ngc.meant & wheel.meant


def test_audit_of_an_image_with_all_kernels_expects_those_that_are_never_called_too() -> None:
    project = Project(Path(__file__).parents[2])
    image = project.image("vllm").on("debian")
    whole = replace(image, others=(), compile=replace(image.compile, kernels=Kernels.ALL))
    modules = modules_of(subject_of(project, whole, project.target("gb10"), "debian"))
    # CUTLASS MLA was not measured, so of `_C`, in which it is, nobody knows how many.
    assert modules == {"_C": None, "_C_stable_libtorch": 17, "_moe_C": 28, "_vllm_fa2_C": 52, "_vllm_fa3_C": 192}


def modules_of(subject: Subject) -> dict[str, int | None]:
    """Library -> all its modules; None where they are not known of each part."""
    found: dict[str, int | None] = {}
    for name, count in (each for part in subject.predicted for each in part.modules):
        before = found.get(name, 0)
        found[name] = None if count is None or before is None else before + count
    return found


@pytest.mark.parametrize(
    ("filename", "platforms"),
    [
        ("a-1.0-py3-none-any.whl", ()),
        ("a-1.0-cp312-cp312-manylinux2014_aarch64.manylinux_2_17_aarch64.whl", ("linux/arm64",)),
        ("a-1.0-cp38-abi3-manylinux_2_28_x86_64.whl", ("linux/amd64",)),
        ("a-1.0-cp312-cp312-win_amd64.whl", ("win_amd64",)),
    ],
)
def test_platform_of_a_wheel_is_in_its_name(filename: str, platforms: tuple[str, ...]) -> None:
    assert wheel_platforms(filename) == platforms


# --- settings ---------------------------------------------------------------------------------------------------------


def test_limit_that_image_yaml_sets_is_meant(tmp_path: Path) -> None:
    assert ids(tmp_path, settings={"Env": ["MAX_JOBS=4"]}, about={"meant": frozenset({("MAX_JOBS", "4")})}) == set()


def test_command_is_found_along_path(tmp_path: Path) -> None:
    assert ids(tmp_path / "1", settings={"Entrypoint": ["server"]}) == set()
    closed = {SERVER: executable(SERVER, program("libc.so.6"), mode=0o644)}
    assert ids(tmp_path / "2", closed) == {"config.nothing-to-start"}


def test_command_through_a_link_is_found(tmp_path: Path) -> None:
    link = {"usr/bin/serve": symlink("usr/bin/serve", "/opt/app/server")}
    assert ids(tmp_path, link, settings={"Entrypoint": ["serve"]}) == set()


@pytest.mark.parametrize(
    "text",
    [
        "hf_" + "aB3dE5gH7jK9" * 3,
        "key = AKIAQ3EGOBX7KLMNTUVW",
        "-----BEGIN RSA PRIVATE KEY-----\n" + "MIIEpAIBAAKCAQEA" * 4,
        "index-url = https://me:s3cr3tS3cr3tS3cr3t@index.corp.net/simple",
        "nvapi-" + "aB3dE5gH7jK9" * 5,
    ],
)
def test_secrets_are_known_by_their_form(text: str) -> None:
    assert secret_in(f"before\n{text}\nafter")


@pytest.mark.parametrize(
    "command",
    [
        "ENV HF_TOKEN=$TOKEN",
        'ENV HF_TOKEN="${TOKEN:-}" PORT=8000',
        "ENV HF_TOKEN_PATH=/run/secrets/token",
        "ENV API_KEY='/run/secrets/key'",
        "RUN --mount=type=secret,id=HF_TOKEN,env=HF_TOKEN make",
        "RUN cmake -DWITH_TOKEN=sentencepiece .",
        "ENV WANDB_API_KEY=xxxxxxxxxxxxxxxx",
        "ENV TOKENIZERS_PARALLELISM=false12345 GPG_KEY=A035C8C19219BA821ECEA86B64E628F8D684696D",
    ],
)
def test_what_names_a_secret_and_holds_none_is_no_finding(tmp_path: Path, command: str) -> None:
    assert ids(tmp_path, history=[command]) == set()


@pytest.mark.parametrize(
    "text",
    [
        "AKIAIOSFODNN7EXAMPLE",
        "ghp_" + "x" * 36,
        "https://user:password@example.com/",
        "hf_token",
        "-----BEGIN PRIVATE KEY-----",
    ],
)
def test_examples_of_documentation_are_no_secrets(text: str) -> None:
    assert not secret_in(text)


def test_what_a_distribution_brought_is_public(tmp_path: Path) -> None:
    assert ids(tmp_path, distribution("tornado", files={"tornado/test/test.key": GITHUB})) == set()


def test_sticky_folder_of_everybody_is_no_finding_and_another_one_is(tmp_path: Path) -> None:
    assert ids(tmp_path, {"data": folder("data", mode=0o777)}) == {"files.world-writable"}
