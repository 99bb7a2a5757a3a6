"""Patches to the source of an image: their files, frozen by hash, tried on the pinned sdist before it is built."""

from __future__ import annotations

import re
import sys
import tarfile
from pathlib import Path

from spark_images.cache import Cache
from spark_images.errors import ConfigError, ContentError, PatchError
from spark_images.plan import Plan
from spark_images.process import capture
from spark_images.store import Store, digest_of
from spark_images.workfolder import work_folder

_FACTS = "images/compat.yaml"
_TRY_S = 300  # 0.1 s on a quiet machine


def require_frozen(plan: Plan, root: Path) -> None:
    """ConfigError where the file of a patch below the project's root is not the one that compat.yaml means."""
    for name, expected in plan.patches:
        if not (root / name).is_file():
            raise ConfigError(
                f"there is no file `{name}`, which {_FACTS} names",
                hint=f"bring it back with `git checkout -- {name}`, or take the patch out of `patches` there",
            )
        found = digest_of(root / name).removeprefix("sha256:")
        if found != expected:
            raise ConfigError(
                f"`{name}` is not the patch that {_FACTS} means",
                why=[f"expected sha256 {expected}", f"found    sha256 {found}"],
                hint=f"where the change is meant, say so there: `sha256: {found}`",
            )


def require_patches_apply(plan: Plan, root: Path, *, store: Store, cache: Cache) -> None:
    """Try the patches of a plan on its sdist, if the store has that; PatchError says which do not apply and why."""
    source = next((entry for entry in plan.inputs if re.fullmatch(r"sources/.+\.tar\.gz", entry.path)), None)
    if not plan.patches or source is None or not store.has(source.content.digest):
        return
    files = [root / path for path, _ in plan.patches]
    named = (re.findall(r"^\+\+\+ [^/\s]+/(\S+)", file.read_text(), re.MULTILINE) for file in files)
    touched = {name for names in named for name in names if ".." not in name}
    with work_folder(cache, "patches") as folder:
        try:
            with tarfile.open(store.path(source.content.digest), "r|gz") as tar:
                for member in tar:
                    name = member.name.partition("/")[2]
                    if name in touched and member.isreg() and (content := tar.extractfile(member)):
                        (folder / name).parent.mkdir(parents=True, exist_ok=True)
                        (folder / name).write_bytes(content.read())
        except tarfile.TarError as err:
            raise ContentError(f"`{source.path}` cannot be read") from err
        program = str(root / "scripts" / "apply_patches")
        done = capture([sys.executable, "-IS", program, "--check", str(folder), *map(str, files)], timeout_s=_TRY_S)
    if done.status != 0:
        said = (done.stdout.decode() + done.stderr).replace(f"{folder}/", "").splitlines()
        raise PatchError(
            f"the patches of `{plan.image}` and {source.path.removeprefix('sources/')} do not go together",
            why=[line.removeprefix("apply_patches: ") for line in said],
            hint=f"see `patches` in {_FACTS}: `until` names the release that has it, `releases` those that it fits",
        )
