from __future__ import annotations

import io
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest
import vllm_release
from packaging.version import Version

from spark_images.cache import Cache
from spark_images.errors import ContentError, UpstreamError, UsageError
from spark_images.project import Project
from spark_images.vllm.history import read_knowledge
from spark_images.vllm.names import read_names
from spark_images.vllm_learn import learn, read_sdist

IMAGES = Path(__file__).parents[2] / "images"
NEWEST = str(read_knowledge(IMAGES / "vllm-knowledge.json").releases[-1])


def sdist(folder: Path, release: str, files: Mapping[str, str] = vllm_release.FILES, *, top: str = "") -> Path:
    """A source distribution with these files and some that are none of vLLM's Python."""
    path = folder / f"vllm-{release}.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, text in {**files, "vllm/data.json": "{}", "setup.py": "not Python", "PKG-INFO": ""}.items():
            member = tarfile.TarInfo(f"{top or f'vllm-{release}'}/{name}")
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
    return path


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """With the compatibility file and what was learnt of all its releases."""
    (tmp_path / "images").mkdir()
    for name in ("compat.yaml", "vllm-knowledge.json"):
        shutil.copy(IMAGES / name, tmp_path / "images")
    return Project(tmp_path)


def test_sdist_is_read_in_place(tmp_path: Path) -> None:
    assert read_sdist(sdist(tmp_path, "9.9"), "9.9") == read_names(vllm_release.FILES)
    assert [path.name for path in tmp_path.iterdir()] == ["vllm-9.9.tar.gz"]


def test_sdist_of_another_release_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ContentError, match=r"is not the source of vllm 9\.9: it holds `vllm-9\.8/"):
        read_sdist(sdist(tmp_path, "9.9", top="vllm-9.8"), "9.9")


@pytest.mark.parametrize("kept", [0, 0.1, 0.5, 0.8])
def test_sdist_that_is_cut_off_is_refused(tmp_path: Path, kept: float) -> None:
    path = sdist(tmp_path, "9.9")
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * kept)])

    with pytest.raises(ContentError, match="cannot be read"):
        read_sdist(path, "9.9")


def test_named_release_is_learnt_anew(tmp_path: Path, project: Project) -> None:
    sdist(tmp_path, NEWEST)

    learn(project, [NEWEST], sdists=tmp_path, cache=Cache(tmp_path / "cache"))

    knowledge = read_knowledge(tmp_path / "images/vllm-knowledge.json")
    assert knowledge.names(NEWEST).flags.keys() == read_names(vllm_release.FILES).flags.keys()
    assert knowledge.held("variables", "VLLM_LATER") == (Version(NEWEST),)


def test_releases_that_are_known_are_not_read_again(tmp_path: Path, project: Project) -> None:
    before = (tmp_path / "images/vllm-knowledge.json").read_text()

    learn(project, [], sdists=tmp_path, cache=Cache(tmp_path / "cache"))

    assert (tmp_path / "images/vllm-knowledge.json").read_text() == before


def test_release_that_the_compatibility_file_lacks_is_refused(tmp_path: Path, project: Project) -> None:
    with pytest.raises(UsageError, match=r"nothing is known of vllm 9\.9"):
        learn(project, ["9.9"], sdists=tmp_path, cache=Cache(tmp_path / "cache"))


def test_sdist_that_is_not_there_is_named(tmp_path: Path, project: Project) -> None:
    with pytest.raises(UsageError, match=rf"there is no file `.*/vllm-{NEWEST}\.tar\.gz`"):
        learn(project, [NEWEST], sdists=tmp_path, cache=Cache(tmp_path / "cache"))


def test_release_that_cannot_be_understood_is_named_and_changes_nothing(tmp_path: Path, project: Project) -> None:
    sdist(tmp_path, NEWEST, {**vllm_release.FILES, "vllm/envs.py": "variables = {}\n"})
    before = (tmp_path / "images/vllm-knowledge.json").read_text()

    with pytest.raises(UpstreamError, match=rf"vllm {NEWEST}: vllm/envs\.py: no `environment_variables`"):
        learn(project, [NEWEST], sdists=tmp_path, cache=Cache(tmp_path / "cache"))

    assert (tmp_path / "images/vllm-knowledge.json").read_text() == before
