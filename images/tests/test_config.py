"""What the image says of itself, as the engine reads it."""

from __future__ import annotations

from typing import Any

import pytest
from docker import DockerClient

from spark_images.imagetest import ImageUnderTest
from spark_images.plan import image_config


def test_image_is_for_the_targets_platform(client: DockerClient, under_test: ImageUnderTest) -> None:
    attributes = client.images.get(under_test.reference).attrs
    assert f"{attributes['Os']}/{attributes['Architecture']}" == under_test.target.platform


def test_image_runs_as_a_user_that_is_not_root(config: dict[str, Any]) -> None:
    assert config["User"].partition(":")[0] not in ("", "0", "root")


def test_image_that_serves_asks_for_the_gpu_when_nvidias_runtime_starts_it(
    config: dict[str, Any], under_test: ImageUnderTest
) -> None:
    if under_test.target.compute_capability and under_test.image.runtime.ports:
        assert {"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"} <= set(config["Env"])


@pytest.fixture
def settings(config: dict[str, Any]) -> list[str]:
    """The image's `NAME=value`; engines say null where it sets none."""
    return config["Env"] or []


def test_no_build_setting_stayed_in_the_environment(settings: list[str], under_test: ImageUnderTest) -> None:
    meant = {f"{name}={value}" for name, value in under_test.image.runtime.env}  # it may limit compilers at run time
    names = {entry.partition("=")[0] for entry in settings if entry not in meant}
    assert names.isdisjoint({"MAX_JOBS", "JOBS", "MEMORY_MIB", "SOURCE_DATE_EPOCH", "CCACHE_DIR", "NVCC_APPEND_FLAGS"})
    if not under_test.image.runtime.image:  # what that says is its makers'
        assert [entry for entry in settings if entry.endswith("=")] == []


def test_configuration_is_what_image_yaml_and_the_pins_say(
    config: dict[str, Any], settings: list[str], under_test: ImageUnderTest
) -> None:
    said = image_config(
        image=under_test.image, target=under_test.target, base=under_test.base, pins=under_test.project.pins
    )
    env = {f"{name}={value}" for name, value in said.env}
    if under_test.image.runtime.image:  # its environment and its entry point stay where ours say nothing else
        assert env <= set(settings)
        assert not said.entrypoint or tuple(config["Entrypoint"]) == said.entrypoint
    else:
        assert env == set(settings)
        assert tuple(config["Entrypoint"] or ()) == said.entrypoint
    assert tuple(config["Cmd"] or ()) == said.command
    assert config["User"] == said.user
    assert (config["WorkingDir"] or "/") == (said.workdir or "/")
    assert (config.get("StopSignal") or "SIGTERM") == (said.stop_signal or "SIGTERM")
    assert dict(said.labels).items() <= config["Labels"].items()


def test_labels_say_what_it_is_and_what_it_was_made_from(config: dict[str, Any], under_test: ImageUnderTest) -> None:
    labels = config["Labels"]
    described = ("title", "description", "version", "licenses", "source")
    names = {f"org.opencontainers.image.{name}" for name in described}
    names |= {f"io.spark-images.{name}" for name in ("plan-id", "target", "base", "pins")}
    assert {name for name in names if not labels.get(name)} == set()
    assert labels["io.spark-images.plan-id"].startswith(under_test.reference.rpartition(":")[2])


def test_only_our_labels_are_there(config: dict[str, Any]) -> None:
    ours = ("org.opencontainers.image.", "io.spark-images.")
    assert [name for name in config["Labels"] if not name.startswith(ours)] == []
