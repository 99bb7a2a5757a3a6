from __future__ import annotations

from pathlib import Path

import pytest

from spark_images.errors import ConfigError
from spark_images.requirements import Departure, Layer, Requirements, read_requirements

LAYERS = "layers: {cuda: ['nvidia-*', cuda-toolkit], torch: [torch], python: ['*', nvidia-ml-py, 'nvidia-cutlass*']}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "requirements.yaml"


def read(file: Path, text: str) -> Requirements:
    file.write_text("schema: 1\n" + text)
    return read_requirements(file)


def test_everything_that_a_file_says(file: Path) -> None:
    found = read(
        file,
        "constraints: {a: {version: 4.4.2, because: a reason}}\n"
        "overrides: {b: {version: '1.10', because: another}}\n"
        "sdists: {d: {version: '2.0', requires: ['e>=1', \"f; python_version<'3.12'\"], because: no wheel}}\n"
        "exclusions: {c: of no use}\nrefusals: {'*-cu12': of another CUDA}\nwithout: {a/b.py: of no use}\n"
        "layers: {under: [c], over: ['*']}\n",
    )
    assert found == Requirements(
        path=str(file),
        constraints=(Departure(name="a", version="4.4.2", because="a reason"),),
        overrides=(Departure(name="b", version="1.10", because="another"),),
        sdists=(Departure(name="d", version="2.0", requires=("e>=1", "f; python_version<'3.12'"), because="no wheel"),),
        exclusions=(Departure(name="c", because="of no use"),),
        refusals=(Departure(name="*-cu12", because="of another CUDA"),),
        without=(Departure(name="a/b.py", because="of no use"),),
        layers=(Layer(name="under", projects=("c",)), Layer(name="over", projects=("*",))),
    )


@pytest.mark.parametrize(
    ("project", "layer"),
    [
        ("nvidia-cublas", "cuda"),
        ("cuda-toolkit", "cuda"),
        ("cuda-bindings", "python"),
        ("nvidia-ml-py", "python"),
        ("nvidia-cutlass-dsl-libs-base", "python"),
        ("torch", "torch"),
        ("torch-c-dlpack-ext", "python"),
        ("numpy", "python"),
    ],
)
def test_a_project_belongs_to_the_layer_that_names_most_of_it(file: Path, project: str, layer: str) -> None:
    assert read(file, LAYERS).layer_of(project) == layer


def test_a_refusal_says_why(file: Path) -> None:
    found = read(file, "refusals: {'*-cu12': of another CUDA}\n" + LAYERS)
    refusal = found.refusal_of("nvidia-cutlass-dsl-libs-cu12")
    assert refusal is not None
    assert refusal.because == "of another CUDA"
    assert found.refusal_of("nvidia-cudnn-cu13") is None


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("layers: {a: [torch]}\n", "2: layers: none of them takes `*`, whatever no layer names"),
        ("layers: {a: ['*'], b: ['*']}\n", "2: layers: `*` stands in two of them"),
        ("layers: {a: ['*', 'n*a']}\n", "2: layers.a[1]: expected a project's name, or the beginning of one and `*`"),
        ("exclusions: {a: ''}\n" + LAYERS, "2: exclusions.a: expected a line of text"),
        ("constraints: {a: {version: '1'}}\n" + LAYERS, "2: constraints.a.because: missing; expected a line of text"),
        ("overrides: {a: {version: '>=1', because: x}}\n" + LAYERS, "2: overrides.a.version: expected a version of"),
        ("sdists: {a: {version: abc, because: x}}\n" + LAYERS, "2: sdists.a.version: expected a version of a Python"),
        (
            "sdists: {a: {version: '1', requires: ['>x'], because: x}}\n" + LAYERS,
            "2: sdists.a.requires[0]: expected what a distribution asks for",
        ),
        ("without: {../a: x}\n" + LAYERS, "2: without.../a: expected a relative path"),
        ("", "1: layers: missing"),
    ],
)
def test_a_mistake_is_told_with_line_and_key(file: Path, text: str, mistake: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(file, text)
    assert caught.value.what.startswith(f"{file}:{mistake}")
