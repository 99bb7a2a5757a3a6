from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version
from values import DEBIAN_PIN, REQUIREMENTS_PIN, TOOLS_PIN

from spark_images.compat.file import read_facts
from spark_images.errors import ConfigError, StaleLockError
from spark_images.locks import (
    LockedDeb,
    LockedWheel,
    lock_text,
    made_from,
    read_debs_lock,
    read_wheels_lock,
    with_entries_digest,
)
from spark_images.pins import DebSet, DebsPin, RequirementsPin, WheelsPin
from spark_images.pins_file import read_pins
from spark_images.requirements import Departure

REPOSITORY = Path(__file__).parents[2]
PIN = replace(TOOLS_PIN, packages=("nvcc==13.0.88", "cublas==13.0.2"))
NVCC = LockedWheel(
    project="nvcc",
    version="13.0.88",
    filename="nvcc-13.0.88-py3-none-any.whl",
    platform="any",
    sha256="0e1" + "0" * 61,  # a number to YAML, a text to us
    size_bytes=123,
)
TORCH = LockedWheel(
    project="torch",
    version="2.11.0",
    filename="torch-2.11.0-cp311-cp311-manylinux_2_28_aarch64.whl",
    platform="linux/arm64",
    sha256="2" * 64,
    size_bytes=1,
    layer="torch",
)
APP = replace(TORCH, project="app", version="1.0", filename="app-1.0-py3-none-any.whl", platform="any", layer="rest")
LIBC = LockedDeb(
    package="libstdc++6",
    version="1:12.2.0-14+deb12u1~rc1",
    arch="arm64",
    archive="debian-security",
    path="pool/main/g/gcc-12/libstdc++6_12.2.0-14+deb12u1~rc1_arm64.deb",
    sha256="1" * 64,
    size_bytes=0,
    sets=("runtime/arm64", "build/arm64"),
)


def wheel_line(wheel: LockedWheel, **changes: object) -> str:
    w = replace(wheel, **changes)  # type: ignore[arg-type]
    layer = f", layer: {w.layer}" if w.layer else ""
    return (
        f"{{project: {w.project}, version: {w.version}, filename: {w.filename}, platform: {w.platform}, "
        f"sha256: {w.sha256}, size: {w.size_bytes}{layer}}}"
    )


def deb_line(deb: LockedDeb, **changes: object) -> str:
    d = replace(deb, **changes)  # type: ignore[arg-type]
    return (
        f"{{package: {d.package}, version: '{d.version}', arch: {d.arch}, archive: {d.archive}, path: {d.path}, "
        f"sha256: {d.sha256}, size: {d.size_bytes}, sets: [{', '.join(d.sets)}]}}"
    )


def cublas(platform: str) -> str:
    tag = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}[platform]
    name = f"cublas-13.0.2-py3-none-manylinux_2_27_{tag}.whl"
    return wheel_line(NVCC, project="cublas", version="13.0.2", filename=name, platform=platform)


def with_requirements(**values: Any) -> RequirementsPin:
    return replace(REQUIREMENTS_PIN, requirements=replace(REQUIREMENTS_PIN.requirements, **values))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "some.lock"


def write(file: Path, pin: WheelsPin | RequirementsPin | DebsPin, *lines: str) -> Path:
    key = "debs" if isinstance(pin, DebsPin) else "wheels"
    file.write_text(lock_text(made=made_from(pin), key=key, entries=lines))
    return file


def test_the_projects_own_locks_fit_its_pins() -> None:
    for pin in read_pins(REPOSITORY / "pins.yaml").pins:
        if isinstance(pin, WheelsPin | RequirementsPin):
            assert read_wheels_lock(REPOSITORY / pin.lock, pin).wheels
        elif isinstance(pin, DebsPin):
            assert read_debs_lock(REPOSITORY / pin.lock, pin).debs


def test_a_wheels_lock_is_read(file: Path) -> None:
    write(file, PIN, wheel_line(NVCC), cublas("linux/amd64"), cublas("linux/arm64"))
    lock = read_wheels_lock(file, PIN)
    assert lock.made_from == made_from(PIN)
    assert lock.wheels[0] == NVCC
    assert [wheel.platform for wheel in lock.wheels] == ["any", "linux/amd64", "linux/arm64"]


def test_a_debs_lock_is_read(file: Path) -> None:
    assert read_debs_lock(write(file, DEBIAN_PIN, deb_line(LIBC)), DEBIAN_PIN).debs == (LIBC,)


def test_a_package_without_a_wheel_for_a_platform_is_a_mistake(file: Path) -> None:
    write(file, PIN, wheel_line(NVCC), cublas("linux/amd64"))
    with pytest.raises(ConfigError, match=r":4: wheels: there is none of `cublas==13\.0\.2` for linux/arm64$"):
        read_wheels_lock(file, PIN)


@pytest.mark.parametrize("filename", ["../nvcc-1-py3-none-any.whl", "nvcc.tar.gz", "-nvcc.whl", "$(id).whl"])
def test_a_wheels_file_name_that_is_no_plain_name_is_a_mistake(file: Path, filename: str) -> None:
    write(file, PIN, wheel_line(NVCC, filename=filename), cublas("linux/amd64"), cublas("linux/arm64"))
    with pytest.raises(ConfigError, match=r":5: wheels\[0\].filename: expected a wheel's file name"):
        read_wheels_lock(file, PIN)


def test_the_lock_of_requirements_is_read_with_its_layers(file: Path) -> None:
    lock = read_wheels_lock(write(file, REQUIREMENTS_PIN, wheel_line(TORCH), wheel_line(APP)), REQUIREMENTS_PIN)
    assert lock.wheels == (TORCH, APP)
    assert [wheel.layer for wheel in lock.wheels] == ["torch", "rest"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"filename": "torch-2.11.0-cp311-cp311-manylinux_2_28_x86_64.whl"},
            "filename: no wheel of `torch` 2.11.0 for linux/arm64 and Python 3.11",
        ),
        ({"filename": "torch-2.11.0-cp312-cp312-manylinux_2_28_aarch64.whl"}, "filename: no wheel of `torch` 2.11.0"),
        ({"filename": "torch-2.11.0-cp311-cp311-manylinux_2_39_aarch64.whl"}, "filename: no wheel of `torch` 2.11.0"),
        ({"filename": "torch-2.10.0-cp311-cp311-manylinux_2_28_aarch64.whl"}, "filename: no wheel of `torch` 2.11.0"),
        ({"filename": "torchaudio-2.11.0-py3-none-any.whl"}, "filename: no wheel of `torch` 2.11.0"),
        ({"platform": "linux/amd64"}, "platform: `linux/amd64` is none of the pin's: linux/arm64"),
        ({"layer": "tourch"}, "layer: expected one of `torch`, `rest`, got `tourch`; did you mean `torch`?"),
    ],
)
def test_a_wheel_that_does_not_fit_the_requirements_is_a_mistake(
    file: Path, changes: dict[str, object], text: str
) -> None:
    write(file, REQUIREMENTS_PIN, wheel_line(TORCH, **changes), wheel_line(APP))
    with pytest.raises(ConfigError) as caught:
        read_wheels_lock(file, REQUIREMENTS_PIN)
    assert caught.value.what.startswith(f"{file}:5: wheels[0].{text}")


SDISTS = with_requirements(sdists=(Departure(name="torch", version="2.11.0", because="no wheel"),))


@pytest.mark.parametrize(
    ("pin", "filename", "text"),
    [
        (SDISTS, "torch-2.11.0.tar.gz", ""),
        (SDISTS, "torch-2.11.0.zip", ""),
        (SDISTS, "torch-2.10.0.tar.gz", "filename: no sdist of `torch` 2.11.0"),
        (SDISTS, "torchaudio-2.11.0.tar.gz", "filename: no sdist of `torch` 2.11.0"),
        (SDISTS, TORCH.filename, "filename: expected an sdist's file name"),
        (REQUIREMENTS_PIN, "torch-2.11.0.tar.gz", "filename: expected a wheel's file name"),
    ],
)
def test_an_sdist_stands_in_a_lock_where_the_requirements_say_so(
    file: Path, pin: RequirementsPin, filename: str, text: str
) -> None:
    write(file, pin, wheel_line(TORCH, filename=filename, platform="any"), wheel_line(APP))
    if not text:
        assert [wheel.is_sdist for wheel in read_wheels_lock(file, pin).wheels] == [True, False]
        return
    with pytest.raises(ConfigError) as caught:
        read_wheels_lock(file, pin)
    assert caught.value.what.startswith(f"{file}:5: wheels[0].{text}")


def test_a_wheel_for_one_python_is_none_for_all(file: Path) -> None:
    """What holds programs and libraries is unpacked and never imported, so a wheel for one Python is the wrong one."""
    name = "nvcc-13.0.88-cp311-cp311-manylinux_2_17_x86_64.whl"
    write(file, PIN, wheel_line(NVCC, filename=name, platform="linux/amd64"), wheel_line(NVCC), cublas("linux/amd64"))
    with pytest.raises(ConfigError) as caught:
        read_wheels_lock(file, PIN)
    assert f"{file}:5: wheels[0].filename: no wheel of `nvcc` 13.0.88 for linux/amd64" in caught.value.why


def test_a_lock_for_another_release_says_which(file: Path) -> None:
    write(file, replace(REQUIREMENTS_PIN, packages=("app==1.0",)), wheel_line(TORCH), wheel_line(APP))
    with pytest.raises(StaleLockError) as caught:
        read_wheels_lock(file, replace(REQUIREMENTS_PIN, packages=("app==1.1",)))
    assert caught.value.why[0] == "it has `app` 1.0, and the pin names 1.1"


def test_the_lock_of_vllm_has_the_torch_and_the_cuda_that_its_release_was_made_for() -> None:
    pins = read_pins(REPOSITORY / "pins.yaml")
    pin = pins["vllm-gb10-debian"]
    assert isinstance(pin, RequirementsPin)
    found = {wheel.project: wheel.version for wheel in read_wheels_lock(REPOSITORY / pin.lock, pin).wheels}
    facts = read_facts(REPOSITORY / "images/compat.yaml")
    torch = facts.vllm.torch.at(Version(found["vllm"])).value
    wheel = dict(facts.torch)[torch]
    cuda = dict(wheel.cuda)[pin.platform]
    assert (found["torch"], found["triton"], found["cuda-toolkit"]) == (torch, wheel.triton, cuda)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"sets": ("runtime/arm",)}, "debs[0].sets[0]: expected one of `build/amd64`"),
        ({"arch": "armhf"}, "debs[0].arch: expected one of `amd64`, `arm64`, `all`, got `armhf`"),
        ({"archive": "ubuntu"}, "debs[0].archive: expected one of `debian`, `debian-security`, got `ubuntu`"),
        ({"path": "../../etc/passwd"}, "debs[0].path: expected a relative path"),
        ({"sha256": "1" * 63}, "debs[0].sha256: expected 64 hex digits"),
        ({"version": "1.0 2"}, "debs[0].version: expected a Debian version, got `1.0 2`"),
    ],
)
def test_a_wrong_value_of_a_deb_is_a_mistake(file: Path, changes: dict[str, object], text: str) -> None:
    write(file, DEBIAN_PIN, deb_line(LIBC, **changes))
    with pytest.raises(ConfigError) as caught:
        read_debs_lock(file, DEBIAN_PIN)
    assert caught.value.what.startswith(f"{file}:5: {text}")


def test_a_package_of_a_set_that_the_lock_lacks_is_not_looked_for_under_its_name(file: Path) -> None:
    """Sets may name virtual packages, which stand in the lock under the name of what provides them."""
    pin = replace(DEBIAN_PIN, sets=(DebSet(name="runtime", packages=("awk",), arches=("arm64",)),))
    write(file, pin, deb_line(LIBC, package="mawk", sets=("runtime/arm64",)))
    assert read_debs_lock(file, pin).debs[0].package == "mawk"


def test_a_lock_made_from_another_state_of_its_pin_is_stale(file: Path) -> None:
    write(file, PIN, wheel_line(NVCC))
    with pytest.raises(StaleLockError) as caught:
        read_wheels_lock(file, replace(PIN, packages=("nvcc==13.0.96",)))
    assert caught.value.what == f"`{file}` was made from another `tools` than line 3 of pins.yaml now says"
    assert caught.value.hint == "make it with `./noxw -s lock -- tools`"


@pytest.mark.parametrize(
    "edit",
    [
        lambda text: text.replace(f"  - {wheel_line(TORCH)}\n", ""),
        lambda text: text.replace("size: 1,", "size: 2,", 1),
        lambda text: text + f"  - {wheel_line(APP, layer='torch')}\n",
        lambda text: text + "\n",
        lambda text: text.replace(f"  - {wheel_line(APP)}\n", ""),  # without it the pin's package is missing
        lambda text: text[:-20],  # no YAML any more
    ],
    ids=["a line lost", "a value changed", "a line added", "a blank added", "the package lost", "cut in a line"],
)
def test_a_lock_whose_entries_are_not_those_that_were_written_is_refused(
    file: Path, edit: Callable[[str], str]
) -> None:
    write(file, REQUIREMENTS_PIN, wheel_line(TORCH), wheel_line(APP))
    assert read_wheels_lock(file, REQUIREMENTS_PIN).wheels == (TORCH, APP)

    file.write_text(edit(file.read_text()))

    with pytest.raises(StaleLockError) as caught:
        read_wheels_lock(file, REQUIREMENTS_PIN)
    assert caught.value.what == f"`{file}` is not as it was written: lines of it were changed, added or lost"
    assert caught.value.hint == f"make it with `./noxw -s lock -- {REQUIREMENTS_PIN.name}`"


def test_an_empty_lock_is_made_anew(file: Path) -> None:
    file.write_text("")
    with pytest.raises(StaleLockError) as caught:
        read_debs_lock(file, DEBIAN_PIN)
    assert caught.value.hint == "make it with `./noxw -s lock -- debian`"


def test_a_cut_lock_of_another_pin_says_that_it_is_of_another_pin(file: Path) -> None:
    write(file, PIN, wheel_line(NVCC))
    file.write_text(file.read_text()[:-20])
    with pytest.raises(StaleLockError, match="was made from another `tools`"):
        read_wheels_lock(file, replace(PIN, packages=("nvcc==13.0.96",)))


def test_a_lock_of_debs_that_lost_a_line_is_refused(file: Path) -> None:
    write(file, DEBIAN_PIN, deb_line(LIBC), deb_line(LIBC, package="libgcc-s1"))
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(StaleLockError, match="is not as it was written"):
        read_debs_lock(file, DEBIAN_PIN)


def test_no_line_of_the_projects_own_locks_can_be_lost(tmp_path: Path) -> None:
    pin = read_pins(REPOSITORY / "pins.yaml")["vllm-gb10-debian"]
    assert isinstance(pin, RequirementsPin)
    lines = (REPOSITORY / pin.lock).read_text().splitlines(keepends=True)
    (torch,) = (line for line in lines if "{project: torch," in line)
    (tmp_path / "some.lock").write_text("".join(line for line in lines if line != torch))
    with pytest.raises(StaleLockError, match="is not as it was written"):
        read_wheels_lock(tmp_path / "some.lock", pin)


def test_a_lock_that_does_not_say_what_it_was_written_with_is_made_anew(file: Path) -> None:
    write(file, DEBIAN_PIN, deb_line(LIBC))
    file.write_text(re.sub("entries: .*\n", "", file.read_text()))
    with pytest.raises(StaleLockError) as caught:
        read_debs_lock(file, DEBIAN_PIN)
    assert caught.value.hint == "make it with `./noxw -s lock -- debian`"


def test_a_lock_from_before_the_digest_reads_as_it_was_where_somebody_vouches_for_it(file: Path) -> None:
    new = write(file, DEBIAN_PIN, deb_line(LIBC)).read_text()
    old = re.sub("entries: .*\n", "", new)
    file.write_text(with_entries_digest(old))
    assert read_debs_lock(file, DEBIAN_PIN).debs == (LIBC,)
    assert with_entries_digest(old) == new


@pytest.mark.parametrize("text", ["", "schema: 1\ndebs:\n"], ids=["empty", "without a head"])
def test_what_is_no_lock_gets_no_digest(text: str) -> None:
    assert with_entries_digest(text) == text


def test_nobody_vouches_for_a_lock_that_has_a_digest_already(file: Path) -> None:
    edited = write(file, DEBIAN_PIN, deb_line(LIBC)).read_text() + "\n"
    file.write_text(with_entries_digest(edited))
    with pytest.raises(StaleLockError, match="is not as it was written"):
        read_debs_lock(file, DEBIAN_PIN)


def test_a_missing_lock_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read_debs_lock(tmp_path / "debs.lock", DEBIAN_PIN)
    assert caught.value.hint == "make it with `./noxw -s lock -- debian`"


def test_the_order_in_which_a_pin_lists_things_does_not_make_its_lock_stale() -> None:
    turned = replace(DEBIAN_PIN, sets=DEBIAN_PIN.sets[::-1])
    assert made_from(turned) == made_from(DEBIAN_PIN)
    assert made_from(replace(PIN, packages=PIN.packages[::-1], platforms=PIN.platforms[::-1])) == made_from(PIN)
    one, other = (
        with_requirements(sdists=(Departure(name="a", version="1", requires=requires, because=""),))
        for requires in (("b", "c"), ("c", "b"))
    )
    assert made_from(one) == made_from(other)


@pytest.mark.parametrize(
    "other",
    [
        replace(PIN, packages=("nvcc==13.0.88",)),
        replace(PIN, platforms=("linux/arm64",)),
        replace(REQUIREMENTS_PIN, packages=("app==1.1",)),
        replace(REQUIREMENTS_PIN, platform="linux/amd64"),
        replace(REQUIREMENTS_PIN, python="3.12"),
        replace(REQUIREMENTS_PIN, exclude_newer=REQUIREMENTS_PIN.exclude_newer.replace(day=2)),
        replace(REQUIREMENTS_PIN, base="ngc-pytorch", provided=(("numpy", "2.1.0"),)),
        with_requirements(constraints=(Departure(name="a", version="1", because=""),)),
        with_requirements(overrides=(Departure(name="a", version="1", because=""),)),
        with_requirements(exclusions=(Departure(name="a", because=""),)),
        with_requirements(sdists=(Departure(name="a", version="1", because=""),)),
        with_requirements(sdists=(Departure(name="a", version="1", requires=("b",), because=""),)),
        with_requirements(layers=REQUIREMENTS_PIN.requirements.layers[::-1]),
        replace(DEBIAN_PIN, suite="trixie"),
        replace(DEBIAN_PIN, snapshot=DEBIAN_PIN.snapshot.replace(day=2)),
        replace(DEBIAN_PIN, sets=DEBIAN_PIN.sets[1:]),
        replace(DEBIAN_PIN, sets=(replace(DEBIAN_PIN.sets[0], arches=("arm64",)), *DEBIAN_PIN.sets[1:])),
        replace(DEBIAN_PIN, sets=(replace(DEBIAN_PIN.sets[0], packages=("g++",)), *DEBIAN_PIN.sets[1:])),
    ],
)
def test_whatever_a_lock_is_resolved_from_makes_it_stale(other: WheelsPin | RequirementsPin | DebsPin) -> None:
    assert made_from(other) not in (made_from(PIN), made_from(REQUIREMENTS_PIN), made_from(DEBIAN_PIN))


def test_what_a_lock_is_not_resolved_from_does_not_make_it_stale() -> None:
    assert made_from(replace(PIN, version="2", line=9, unverified="?")) == made_from(PIN)
    assert made_from(with_requirements(path="elsewhere", without=(Departure(name="a.py", because=""),))) == made_from(
        REQUIREMENTS_PIN
    )
    assert made_from(replace(DEBIAN_PIN, routes=("https://mirror.example.org/{archive}/{path}",))) == made_from(
        DEBIAN_PIN
    )
