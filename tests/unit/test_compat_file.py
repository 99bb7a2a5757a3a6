from __future__ import annotations

from pathlib import Path

import pytest
from packaging.version import Version

from spark_images.compat.file import read_facts
from spark_images.errors import ConfigError

TEXT = (Path(__file__).parents[2] / "images" / "compat.yaml").read_text()


def mistake(tmp_path: Path, old: str, new: str) -> str:
    """The only mistake of the project's own file with one text in it replaced."""
    assert TEXT.count(old) == 1, old
    path = tmp_path / "compat.yaml"
    path.write_text(TEXT.replace(old, new))
    with pytest.raises(ConfigError) as caught:
        read_facts(path)
    assert not caught.value.why, caught.value.why
    return caught.value.what.removeprefix(f"{path}:").partition(": ")[2]


def test_a_new_release_needs_only_what_changed_in_it(tmp_path: Path) -> None:
    path = tmp_path / "compat.yaml"
    text = TEXT.replace("0.32.0, 0.33.0]", "0.32.0, 0.33.0, 0.34.0]")
    path.write_text(
        text.replace(
            "0.33.0: {is: 2.14.0, line: 7}", "0.33.0: {is: 2.14.0, line: 7}\n      0.34.0: {is: 2.15.0, line: 9}"
        )
    )
    facts = read_facts(path).vllm
    new = Version("0.34.0")
    assert facts.torch.at(new).value == "2.15.0"
    assert facts.torch.at(new).source == "requirements/cuda.txt:9 of vllm 0.34.0"
    assert facts.gcc.at(new).value == "13"


def test_a_release_that_is_not_in_the_list_is_a_mistake(tmp_path: Path) -> None:
    text = mistake(
        tmp_path, "0.17.0: {is: 2.10.0, line: 8}\n      0.20.0: {is: 2.11.0, line: 7}", "0.21.1: {is: 2.11.0}"
    )
    assert text.startswith("vllm.torch.from.0.21.1: expected one of `releases`, `0.16.0`")


def test_entries_and_releases_stand_in_their_order(tmp_path: Path) -> None:
    text = mistake(tmp_path, '0.19.0: {is: "2.10", line: 998}\n', '0.24.0: {is: "2.10", line: 998}\n')
    assert text == "vllm.torch-floor.from: not in ascending order"
    text = mistake(tmp_path, "0.30.0, 0.31.0, 0.32.0", "0.31.0, 0.30.0, 0.32.0")
    assert text == "vllm.releases: not in ascending order"


def test_what_every_release_has_is_said_from_the_first_on(tmp_path: Path) -> None:
    text = mistake(tmp_path, '      0.16.0: {is: ">=3.10,<3.14", line: 34}\n', "")
    assert text == "vllm.python.from: says nothing of 0.16.0, the first of `releases`"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('releases: ">=0.17"\n      major', 'releases: "from 0.17"\n      major', "a range of releases"),
        ("{triton: 3.5.1,", "{triton: $(reboot),", "a version"),
        ("{is: 8.9+PTX,", "{is: 8.9+ptx,", "architectures as in TORCH_CUDA_ARCH_LIST"),
        (
            "{is: 188be16520ceefdc625fdf71365585d2ee348fe2, line: 41}",
            "{is: 188be, line: forty}",
            "the number of a line",
        ),
        ("v4.2.1: f3fde58372d33e9a5650ba7b80fc48b3b49d40c8", "v4.2.1: f3fde58", "40 hex digits"),
        ("hand-over: fetchcontent", "hand-over: fetch-content", "did you mean `fetchcontent`?"),
    ],
)
def test_a_wrong_value_names_its_form(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert said in mistake(tmp_path, old, new)


def test_an_unknown_key_is_a_mistake_with_the_nearest_known_one(tmp_path: Path) -> None:
    text = mistake(tmp_path, "  torch-floor:\n", "  torch-flor:\n")
    assert text == "vllm.torch-flor: unknown key; did you mean `torch-floor`?"
