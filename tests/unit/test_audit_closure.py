"""Which files the audit follows from a command, and what it says of those that do not compile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from spark_images.audit.closure import command_sources
from spark_images.audit.facts import Distribution, Sources
from spark_images.audit.kept import KeptSources
from spark_images.imagechecks import ImageFile, tree_of

SITE = "/s"


def follow(
    folder: Path, files: dict[str, str], *, words: Sequence[str] | None = ("app",), entry: str = "app.main:run"
) -> Sources:
    """What follows from a command `app` among these files of a site folder."""
    with KeptSources(folder) as sources:
        for path, text in files.items():
            sources.keep(f"{SITE}/{path}", text.encode())
        tree = tree_of(ImageFile(path=f"{SITE}/{path}", kind="file", mode=0o644) for path in files)
        one = Distribution(name="app", version="1.0", info=f"{SITE}/app-1.0.dist-info", entry_points=(("app", entry),))
        return command_sources([one], words, tree=tree, sources=sources)


def refused(found: Sources) -> list[str]:
    return [path for path, _ in found.refused]


BROKEN = "def\n"


@pytest.mark.parametrize(
    "text",
    [
        "import bad",
        "from bad import x",
        "from . import helper\nimport bad as good",
        "try:\n  import bad\nexcept ImportError: pass",
        "if True:\n  from bad import *",
        "class A:\n  import bad",
        "with open('x'):\n  import bad",
        "match 1:\n  case 1:\n    import bad",
    ],
)
def test_statements_that_run_at_import_are_followed(tmp_path: Path, text: str) -> None:
    assert refused(follow(tmp_path, {"app/main.py": text, "bad.py": BROKEN})) == ["/s/bad.py"]


@pytest.mark.parametrize(
    "text",
    [
        "def f():\n  import bad",
        "async def f():\n  import bad",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n  import bad",
        "import other.bad",
        "'import bad'",
    ],
)
def test_what_does_not_run_at_import_is_not_followed(tmp_path: Path, text: str) -> None:
    assert refused(follow(tmp_path, {"app/main.py": text, "bad.py": BROKEN})) == []


def test_packages_above_a_module_are_read_too(tmp_path: Path) -> None:
    found = follow(
        tmp_path, {"app/__init__.py": "", "app/main.py": "import a.b.c", "a/__init__.py": BROKEN, "a/b/c.py": ""}
    )
    assert (found.read, refused(found)) == (4, ["/s/a/__init__.py"])


@pytest.mark.parametrize("text", ["from .sub import bad", "from .sub.bad import x", "from . import sub"])
def test_relative_imports_are_seen_from_their_package(tmp_path: Path, text: str) -> None:
    files = {
        "app/__init__.py": "",
        "app/main.py": text,
        "app/sub/__init__.py": "from . import bad",
        "app/sub/bad.py": BROKEN,
    }
    assert refused(follow(tmp_path, files)) == ["/s/app/sub/bad.py"]


def test_import_in_a_package_counts_from_the_package_itself(tmp_path: Path) -> None:
    files = {
        "app/__init__.py": "from .main import run",
        "app/main.py": "from ..app.deep import x",
        "app/deep.py": BROKEN,
    }
    assert refused(follow(tmp_path, files)) == ["/s/app/deep.py"]


def test_command_of_another_name_is_not_followed_but_must_exist(tmp_path: Path) -> None:
    assert follow(tmp_path, {"app/main.py": BROKEN}, words=("other",)).refused == ()
    assert follow(tmp_path, {"x.py": ""}, words=("other",)).missing == ("app of app 1.0: there is no module app.main",)


def test_module_after_dash_m_is_followed(tmp_path: Path) -> None:
    found = follow(tmp_path, {"app/main.py": "", "serve/__init__.py": BROKEN}, words=("python3", "-m", "serve"))
    assert refused(found) == ["/s/serve/__init__.py"]


def test_wheel_follows_all_its_commands(tmp_path: Path) -> None:
    assert refused(follow(tmp_path, {"app/main.py": BROKEN}, words=None)) == ["/s/app/main.py"]


def test_module_without_a_source_is_there(tmp_path: Path) -> None:
    assert follow(tmp_path, {"app/main.abi3.so": ""}).missing == ()


def test_circles_end(tmp_path: Path) -> None:
    assert follow(tmp_path, {"app/main.py": "import app.other", "app/other.py": "import app.main"}).read == 2


def test_many_files_are_read_by_several_processes(tmp_path: Path) -> None:
    files = {f"m{number}.py": "" for number in range(250)} | {"bad.py": BROKEN}
    files["app/main.py"] = "\n".join(f"import {name.removesuffix('.py')}" for name in files)
    found = follow(tmp_path, files)
    assert (found.read, refused(found)) == (252, ["/s/bad.py"])
