"""Small real wheels, with a RECORD that fits what is in them."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path


def metadata(name: str, version: str, *requires: str) -> str:
    """A wheel's METADATA. requires: "other>=1"."""
    lines = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}", *(f"Requires-Dist: {one}" for one in requires)]
    return "\n".join(lines) + "\n"


def make_wheel(
    folder: Path,
    name: str,
    version: str = "1.0",
    *,
    files: Mapping[str, bytes] = {},
    programs: frozenset[str] = frozenset(),
    entry_points: str = "",
    tag: str = "py3-none-any",
    form: str = "1.0",
    record: Mapping[str, str] = {},
    requires: Sequence[str] = (),
) -> Path:
    """A wheel in `folder`. programs: the files that may be executed. record: file -> what RECORD wrongly says."""
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    members = {
        **files,
        f"{info}/METADATA": metadata(name, version, *requires).encode(),
        f"{info}/WHEEL": f"Wheel-Version: {form}\nRoot-Is-Purelib: true\nTag: {tag}\n".encode(),
    }
    if entry_points:
        members[f"{info}/entry_points.txt"] = entry_points.encode()
    rows = []
    for member, content in members.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        rows.append(f"{member},{record.get(member, f'sha256={digest}')},{len(content)}\n")
    members[f"{info}/RECORD"] = "".join((*rows, f"{info}/RECORD,,\n")).encode()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stem}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in members.items():
            entry = zipfile.ZipInfo(member)
            entry.external_attr = (0o100755 if member in programs else 0o100644) << 16
            archive.writestr(entry, content)
    return path
