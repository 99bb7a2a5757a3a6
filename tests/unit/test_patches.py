"""Patches to a source: what `scripts/apply_patches` makes of them, and what is refused before anything is built."""

from __future__ import annotations

import difflib
import hashlib
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from values import toy_plan

from spark_images.bisect.answer import Cause, judge_verb
from spark_images.cache import Cache
from spark_images.compat.facts import Patch
from spark_images.compat.file import read_facts
from spark_images.errors import ConfigError, PatchError
from spark_images.ingredients import Input
from spark_images.patches import require_frozen, require_patches_apply
from spark_images.pins import FileContent
from spark_images.plan import Plan
from spark_images.plan_changes import differences
from spark_images.search import Verdict
from spark_images.store import Store

ROOT = Path(__file__).parents[2]
PATCHES = read_facts(ROOT / "images/compat.yaml").vllm.patches
SETUP = "".join(f"line {number}\n" for number in range(1, 31))


def diff(before: str, after: str, *, file: str = "setup.py", context: int = 3) -> str:
    lines = difflib.unified_diff(before.splitlines(True), after.splitlines(True), f"a/{file}", f"b/{file}", n=context)
    return "".join(lines)


def fix(text: str = SETUP) -> str:
    """What the patch of these tests makes of a file."""
    return text.replace("line 10\n", "line ten\n").replace("line 25\n", "line 25\nline 25 and a half\n")


def apply(folder: Path, *patches: str, files: dict[str, str], check: bool = False) -> tuple[int, str]:
    """Status and words of the script; the files lie in folder/source afterwards."""
    (folder / "source").mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / "source" / name).write_text(text)
    given = []
    for number, text in enumerate(patches):
        given.append(folder / f"{number}.patch")
        given[-1].write_text(text)
    options = ["--check"] if check else []
    command = [str(ROOT / "scripts/apply_patches"), *options, str(folder / "source"), *map(str, given)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    return done.returncode, done.stdout


# --- the script -------------------------------------------------------------------------------------------------------


def test_every_hunk_is_applied(tmp_path: Path) -> None:
    words = f"Why: because.\n\n{diff(SETUP, fix())}"
    assert apply(tmp_path, words, files={"setup.py": SETUP}) == (0, "")
    assert (tmp_path / "source/setup.py").read_text() == fix()


def test_one_patch_serves_releases_in_which_the_lines_stand_elsewhere(tmp_path: Path) -> None:
    other = f"{'import os' * 50}\n" * 40 + SETUP + "end\n"
    assert apply(tmp_path, diff(SETUP, fix()), files={"setup.py": other}) == (0, "")
    assert (tmp_path / "source/setup.py").read_text() == fix(other)


def test_a_later_patch_stands_on_an_earlier_one(tmp_path: Path) -> None:
    second = fix().replace("line ten\n", "line X\n")
    assert apply(tmp_path, diff(SETUP, fix()), diff(fix(), second), files={"setup.py": SETUP}) == (0, "")
    assert (tmp_path / "source/setup.py").read_text() == second


def test_empty_line_of_context_whose_blank_an_editor_took_is_one_all_the_same(tmp_path: Path) -> None:
    before = "a\n\nb\nc\n"
    patch = diff(before, "a\n\nb\nC\n").replace("\n \n", "\n\n")
    assert apply(tmp_path, patch, files={"setup.py": before}) == (0, "")
    assert (tmp_path / "source/setup.py").read_text() == "a\n\nb\nC\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (fix(), "hunk 1 is in `setup.py` already"),
        (SETUP.replace("line 10\n", "line ten\n"), "hunk 1 is in `setup.py` already"),
        (SETUP.replace("line 9\n", "line nine\n"), "what hunk 1 replaces stands 0 times in `setup.py`"),
        (SETUP.replace("line 10\n", "other\n"), "what hunk 1 replaces stands 0 times in `setup.py`"),
        (SETUP + SETUP, "what hunk 1 replaces stands 2 times in `setup.py`"),
        (SETUP.replace("line 26\n", ""), "what hunk 2 replaces stands 0 times in `setup.py`"),
    ],
)
def test_patch_that_is_in_already_or_no_longer_applies_says_which_and_changes_nothing(
    tmp_path: Path, text: str, why: str
) -> None:
    good = diff("a\nb\n", "a\nc\n", file="other.py")
    status, said = apply(tmp_path, good, diff(SETUP, fix()), files={"setup.py": text, "other.py": "a\nb\n"})
    assert (status, said) == (1, f"apply_patches: `1.patch` does not apply: {why}\n")
    assert (tmp_path / "source/setup.py").read_text() == text
    assert (tmp_path / "source/other.py").read_text() == "a\nb\n"


@pytest.mark.parametrize("context", [0, 1, 3])
@pytest.mark.parametrize("after", [SETUP + "more\n", SETUP.replace("line 30\n", ""), SETUP.replace("line 7\n", "")])
def test_addition_and_removal_at_an_end_are_not_taken_for_one_another(tmp_path: Path, after: str, context: int) -> None:
    patch = diff(SETUP, after, context=context)
    added = context == 0 and after.startswith(SETUP)  # nothing says where: it never applies
    assert apply(tmp_path, patch, files={"setup.py": SETUP})[0] == added
    assert (tmp_path / "source/setup.py").read_text() == (SETUP if added else after)
    assert apply(tmp_path, patch, files={"setup.py": after})[0] == 1


def test_check_changes_nothing_and_every_patch_is_judged(tmp_path: Path) -> None:
    bad = diff("x\n", "y\n")
    status, said = apply(tmp_path, bad, diff(SETUP, fix()), bad, files={"setup.py": SETUP}, check=True)
    assert status == 1
    assert [line.split("`")[1] for line in said.splitlines()] == ["0.patch", "2.patch"]
    assert apply(tmp_path, diff(SETUP, fix()), files={}, check=True) == (0, "")
    assert (tmp_path / "source/setup.py").read_text() == SETUP


@pytest.mark.parametrize(
    ("patch", "why"),
    [
        ("a word\n", "there is no unified diff in it"),
        (diff("a\n", "b\n", file="gone.py"), "there is no `"),
        (diff("a\n", "b\n").replace("b/setup.py", "b/other.py"), "line 1 does not name one file"),
        (diff("a\n", "b\n", file="../x"), "line 1 does not name one file"),
        (diff("a\n", "b\n").replace("@@ -1 +1 @@", "@@ -1,3 +1,3 @@"), "hunk 1 has not as many lines as its head says"),
        (diff("a\n", "b\n").replace("-a\n", "-a\n\\ No newline at end of file\n"), "touches an end without a newline"),
    ],
)
def test_what_is_no_patch_of_files_that_are_there_is_refused(tmp_path: Path, patch: str, why: str) -> None:
    status, said = apply(tmp_path, patch, files={"setup.py": "a\n"})
    assert status == 1
    assert why in said


# --- before a build ---------------------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def planned(root: Path, cache: Cache, source: str, patch: str) -> Plan:
    """A plan of which the sdist with this setup.py is in the store, and the patch in the project at `root`."""
    path = root / "images/vllm/patches/fix.patch"
    path.parent.mkdir(parents=True)
    path.write_text(patch)
    (root / "scripts").symlink_to(ROOT / "scripts")
    (root / "setup.py").write_text(source)
    with tarfile.open(root / "sdist", "w:gz") as tar:
        tar.add(root / "setup.py", "vllm-9/setup.py")
    digest = f"sha256:{hashlib.sha256((root / 'sdist').read_bytes()).hexdigest()}"
    cache.store.mkdir(parents=True)
    Store(cache.store).add_file(root / "sdist", digest)
    content = FileContent(pin="vllm", label="vllm", digest=digest, size_bytes=None, routes=())
    return replace(
        toy_plan(),
        inputs=(Input(path="sources/vllm-9.tar.gz", content=content),),
        patches=(("images/vllm/patches/fix.patch", hashlib.sha256(patch.encode()).hexdigest()),),
    )


def test_patch_that_applies_to_the_pinned_sdist_is_let_pass(tmp_path: Path, cache: Cache) -> None:
    plan = planned(tmp_path, cache, SETUP, diff(SETUP, fix()))
    require_frozen(plan, tmp_path)
    require_patches_apply(plan, tmp_path, store=Store(cache.store), cache=cache)
    assert list(cache.work.iterdir()) == []


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (fix(), "`fix.patch` does not apply: hunk 1 is in `setup.py` already"),
        ("", "`fix.patch` does not apply: what hunk 1 replaces stands 0 times in `setup.py`"),
    ],
)
def test_patch_that_the_pinned_sdist_has_or_has_no_place_for_is_an_error_before_anything_is_built(
    tmp_path: Path, cache: Cache, source: str, why: str
) -> None:
    plan = planned(tmp_path, cache, source, diff(SETUP, fix()))
    with pytest.raises(PatchError) as caught:
        require_patches_apply(plan, tmp_path, store=Store(cache.store), cache=cache)
    assert caught.value.render().splitlines()[:2] == [
        f"error: the patches of `{plan.image}` and vllm-9.tar.gz do not go together",
        f"  {why}",
    ]
    # A bisection passes over such a release.
    assert judge_verb(caught.value.exit_status, checks_build=True) == (Verdict.SKIP, Cause.COMPAT)


def test_patch_that_is_not_the_one_that_is_meant_is_an_error(tmp_path: Path, cache: Cache) -> None:
    plan = planned(tmp_path, cache, SETUP, diff(SETUP, fix()))
    path = tmp_path / "images/vllm/patches/fix.patch"
    path.write_text(path.read_text() + "\n")
    with pytest.raises(ConfigError, match=r"`images/vllm/patches/fix\.patch` is not the patch that"):
        require_frozen(plan, tmp_path)
    path.unlink()
    with pytest.raises(ConfigError, match=r"there is no file `images/vllm/patches/fix\.patch`") as caught:
        require_frozen(plan, tmp_path)
    assert "git checkout -- images/vllm/patches/fix.patch" in caught.value.hint


def test_patches_are_in_the_plan_and_plans_without_any_are_as_they_were() -> None:
    patch = replace(PATCHES[0], sha256="1" * 64)
    plain, patched = toy_plan(), toy_plan(patches=[patch])
    assert "patches" not in plain.document()
    assert patched.plan_id != plain.plan_id
    assert differences(plain.document(), patched.document()) == (f"patch `{patch.path}`: new",)


def test_every_patch_of_this_repository_is_one_that_is_named_and_frozen() -> None:
    there = {str(path.relative_to(ROOT)) for path in (ROOT / "images/vllm/patches").iterdir()}
    assert there == {patch.path for patch in PATCHES}
    require_frozen(toy_plan(patches=PATCHES), ROOT)


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: str(patch.name))
def test_every_patch_of_this_repository_is_a_unified_diff(patch: Patch, tmp_path: Path) -> None:
    status, said = apply(tmp_path, (ROOT / patch.path).read_text(), files={"setup.py": "", "CMakeLists.txt": ""})
    assert status == 1
    assert "stands 0 times" in said
