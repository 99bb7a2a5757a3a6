"""What a build refuses before it begins."""

from __future__ import annotations

from pathlib import Path

import pytest
import small_project
from small_project import make_project, render

from spark_images.build import BuildOptions, build
from spark_images.cache import Cache
from spark_images.errors import ConfigError
from spark_images.images import Image
from spark_images.project import Project
from spark_images.sources import LockedSource, SourcesLock


class Unseen(Project):
    """A project of whose `hello` nobody has seen a source."""

    def sources_of(self, image: Image) -> SourcesLock | None:
        missing = LockedSource(name="lib", unverified="not reached")
        lock = SourcesLock(path="hello.lock", pin="hello", made_from="", sources=(missing,))
        return lock if image.name == "hello" else None


@pytest.mark.parametrize("image", ["hello", "house"])
def test_sources_that_are_not_there_are_told_before_a_component_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, image: str
) -> None:
    """`hello` has the component `hallway`; `house` has first that one, and then `hello`."""
    monkeypatch.setenv("PATH", "/nowhere")  # no engine could begin
    root = make_project(tmp_path / "clone").root
    for name, components in (("hello", "[hallway]"), ("house", "[hallway, hello]")):
        (root / f"images/{name}").mkdir(exist_ok=True)
        text = small_project.IMAGE.replace("compile:\n", f"compile:\n  components: {components}\n")
        (root / f"images/{name}/image.yaml").write_text(text)
    render(root)
    project, cache = Unseen(root), Cache(tmp_path / "cache")

    with pytest.raises(ConfigError, match=r"hello\.lock: 1 of 1 sources are not yet verified, so nothing is built"):
        build(project, project.image(image), project.target("gb10"), "debian", cache=cache, options=BuildOptions())

    assert not cache.root.exists()
