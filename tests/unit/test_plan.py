"""The plan: what it is made of, what changes its id, and how two are compared."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from values import CONFIG, DEBS, GB10, HELLO, HELLO_PIN, PINS, REQUIREMENTS_PIN, WHEELS, toy_plan, wheel

from spark_images.errors import ConfigError
from spark_images.images import Toolkit
from spark_images.pins import ArchivePin, ImagePin, UrlRoute, WheelsPin
from spark_images.plan import Plan, image_config
from spark_images.plan_changes import differences
from spark_images.requirements import Departure


def test_the_id_is_that_of_equal_inputs_every_time() -> None:
    assert toy_plan().plan_id == toy_plan().plan_id
    assert len(toy_plan().plan_id) == 64


@pytest.mark.parametrize(
    "change",
    [
        {"dockerfile": "FROM runtime-root\nUSER 0\n"},
        {"scripts": {"step": "2" * 64}},
        {"forms": ("2 zstd",)},
        {"builder": "linux/arm64"},
        {"config": replace(CONFIG, env=(("PATH", "/bin"),))},
        {"pins": replace(PINS, pins=(replace(HELLO_PIN, tree="sha256:" + "b" * 64), *PINS.pins[1:]))},
        {"debs": replace(DEBS, debs=tuple(replace(deb, sha256="f" * 64) for deb in DEBS.debs))},
        {"wheels": {"tools": replace(WHEELS, wheels=tuple(replace(w, sha256="e" * 64) for w in WHEELS.wheels))}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_whatever_determines_the_image_changes_the_id(change: dict[str, Any]) -> None:
    assert toy_plan(**change).plan_id != toy_plan().plan_id


def test_a_cross_build_takes_the_builders_programs_and_the_targets_libraries() -> None:
    made = toy_plan()
    assert [entry.path for entry in made.inputs] == [
        "trees/hello.tar",
        "wheels/builder/nvcc-13-py3-none-manylinux_2_17_x86_64.whl",
        "wheels/target/cublas-13-py3-none-manylinux_2_17_aarch64.whl",
        "wheels/target/nvcc-13-py3-none-manylinux_2_17_aarch64.whl",
    ]
    build_root, runtime_root = made.roots
    assert {deb.package for deb in build_root.debs} == {"gcc", "libc6", "cross-gcc"}
    assert {deb.arch for deb in build_root.debs} == {"amd64"}
    assert [(deb.package, deb.arch) for deb in runtime_root.debs] == [("libc6", "arm64")]


def test_a_targets_own_toolkit_takes_the_place_of_the_wheels() -> None:
    image_pin = ImagePin(name="cuda-12", line=9, ref="example.org/cuda:12", digest=f"sha256:{'c' * 64}")
    toolkit = Toolkit(target="gb10", image="cuda-12", instead_of="tools")
    image = replace(HELLO, compile=replace(HELLO.compile, toolkits=(toolkit,)))
    made = toy_plan(image=image, pins=replace(PINS, pins=(*PINS.pins, image_pin)))
    assert [entry.path for entry in made.inputs] == ["trees/hello.tar"]
    assert (made.root("toolkit").image, made.root("toolkit").arch) == (image_pin, "amd64")
    assert made.images == ((image_pin, "linux/amd64"),)
    assert dict(made.pins)["cuda-12"] == f"example.org/cuda:12@sha256:{'c' * 64}"
    assert "tools" not in dict(made.pins)


def test_a_further_source_may_be_a_file_at_an_address() -> None:
    route = UrlRoute(url="https://example.org/files/fix.patch")
    fix = ArchivePin(name="fix", line=9, version="1", sha256="f" * 64, routes=(route,))
    image = replace(HELLO, compile=replace(HELLO.compile, sources=("fix",)))
    made = toy_plan(image=image, pins=replace(PINS, pins=(*PINS.pins, fix)))
    assert {entry.path: entry.content.digest for entry in made.inputs}["sources/fix.patch"] == f"sha256:{'f' * 64}"
    assert dict(made.pins)["fix"] == f"1 sha256:{'f' * 64}"


def plan_with_an_sdist(*tools: str, compiled: tuple[str, ...] = ()) -> Plan:
    """`app` is installed from its sdist, which the pin `frontend` builds. tools: platforms of that pin's wheels."""
    sdist = Departure(name="app", version="1.0", because="no wheel")
    pin = replace(
        REQUIREMENTS_PIN,
        build_with="frontend",
        requirements=replace(REQUIREMENTS_PIN.requirements, sdists=(sdist,)),
    )
    frontend = WheelsPin(name="frontend", line=9, version="1", lock="f.lock", platforms=(), packages=("build==13",))
    locked = replace(
        WHEELS.wheels[0], project="app", version="1.0", filename="app-1.0.tar.gz", platform="any", layer="rest"
    )
    image = replace(HELLO, compile=replace(HELLO.compile, wheels=(), pin=pin.name, compiled=compiled))
    wheels = {
        pin.name: replace(WHEELS, wheels=(locked,)),
        "frontend": replace(WHEELS, wheels=tuple(wheel("build", platform) for platform in tools)),
    }
    return toy_plan(image=image, pins=replace(PINS, pins=(*PINS.pins, pin, frontend)), wheels=wheels)


def test_an_sdist_comes_with_what_builds_it_on_the_builder() -> None:
    made = plan_with_an_sdist("linux/amd64", "linux/arm64")
    assert [entry.path for entry in made.inputs] == [
        "sdist-tools/build-13-py3-none-manylinux_2_17_x86_64.whl",
        "sdists/rest/app-1.0.tar.gz",
    ]
    assert "frontend" in dict(made.pins)


def test_what_is_compiled_all_the_same_needs_nothing_that_builds_sdists() -> None:
    made = plan_with_an_sdist("linux/amd64", compiled=("app",))
    assert made.inputs == ()
    assert "frontend" not in dict(made.pins)


def test_what_builds_sdists_has_to_run_on_the_builder() -> None:
    with pytest.raises(ConfigError, match="has no wheel of `build` for linux/amd64"):
        plan_with_an_sdist("linux/arm64")


def test_a_native_build_takes_no_cross_compiler() -> None:
    build_root, _ = toy_plan(builder="linux/arm64").roots
    assert {(deb.package, deb.arch) for deb in build_root.debs} == {("gcc", "arm64"), ("libc6", "arm64")}


def test_every_content_of_the_roots_is_fetched_once() -> None:
    made = toy_plan(builder="linux/arm64")
    digests = [content.digest for content in made.contents]
    assert len(digests) == len(set(digests))
    assert {f"sha256:{deb.sha256}" for root in made.roots for deb in root.debs} <= set(digests)


def test_differences_name_pin_script_and_package() -> None:
    moved = replace(HELLO_PIN, version="b13", tree="sha256:" + "c" * 64)
    new = toy_plan(
        pins=replace(PINS, pins=(moved, *PINS.pins[1:])),
        scripts={"step": "2" * 64},
        debs=replace(DEBS, debs=tuple(replace(deb, version="2") for deb in DEBS.debs)),
    )
    found = "\n".join(differences(toy_plan().document(), new.document()))
    assert "pin `hello`: was b12" in found
    assert "script `step`" in found
    assert "runtime-root package `libc6`: was 1 arm64" in found


def test_equal_plans_have_no_differences() -> None:
    assert differences(toy_plan().document(), toy_plan().document()) == ()


def test_a_plan_read_back_from_a_record_is_equal() -> None:
    document = toy_plan().document()
    assert differences(json.loads(json.dumps(document)), document) == ()


def test_a_changed_option_of_a_root_is_a_difference() -> None:
    old = toy_plan().document()
    new = toy_plan(builder="linux/arm64").document()
    assert any(line.startswith("build-root: arch") for line in differences(old, new))


def test_the_labels_carry_the_pins_and_the_commit() -> None:
    labels = dict(image_config(image=HELLO, target=GB10, base="debian", pins=PINS).labels)
    assert labels["org.opencontainers.image.revision"] == HELLO_PIN.commit
    assert HELLO_PIN.commit in labels["io.spark-images.pins"]
