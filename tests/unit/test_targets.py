from __future__ import annotations

from pathlib import Path

import pytest

from spark_images.errors import ConfigError
from spark_images.targets import Target, read_targets

REPOSITORY = Path(__file__).parents[2]
GB10 = "gb10: {platform: linux/arm64, compute-capability: 12.1a, cuda-architecture: 121a-real, "
REST = "cpu-architecture: armv9-a, description: a machine}"


def mistake(path: Path, text: str) -> str:
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_targets(path)
    return caught.value.what.removeprefix(f"{path}:")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "targets.yaml"


def test_the_projects_own_targets_are_read() -> None:
    targets = {target.name: target for target in read_targets(REPOSITORY / "images" / "targets.yaml")}
    assert targets["gb10"] == Target(
        name="gb10",
        platform="linux/arm64",
        compute_capability="12.1a",
        gpu_names=("GB10",),
        driver="580",
        cuda_architecture="121a-real",
        cpu_architecture="armv9-a+i8mm+bf16",
        unified_memory=True,
        description="NVIDIA GB10 (DGX Spark and its clones)",
    )
    assert [(name, target.arch, target.compute_capability) for name, target in targets.items()] == [
        ("gb10", "arm64", "12.1a"),
        ("rtx50", "amd64", "12.0a"),
        ("hopper", "amd64", "9.0a"),
        ("cpu", "amd64", ""),
    ]


def test_memory_is_not_unified_unless_the_file_says_so(file: Path) -> None:
    file.write_text(GB10 + REST)
    assert not read_targets(file)[0].unified_memory


def test_a_cuda_architecture_of_another_gpu_is_refused(file: Path) -> None:
    text = mistake(file, (GB10 + REST).replace("121a-real", "121-real"))
    assert text == ("1: gb10.cuda-architecture: `121-real` is not for the GPU that compute-capability names, `12.1a`")


def test_a_target_with_only_one_of_the_two_names_of_its_gpu_is_refused(file: Path) -> None:
    assert "cuda-architecture" in mistake(file, "gb10: {platform: linux/arm64, compute-capability: 12.1a, " + REST)


def test_an_unknown_platform_names_those_there_are(file: Path) -> None:
    text = mistake(file, (GB10 + REST).replace("linux/arm64", "linux/arm64/v8"))
    assert text == (
        "1: gb10.platform: expected one of `linux/amd64`, `linux/arm64`, got `linux/arm64/v8`; "
        "did you mean `linux/arm64`?"
    )


def test_truth_is_written_in_one_way(file: Path) -> None:
    text = mistake(file, GB10 + "unified-memory: yes, " + REST)
    assert text == "1: gb10.unified-memory: expected `true` or `false`, got `yes`"


def test_an_option_for_the_compiler_cannot_be_slipped_in(file: Path) -> None:
    assert mistake(file, (GB10 + REST).replace("armv9-a,", '"armv9-a -fplugin=x",')).startswith(
        "1: gb10.cpu-architecture"
    )


def test_a_driver_without_a_gpu_is_refused(file: Path) -> None:
    text = mistake(file, 'pc: {platform: linux/amd64, driver: "580", ' + REST)
    assert text.startswith("1: pc.driver: there is no GPU that it would drive")
