from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from values import DEBIAN_PIN, GB10, HELLO, PINS, REQUIREMENTS_PIN

from spark_images.compat.build import flashinfer_variables
from spark_images.compat.check import cuda_choice
from spark_images.compat.file import read_facts
from spark_images.compat.release import flashinfer_release
from spark_images.cuda_arch import Capability
from spark_images.errors import ConfigError
from spark_images.images import Excuse, Image
from spark_images.images_file import read_image, read_images
from spark_images.pins import DebSet, ImagePin, Pins, SdistPin
from spark_images.pins_file import read_pins
from spark_images.project import Project
from spark_images.targets import read_targets

REPOSITORY = Path(__file__).parents[2]

VALID: dict[str, Any] = {
    "schema": 1,
    "description": "a greeting",
    "licenses": "MIT",
    "source-url": "https://example.org/hello",
    "template": "hello.Dockerfile.j2",
    "scripts": ["step"],
    "supports": {"gb10": ["debian"]},
    "compile": {
        "source": "hello",
        "debs": ["build"],
        "cross-debs": {"arm64": ["cross-arm64"]},
        "wheels": {"tools": {"builder": ["nvcc"], "target": ["nvcc", "cublas"]}},
        "gib-per-job": "1.0",
    },
    "runtime": {
        "debs": ["runtime"],
        "user": "10001:10001",
        "env": {"PATH": "/usr/bin"},
        "entrypoint": ["/hello"],
        "workdir": "/",
        "stop-signal": "SIGTERM",
    },
}


def read(root: Path, content: dict[str, Any], *, pins: Pins = PINS, name: str = "hello") -> Image:
    file = root / "images" / name / "image.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content, ensure_ascii=False))
    return read_image(file, pins=pins, targets=(GB10,))


def changed(*place: str, to: Any) -> dict[str, Any]:
    """The valid image with another value in one place; None takes the key away."""
    content = deepcopy(VALID)
    parent = content
    for key in place[:-1]:
        parent = parent[key]
    if to is None:
        del parent[place[-1]]
    else:
        parent[place[-1]] = to
    return content


def mistake(root: Path, content: dict[str, Any], **options: Any) -> str:
    """The one mistake, without file and line."""
    with pytest.raises(ConfigError) as caught:
        read(root, content, **options)
    assert caught.value.why == ()
    return caught.value.what.partition("image.yaml:1: ")[2]


def test_an_image_is_read(tmp_path: Path) -> None:
    assert read(tmp_path, VALID) == replace(HELLO, path=str(tmp_path / "images/hello/image.yaml"))


def test_what_the_audit_lets_pass_is_read_with_its_reasons(tmp_path: Path) -> None:
    audit = {
        "never-called": [{"path": "/opt/*/fa3.so", "because": "it is for 9.0"}],
        "absent": [{"distribution": "flash-attn", "because": "it is linked to CUDA 12"}],
        "brought": [{"library": "libcudart.so.13", "because": "of torch"}],
    }
    found = read(tmp_path, {**VALID, "audit": audit}).audit
    assert found.never_called == (Excuse(pattern="/opt/*/fa3.so", because="it is for 9.0"),)
    assert found.absent == (Excuse(pattern="flash-attn", because="it is linked to CUDA 12"),)
    assert found.brought == (Excuse(pattern="libcudart.so.13", because="of torch"),)


def test_excuse_without_a_reason_is_a_mistake(tmp_path: Path) -> None:
    said = mistake(tmp_path, {**VALID, "audit": {"never-called": [{"path": "/opt/*"}]}})
    assert said.startswith("audit.never-called[0].because: missing")


def test_the_projects_own_images_are_read() -> None:
    pins, targets = read_pins(REPOSITORY / "pins.yaml"), read_targets(REPOSITORY / "images" / "targets.yaml")
    images = {image.name: image for image in read_images(REPOSITORY, pins=pins, targets=targets)}
    llamacpp = images["llamacpp"]
    assert llamacpp.supports[0] == ("gb10", ("debian", "ngc"))
    assert llamacpp.runtime.entrypoint == ("/opt/llama.cpp/bin/llama-server",)
    assert dict(llamacpp.runtime.env)["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"
    assert [use.pin for use in llamacpp.compile.wheels] == ["cuda", "build-tools"]


def test_the_projects_own_images_name_templates_and_scripts_that_exist() -> None:
    pins, targets = read_pins(REPOSITORY / "pins.yaml"), read_targets(REPOSITORY / "images" / "targets.yaml")
    for image in read_images(REPOSITORY, pins=pins, targets=targets):
        assert (REPOSITORY / "templates" / image.template).is_file()
        for script in image.scripts:
            assert (REPOSITORY / "scripts" / script).is_file()


def test_a_target_has_the_cuda_that_the_rules_choose_for_it() -> None:
    project = Project(REPOSITORY)
    facts = read_facts(REPOSITORY / "images" / "compat.yaml")
    image, chosen = project.image("llamacpp"), []
    for target in project.targets:
        choice, toolkit = cuda_choice(facts, image.name, target), image.compile.toolkit(target.name)
        assert bool(choice) == bool(toolkit), target.name
        if toolkit:
            pin = project.pins[toolkit.image]
            assert isinstance(pin, ImagePin)
            chosen.append((target.name, choice, dict(pin.provides)["cuda"]))
    assert chosen == [("rtx50", "12.8", "12.8.1")]


def test_a_base_may_be_made_in_another_way_and_takes_the_rest_from_above(tmp_path: Path) -> None:
    runtime = {**VALID["runtime"], "entrypoint": ["/other"]}
    content = {**VALID, "supports": {"gb10": ["debian", "ngc"]}, "bases": {"ngc": {"runtime": runtime}}}
    image = read(tmp_path, content)
    assert image.on("debian") == image
    assert image.on("ngc").runtime == replace(image.runtime, entrypoint=("/other",))
    assert (image.on("ngc").template, image.on("ngc").compile) == (image.template, image.compile)


def test_only_folders_with_an_image_yaml_are_images(tmp_path: Path) -> None:
    for name in ("b", "a"):
        read(tmp_path, VALID, name=name)
    (tmp_path / "images" / "debian").mkdir()
    (tmp_path / "images" / "targets.yaml").write_text("")
    assert [image.name for image in read_images(tmp_path, pins=PINS, targets=(GB10,))] == ["a", "b"]


def test_a_folder_whose_name_is_no_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the folder `My image` is not called by a name of lower-case letters"):
        read(tmp_path, VALID, name="My image")


def test_bases_keep_their_order_of_preference(tmp_path: Path) -> None:
    assert read(tmp_path, changed("supports", to={"gb10": ["ngc", "debian"]})).supports == (
        ("gb10", ("ngc", "debian")),
    )


def test_a_word_may_stand_twice_in_a_command(tmp_path: Path) -> None:
    command = ["--alias", "a", "--alias", "b"]
    assert read(tmp_path, changed("runtime", "command", to=command)).runtime.command == tuple(command)


def test_an_environment_value_may_be_any_line_of_text(tmp_path: Path) -> None:
    value = 'a "quoted" $HOME `id` \\ \''
    assert read(tmp_path, changed("runtime", "env", to={"X": value})).runtime.env == (("X", value),)


def test_what_is_installed_must_be_for_what_the_image_stands_on(tmp_path: Path) -> None:
    pin = replace(REQUIREMENTS_PIN, name="app-wheels", base="ngc-pytorch")
    content = changed("compile", "source", to="app-wheels")
    assert mistake(tmp_path, content, pins=replace(PINS, pins=(*PINS.pins, pin))) == (
        "compile: `app-wheels` is resolved for `ngc-pytorch`; on base `debian` this is an image of Debian packages"
    )


def test_an_image_that_an_sdist_is_compiled_in_must_say_which_cuda_and_python_it_has(tmp_path: Path) -> None:
    released = datetime(2026, 1, 2, tzinfo=UTC)
    sdist = SdistPin(name="app", line=1, project="app", version="1.0", sha256="1" * 64, released=released)
    provides = (("python", "3.12"),)
    base = ImagePin(name="base", line=2, ref="example.org/base:1", digest=f"sha256:{'1' * 64}", provides=provides)
    content = changed("compile", to={"source": "app", "image": "base", "gib-per-job": 1})
    assert mistake(tmp_path, content, pins=replace(PINS, pins=(*PINS.pins, sdist, base))) == (
        "compile: `base` does not say under `provides` which cuda it has"
    )


def test_what_is_installed_must_be_for_the_targets_platform(tmp_path: Path) -> None:
    pin = replace(REQUIREMENTS_PIN, name="app-wheels", platform="linux/amd64")
    content = changed("compile", "source", to="app-wheels")
    assert mistake(tmp_path, content, pins=replace(PINS, pins=(*PINS.pins, pin))) == (
        "compile: `app-wheels` is resolved for linux/amd64; `gb10` is linux/arm64"
    )


def test_further_sources_may_be_sdists(tmp_path: Path) -> None:
    sdist = SdistPin(name="more", line=1, project="more", version="1", sha256="0" * 64)
    image = read(tmp_path, changed("compile", "sources", to=["more"]), pins=replace(PINS, pins=(*PINS.pins, sdist)))
    assert image.compile.sources == ("more",)


def test_a_runtime_set_that_is_not_resolved_for_a_target_is_refused(tmp_path: Path) -> None:
    debian = replace(DEBIAN_PIN, sets=(*DEBIAN_PIN.sets, DebSet(name="pc", packages=("a",), arches=("amd64",))))
    pins = replace(PINS, pins=(*PINS.pins[:-1], debian))
    text = mistake(tmp_path, changed("runtime", "debs", to=["runtime", "pc"]), pins=pins)
    assert text == "runtime: set `pc` is not resolved for arm64, which target `gb10` is"


def test_a_smoke_check_may_be_the_projects_own(tmp_path: Path) -> None:
    (tmp_path / "scripts/smoke").mkdir(parents=True)
    (tmp_path / "scripts/smoke/greets.py").write_text('if __name__ == "__main__":\n    run("greets", "", body)\n')
    (tmp_path / "scripts/smoke/words.py").write_text('WORDS = ("hello",)\n')
    assert read(tmp_path, changed("smoke", to=["greets", "cuda_kernel"])).smoke == ("greets", "cuda_kernel")
    assert mistake(tmp_path, changed("smoke", to=["words"])).endswith("`greets`, got `words`")


@pytest.mark.parametrize(
    ("place", "value", "text"),
    [
        (
            "smoke",
            ["torch_matmull"],
            "smoke[0]: expected one of `cuda_kernel`, `torch_matmul`, `triton_kernel`, `cuda_graph`, `fp4_gemm`, "
            "`flashinfer_attention`, `vllm_ops`, `marlin`, `vllm_generate`, `llamacpp`, got `torch_matmull`; "
            "did you mean",
        ),
        ("supports", {"gb1": ["debian"]}, "supports.gb1: expected a target, `gb10` as key; did you mean `gb10`?"),
        (
            "supports",
            {"gb10": ["debain"]},
            "supports.gb10[0]: expected one of `debian`, `debian-wheel`, `ngc`, got `debain`; did you mean",
        ),
        (
            "supports",
            {"gb10": []},
            "supports.gb10: expected a list, each one of `debian`, `debian-wheel`, `ngc`, got an empty one",
        ),
        ("supports", {}, "supports: names no target"),
        ("licenses", "MIT; see below", "licenses: expected an SPDX expression"),
        ("template", "../../x.j2", "template: expected a file name"),
        ("scripts", ["a b"], "scripts[0]: expected a file name"),
        ("arguments", {"Jobs": "1"}, "arguments.Jobs: expected a name of lower-case letters"),
        ("arguments", {"jobs": "$(id)"}, "arguments.jobs: expected a word"),
        (
            "compile.source",
            "helo",
            "compile.source: expected a pin of kind git, sdist or requirements, `hello`, got `helo`; did you mean",
        ),
        (
            "compile.source",
            "tools",
            "compile.source: expected a pin of kind git, sdist or requirements, `hello`, got `tools`",
        ),
        (
            "compile.debs",
            ["biuld"],
            "compile.debs[0]: expected a set of the debs pin, `build`, `cross-arm64`, `runtime`, got",
        ),
        ("compile.cross-debs", {"arm": ["build"]}, "compile.cross-debs.arm: expected one of `amd64`, `arm64` as key"),
        (
            "compile.wheels",
            {"tool": {}},
            "compile.wheels.tool: expected a pin of kind wheels or requirements, `tools` as key; did you",
        ),
        (
            "compile.wheels",
            {"tools": {"builder": ["nvc"]}},
            "compile.wheels.tools.builder[0]: expected one of `nvcc`, ",
        ),
        ("compile.gib-per-job", "0", "compile.gib-per-job: expected a number of GiB, as `0.75`, got `0`"),
        ("compile.gib-per-job", "1e9", "compile.gib-per-job: expected a number of GiB, as `0.75`, got `1e9`"),
        (
            "compile.sources",
            ["tools"],
            "compile.sources[0]: expected a pin of kind git, sdist or archive, `hello`, got `tools`",
        ),
        ("runtime.user", "spark", "runtime.user: expected numbers of user and group, as `10001:10001`, got `spark`"),
        ("runtime.env", {"X": ""}, "runtime.env.X: expected a line of text that is not empty, got nothing"),
        (
            "runtime.env",
            {"X": "a\nRUN id"},
            "runtime.env.X: expected a line of text that is not empty, got `a\\nRUN id`",
        ),
        ("runtime.env", {"X=Y": "a"}, "runtime.env.X=Y: expected a variable's name as key"),
        ("runtime.entrypoint", None, "runtime.entrypoint: is not there, and no `command`: nothing would start"),
        ("runtime.folders", ["models"], "runtime.folders[0]: expected an absolute path"),
        ("runtime.entrypoint", ["/a b"], "runtime.entrypoint[0]: expected a word of a command"),
        ("runtime.entrypoint", "/hello", "runtime.entrypoint: expected a list"),
        ("runtime.ports", ["80800/tcp"], "runtime.ports[0]: expected a port, as `8080/tcp`, got `80800/tcp`"),
        ("runtime.ports", ["8080"], "runtime.ports[0]: expected a port, as `8080/tcp`, got `8080`"),
        ("runtime.workdir", "opt", "runtime.workdir: expected an absolute path, got `opt`"),
        ("runtime.workdir", "/opt/../etc", "runtime.workdir: expected an absolute path, got `/opt/../etc`"),
        ("runtime.stop-signal", "TERM", "runtime.stop-signal: expected one of `SIGTERM`"),
        ("runtime.entry-point", ["/hello"], "runtime.entry-point: unknown key; did you mean `entrypoint`?"),
    ],
)
def test_a_wrong_value_is_one_mistake_that_says_what_belongs_there(
    tmp_path: Path, place: str, value: Any, text: str
) -> None:
    assert mistake(tmp_path, changed(*place.split("."), to=value)).startswith(text)


def test_without_a_debs_pin_no_set_is_known(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, VALID, pins=replace(PINS, pins=PINS.pins[:-1]))
    assert any("expected a set of the debs pin, (there is none), got `build`" in line for line in caught.value.why)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=4,
)
PLACES = [(key,) for key in VALID] + [(part, key) for part in ("compile", "runtime") for key in VALID[part]]


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.sampled_from(PLACES), value=ANYTHING)
def test_another_value_anywhere_gives_an_image_or_a_config_error(
    tmp_path: Path, place: tuple[str, ...], value: Any
) -> None:
    try:
        image = read(tmp_path, changed(*place, to=value))
    except ConfigError:
        return
    texts = (image.template, *image.scripts, *image.runtime.entrypoint, *image.runtime.command, image.runtime.workdir)
    assert not set("".join(texts)).intersection("\n\r\"'`$\\; ")


def test_every_variant_of_vllm_has_the_run_time_variables_of_its_flashinfer() -> None:
    project, facts = Project(REPOSITORY), read_facts(REPOSITORY / "images" / "compat.yaml")
    flashinfer, image = project.pins["flashinfer"], project.image("vllm")
    assert isinstance(flashinfer, SdistPin)
    release = flashinfer_release(facts.flashinfer, flashinfer.version)
    for target, base in project.variants(image):
        assert target.name == "gb10"
        wanted = flashinfer_variables(facts.flashinfer, release, gpu=Capability(12, 1), at_run_time=True)
        assert {one.name: one.value for one in wanted}.items() <= dict(image.on(base).runtime.env).items(), base
        assert "FLASHINFER_NO_DOWNLOAD" in {one.name for one in wanted}
