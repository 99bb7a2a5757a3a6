"""errors.py and docs/errors.md: complete, and one exit status for each kind."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections import Counter
from pathlib import Path

import pytest

import spark_images
from spark_images import errors, errors_page
from spark_images.cli import main
from spark_images.errors import SparkImagesError

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/errors.md"
# 0 is success, 1 a traceback, from 126 on shells speak: 130 is what they say of Ctrl-C as well.
MEANT = {"UsageError": 2, "InterruptedByUser": 130}


def test_the_page_is_what_errors_py_gives() -> None:
    remake = "remake it: `.venv/bin/python -m spark_images.errors_page >docs/errors.md`"
    assert PAGE.read_text() == errors_page.page(), remake


def test_no_module_has_an_error_of_its_own() -> None:
    for module in pkgutil.walk_packages(spark_images.__path__, "spark_images."):
        if not module.name.endswith(".__main__"):
            importlib.import_module(module.name)

    assert {kind.__module__ for kind in errors_page.errors()} == {errors.__name__}


def test_every_error_has_a_row() -> None:
    here = {name for name, one in vars(errors).items() if isinstance(one, type) and issubclass(one, SparkImagesError)}

    assert set(re.findall(r"^\| \*\*\d+\*\* (\w+) \|", PAGE.read_text(), re.MULTILINE)) == here - {"SparkImagesError"}


@pytest.mark.parametrize("kind", errors_page.errors())
def test_every_error_says_what_it_means_what_it_comes_from_and_what_to_do(kind: type[SparkImagesError]) -> None:
    for text in (kind.__doc__, vars(kind).get("usual"), vars(kind).get("remedy")):  # its own, not inherited ones
        assert text
        assert "|" not in text
        assert "\n" not in text


def test_every_error_has_a_status_of_its_own() -> None:
    statuses = {kind.__name__: vars(kind)["exit_status"] for kind in errors_page.errors()}

    assert [status for status, kinds in Counter(statuses.values()).items() if kinds > 1] == []
    assert {name: status for name, status in statuses.items() if not 3 <= status <= 124} == MEANT


@pytest.mark.parametrize("kind", errors_page.errors())
def test_every_error_is_raised_somewhere(kind: type[SparkImagesError]) -> None:
    used = re.compile(rf"\b{kind.__name__}\(|return {kind.__name__}\b")
    modules = (path for path in (ROOT / "src").rglob("*.py") if path.name != "errors.py")

    assert any(used.search(path.read_text()) for path in modules)


def test_the_pages_example_is_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"^```\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)

    assert main(["--project", str(ROOT), "plan", "llamacpp", "--target", "gb1"]) == errors.UsageError.exit_status
    assert capsys.readouterr().err == example
