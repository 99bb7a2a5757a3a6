"""Whether what the pins name goes together: refused before anything else is asked, or told in the plan."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_images.cache import Cache
from spark_images.cli import main
from spark_images.dockerfiles import check_dockerfiles, write_dockerfiles
from spark_images.download import Patience
from spark_images.errors import CompatError, ConfigError, TemplateError, UsageError
from spark_images.package_index import PackageIndex, PipConfig
from spark_images.pin_rules import refusals_of_all
from spark_images.plan import Plan
from spark_images.project import Project
from spark_images.relock import relock
from spark_images.repin import materialise
from spark_images.upstream import Upstream

ROOT = Path(__file__).parents[2]
PARTS = ("images", "templates", "scripts")
AMD64, ARM64 = "linux/amd64", "linux/arm64"

Edit = Callable[..., Project]


@pytest.fixture
def edit(tmp_path: Path) -> Edit:
    """A function that replaces texts in files of a copy of the project, as `pins.yaml` -> (pattern, by)."""
    root = tmp_path / "clone"
    for part in PARTS:
        shutil.copytree(ROOT / part, root / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pins.yaml", root)

    def replaced(**files: tuple[str, str]) -> Project:
        for key, (pattern, by) in files.items():
            path = root / FILES[key]
            text, number = re.subn(pattern, by, path.read_text(), count=1)
            assert number == 1, f"{pattern} is not in {path}"
            path.write_text(text)
        return Project(root)

    return replaced


FILES = {
    "pins": "pins.yaml",
    "compat": "images/compat.yaml",
    "vllm": "images/vllm/image.yaml",
    "flashinfer": "images/flashinfer/image.yaml",
}
# torch 2.11 as the floor of the pinned release: NVIDIA's 26.01 has 2.10, and no lock is made from this.
NGC_TOO_OLD = (r"(?s)(torch-floor:.*?0\.19\.0: \{is: )\"2\.10\"", r'\1"2.11"')


def to_vllm(version: str) -> tuple[str, str]:
    return (r"(?m)^(vllm:(?:\n .*)*?\n  version:) .*", rf"\1 {version}")


def plan_of(project: Project, image: str, base: str, builder: str = ARM64) -> Plan:
    return project.plan(project.image(image), project.target("gb10"), base, builder=builder)


# --- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("builder", [AMD64, ARM64])
def test_a_base_that_cannot_carry_the_release_is_told_before_the_builder_and_stale_locks(
    edit: Edit, builder: str
) -> None:
    project = edit(pins=to_vllm("0.23.0"))
    with pytest.raises(CompatError) as caught:
        plan_of(project, "vllm", "ngc", builder)
    assert caught.value.what == "vllm for gb10 on ngc: what the pins name does not go together"
    assert caught.value.why[0].startswith("vllm 0.23.0 needs torch 2.11 or newer, and base ngc 26.01 has torch 2.10")
    assert "choose base ngc 26.02 to 26.03 or vllm 0.17.0 to 0.22.1" in caught.value.hint


@pytest.mark.parametrize("verb", [("units", "vllm", "*.o"), ("estimate", "vllm")])
def test_units_of_what_cannot_be_are_refused(
    edit: Edit, capsys: pytest.CaptureFixture[str], verb: tuple[str, ...]
) -> None:
    project = edit(pins=to_vllm("0.19.1"))
    assert main(["--project", str(project.root), *verb]) == CompatError.exit_status
    assert "vllm for gb10 on debian: what the pins name does not go together" in capsys.readouterr().err


def test_a_lock_that_nothing_could_be_made_of_is_refused_before_the_network_is_asked(
    edit: Edit, tmp_path: Path
) -> None:
    project = edit(compat=NGC_TOO_OLD)
    with pytest.raises(CompatError, match="vllm for gb10 on ngc"):
        relock(project, names=["vllm-gb10-ngc"], cache=Cache(tmp_path / "cache"))
    assert not (tmp_path / "cache").exists()


def test_render_writes_what_goes_together_and_refuses_the_rest(edit: Edit) -> None:
    project = edit(compat=NGC_TOO_OLD)
    (project.root / "images/vllm/gb10-debian.Dockerfile").unlink()
    with pytest.raises(CompatError, match="vllm for gb10 on ngc"):
        write_dockerfiles(project)
    assert plan_of(project, "vllm", "debian").base == "debian"
    with pytest.raises(CompatError, match="vllm for gb10 on ngc"):
        check_dockerfiles(project)


@pytest.mark.parametrize(("for_one", "expected"), [(True, 0), (False, CompatError.exit_status)])
def test_one_variant_is_tried_although_another_is_refused(
    edit: Edit, tmp_path: Path, for_one: bool, expected: int
) -> None:
    project, folder = edit(compat=NGC_TOO_OLD), tmp_path / "work/project"
    folder.mkdir(parents=True)
    upstream = Upstream(cache=Cache(tmp_path / "cache"), index=PackageIndex(PipConfig(indexes=()), patience=Patience()))
    status = materialise((), project.root, folder, upstream=upstream, on_line=print, for_one=for_one)
    assert status == expected
    assert plan_of(Project(folder), "vllm", "debian").base == "debian"


def test_an_update_is_refused_for_whatever_variant_it_does_not_fit(edit: Edit) -> None:
    assert refusals_of_all(edit()) == ()
    assert any("base ngc 26.01 has torch 2.10" in one for one in refusals_of_all(edit(compat=NGC_TOO_OLD)))


@pytest.mark.parametrize("base", ["debian-wheel", "debian", "ngc"])
def test_a_release_that_nobody_has_read_is_refused_with_those_that_are_known(edit: Edit, base: str) -> None:
    project = edit(pins=to_vllm("0.99.0"))
    with pytest.raises(UsageError) as caught:
        plan_of(project, "vllm", base)
    assert caught.value.what == "nothing is known of vllm 0.99.0"
    assert "known are 0.16.0 to" in caught.value.why[0]
    assert "images/compat.yaml, as docs/adding-a-pin.md says" in caught.value.hint
    assert "nothing is known of vllm 0.99.0" in refusals_of_all(project)


@pytest.mark.parametrize("base", ["debian", "ngc"])
def test_a_build_requirement_that_no_wheel_meets_is_refused_before_the_compile(edit: Edit, base: str) -> None:
    before = edit(pins=to_vllm("0.21.0"))
    gb10 = before.target("gb10")
    assert not [one for one in before.refusals(before.image("vllm"), gb10, base) if one.certain]
    project = edit(pins=to_vllm("0.22.1"))
    (found,) = [one for one in project.refusals(project.image("vllm"), gb10, base) if one.certain]
    assert found.what == "vllm 0.22.1 is built with setuptools-rust>=1.9.0, and none takes part in this build"
    assert found.source == "pyproject.toml:3 of vllm 0.22.0"
    with pytest.raises(CompatError) as caught:
        plan_of(project, "vllm", base)
    assert "add `setuptools-rust` that fits to `packages` of `vllm-build` in pins.yaml" in caught.value.hint


def test_a_build_requirement_at_a_version_that_does_not_fit_is_refused(edit: Edit) -> None:
    project = edit(pins=(r"setuptools==80\.10\.2", "setuptools==81.0.0"))
    found = project.refusals(project.image("vllm"), project.target("gb10"), "debian")
    whats = [one.what for one in found if one.certain]
    assert whats == ["vllm 0.20.2 is built with setuptools<81.0.0,>=77.0.3, and this build has 81.0.0"]


def test_a_wheel_is_built_with_nothing(edit: Edit) -> None:
    project = edit(pins=to_vllm("0.22.1"))
    found = project.refusals(project.image("vllm"), project.target("gb10"), "debian-wheel")
    assert not any("is built with" in one.what for one in found)


# --- told -------------------------------------------------------------------------------------------------------------


def test_what_nobody_has_seen_together_is_said_in_the_plan_and_changes_no_plan_id(edit: Edit) -> None:
    before = plan_of(edit(), "vllm", "debian")
    plan = plan_of(
        edit(compat=(r"(?s)(  flashinfer:\n.*?0\.20\.0: \{is: )0\.6\.8\.post1", r"\g<1>0.6.7.post3")), "vllm", "debian"
    )
    (said,) = [one for one in plan.remarks if "flashinfer" in one and one.startswith("unverified")]
    assert said.startswith("unverified vllm 0.20.2 asks for flashinfer 0.6.7.post3 exactly, and this is 0.6.8.post1 (")
    assert not [one for one in before.remarks if one.startswith("unverified vllm")]
    assert plan.plan_id == before.plan_id


@pytest.mark.parametrize("base", ["debian-wheel", "debian", "ngc"])
def test_traps_of_the_pinned_releases_are_said(base: str) -> None:
    said = [one for one in plan_of(Project(ROOT), "vllm", base).remarks if one.startswith("trap ")]
    assert any(one.startswith("trap driver-compiles-ptx: Marlin and FA2 hold PTX for 8.0 only") for one in said)
    assert all("; " in one for one in said)  # what to do instead
    assert not any("nvfp4-illegal-instruction" in one for one in said)  # of older releases
    assert not any("flash-attn-symlink" in one for one in said)  # of a compile, and ours does what it must


def test_a_plan_without_traps_says_none() -> None:
    assert not [one for one in plan_of(Project(ROOT), "llamacpp", "debian").remarks if one.startswith("trap ")]


def test_the_verb_says_so_beside_the_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--project", str(ROOT), "plan", "vllm"]) == 0
    said = capsys.readouterr()
    assert "trap driver-compiles-ptx: " in said.err
    assert said.out.startswith("{\n")


# --- sdists -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def with_an_sdist(edit: Edit) -> Project:
    """What is installed on NVIDIA's image has an sdist among it."""
    root = edit(pins=("requirements: images/vllm/requirements-ngc.yaml", r"\g<0>\n  build-with: frontend")).root
    with (root / "images/vllm/requirements-ngc.yaml").open("a") as file:
        file.write("sdists: {only-sdist: {version: '1.0', because: no wheel}}\n")
    with (root / "pins.yaml").open("a") as file:
        file.write(
            "frontend: {kind: wheels, version: '1', lock: f.lock, platforms: [linux/arm64], packages: [build==1.6.1]}\n"
        )
    return Project(root)


def rendered_on_ngc(project: Project) -> str:
    return project.rendered(project.image("vllm"), project.target("gb10"), "ngc")


def test_on_nvidias_image_wheels_of_sdists_are_made_with_its_python_and_take_the_place_of_what_it_has(
    with_an_sdist: Project,
) -> None:
    text = rendered_on_ngc(with_an_sdist)
    assert "/spark/scripts/build_sdists 3.12 arm64 /build/layers" in text
    assert "install_wheels 3.12 /build/layers /out" in text
    (clear,) = re.findall("ngc_base clear .*", text)
    assert "only-sdist" in clear.partition(" --keep ")[0].split()


def test_a_template_that_makes_no_wheels_of_sdists_is_refused(with_an_sdist: Project) -> None:
    template = with_an_sdist.root / "templates/vllm-ngc.Dockerfile.j2"
    template.write_text(re.sub(r"\{\{ stages.install.*\n", "", template.read_text()))
    with pytest.raises(TemplateError, match="no step makes wheels of only-sdist, which come as sdists"):
        rendered_on_ngc(Project(with_an_sdist.root))


# --- the environment --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("place", "base"), [(r"(?m)^  env:\n", "debian"), (r"(?m)^      env:\n", "ngc")])
def test_a_variable_that_the_release_lacks_is_refused_on_whatever_base_it_is_set(
    edit: Edit, place: str, base: str
) -> None:
    indent = " " * (4 if base == "debian" else 8)
    project = edit(vllm=(place, rf"\g<0>{indent}VLLM_NVFP4_MOE_BACKEND: marlin\n"))
    first = "debian-wheel" if base == "debian" else base  # they share it
    for refuses, told in ((write_dockerfiles, first), (lambda project: plan_of(project, "vllm", base), base)):
        with pytest.raises(ConfigError) as caught:
            refuses(project)
        assert "image.yaml: runtime.env: no release of vllm from 0.16.0 to" in caught.value.what
        assert caught.value.what.endswith(f"(base `{told}`)")


# --- which kernels ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            r"(?m)^    FLASHINFER_CUDA_ARCH_LIST: 12.1a$",
            "    FLASHINFER_CUDA_ARCH_LIST: 12.0a",
            "`12.1a` and is `12.0a`",
        ),
        (r"(?m)^    FLASHINFER_NO_DOWNLOAD: .*\n", "", "`FLASHINFER_NO_DOWNLOAD` has to be `1` and is not set"),
    ],
)
def test_what_flashinfer_has_to_be_told_is_told(edit: Edit, old: str, new: str, said: str) -> None:
    with pytest.raises(ConfigError, match=r"runtime\.env: flashinfer 0\.6\.8\.post1: ") as caught:
        plan_of(edit(vllm=(old, new)), "vllm", "debian-wheel")
    assert said in caught.value.what


def words(plan: Plan) -> str:
    return next(line for line in plan.dockerfile.splitlines() if "/spark/scripts/step compile" in line)


@pytest.mark.parametrize(("kernels", "told"), [("all", "compile_flashinfer arm64"), ("none", "arm64 --leave '*'")])
def test_another_choice_of_kernels_is_another_image(edit: Edit, kernels: str, told: str) -> None:
    before = plan_of(edit(), "flashinfer", "debian"), plan_of(edit(), "vllm", "debian")
    project = edit(flashinfer=("  source: flashinfer\n", rf"\g<0>  kernels: {kernels}\n"))
    write_dockerfiles(project)
    plan, whole = plan_of(project, "flashinfer", "debian"), plan_of(project, "vllm", "debian")
    assert words(plan).endswith(told)
    assert dict(plan.config.labels)["io.spark-images.kernels"] == kernels
    assert plan.plan_id != before[0].plan_id
    assert whole.plan_id != before[1].plan_id  # it is a component of this one
    assert "io.spark-images.kernels" not in dict(before[0].config.labels)


def test_the_choice_that_nobody_need_state_may_be_stated(edit: Edit) -> None:
    before = plan_of(edit(), "flashinfer", "debian")
    project = edit(flashinfer=("  source: flashinfer\n", r"\g<0>  kernels: serving\n"))
    assert plan_of(project, "flashinfer", "debian").plan_id == before.plan_id


def test_vllm_with_all_its_kernels_is_compiled_without_the_patches_that_leave_some_out(edit: Edit) -> None:
    before = plan_of(edit(), "vllm", "debian")
    project = edit(
        vllm=("      source: vllm\n      installs", "      source: vllm\n      kernels: all\n      installs")
    )
    write_dockerfiles(project)
    plan = plan_of(project, "vllm", "debian")
    assert dict(before.patches)
    assert not plan.patches
    assert "--patch" not in words(plan)
    assert plan.plan_id != before.plan_id


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("vllm", "      source: vllm\n", "none", "kernels: expected one of `serving`, `all`, got `none`"),
        (
            "flashinfer",
            "  source: flashinfer\n",
            "some",
            "kernels: expected one of `serving`, `all`, `none`, got `some`",
        ),
        ("vllm", "  source: vllm-gb10-debian\n", "all", "`vllm-gb10-debian` leaves no choice of kernels"),
    ],
)
def test_a_choice_that_there_is_not_is_refused(edit: Edit, file: str, old: str, new: str, said: str) -> None:
    indent = re.match(" *", old)
    assert indent is not None
    with pytest.raises(ConfigError) as caught:
        _ = edit(**{file: (old, f"{old}{indent[0]}kernels: {new}\n")}).images
    assert said in caught.value.what
