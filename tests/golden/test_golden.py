"""Committed texts that must not change by accident: the identity of plans, and every rendered Dockerfile."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from values import CONFIG, GB10, HELLO, PINS, toy_plan

from spark_images.plan import image_config
from spark_images.project import Project

REPOSITORY = Path(__file__).parents[2]
PLANS = Path(__file__).parent / "plans"
PROJECT = Project(REPOSITORY)
DOCKERFILES = {path.relative_to(REPOSITORY).as_posix(): text for path, text in PROJECT.dockerfiles()}
ACCEPT = "SPARK_IMAGES_ACCEPT_GOLDEN"


@pytest.mark.parametrize("builder", ["linux/amd64", "linux/arm64"])
def test_equal_inputs_keep_their_plan_id(builder: str) -> None:
    """Another plan_id makes everybody build every image again."""
    config = image_config(image=HELLO, target=GB10, base="debian", pins=PINS)
    assert config != CONFIG  # the real thing, with labels
    plan = toy_plan(builder=builder, config=config)
    text = json.dumps({"plan_id": plan.plan_id, **plan.document()}, indent=1, ensure_ascii=False) + "\n"
    golden = PLANS / f"toy-on-{builder.partition('/')[2]}.json"
    if os.environ.get(ACCEPT) == "1":
        golden.write_text(text)
    assert text == golden.read_text(), (
        "plans are made differently now: every image gets another plan_id and is built again. Where that is meant, "
        f"accept it with `{ACCEPT}=1 pytest {Path(__file__).relative_to(REPOSITORY)}` and commit the file"
    )


@pytest.mark.parametrize("name", sorted(DOCKERFILES))
def test_the_committed_dockerfile_is_what_renders_now(name: str) -> None:
    assert (REPOSITORY / name).read_text() == DOCKERFILES[name], "accept with `./noxw -s render`"


def test_no_dockerfile_is_left_of_a_variant_that_is_gone() -> None:
    committed = REPOSITORY.glob("images/*/*Dockerfile*")
    assert {path.relative_to(REPOSITORY).as_posix() for path in committed} == {*DOCKERFILES}
