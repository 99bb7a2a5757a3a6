"""The image test that looks for settings of a build: what image.yaml states on purpose is none."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest

SOURCE = Path(__file__).parents[2] / "images" / "tests" / "test_config.py"


def look(*env: str, meant: tuple[tuple[str, str], ...] = ()) -> None:
    """Run it on an image with this environment, whose image.yaml states `meant`."""
    spec = importlib.util.spec_from_file_location("images_test_config", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    runtime = SimpleNamespace(env=meant, image="")
    under_test = SimpleNamespace(image=SimpleNamespace(runtime=runtime))
    module.test_no_build_setting_stayed_in_the_environment(list(env), under_test)


def test_limit_that_image_yaml_states_is_no_build_setting() -> None:
    look("PATH=/bin", "MAX_JOBS=4", meant=(("MAX_JOBS", "4"),))


@pytest.mark.parametrize("meant", [(), (("MAX_JOBS", "4"),)])
def test_limit_that_was_left_behind_is_one(meant: tuple[tuple[str, str], ...]) -> None:
    with pytest.raises(AssertionError):
        look("PATH=/bin", "MAX_JOBS=20", meant=meant)
