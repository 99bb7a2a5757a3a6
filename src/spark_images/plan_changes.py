"""What changed from one plan to another, in sentences. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

_PARTS = {"pins": "pin", "scripts": "script", "patches": "patch", "inputs": "input", "config": "config"}


def differences(old: Mapping[str, object], new: Mapping[str, object]) -> tuple[str, ...]:
    """What changed between two plan documents, a sentence each, outermost cause first; empty when nothing did."""
    old, new = (json.loads(json.dumps(document)) for document in (old, new))  # one may have been read from a record
    found = []
    for key, one in _PARTS.items():
        found += _changed(one, _mapping(old.get(key)), _mapping(new.get(key)))
    old_roots, new_roots = _mapping(old.get("roots")), _mapping(new.get("roots"))
    for name in sorted(old_roots.keys() | new_roots.keys()):
        before, after = _mapping(old_roots.get(name)), _mapping(new_roots.get(name))
        found += _changed(f"{name} package", _mapping(before.get("debs")), _mapping(after.get("debs")))
        for option in ("arch", "slim", "users", "folders", "image", "component"):
            if (before.get(option) or "") != (after.get(option) or ""):  # older records do not have them all
                found.append(f"{name}: {option} was {before.get(option)}, is {after.get(option)}")
    for key in ("builder", "platform", "forms"):
        if old.get(key) != new.get(key):
            found.append(f"{key}: was {old.get(key)}, is {new.get(key)}")
    if old.get("dockerfile") != new.get("dockerfile"):
        found.append("Dockerfile: its text changed (template, pin or image.yaml)")
    return tuple(found)


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _changed(what: str, old: Mapping[str, object], new: Mapping[str, object]) -> list[str]:
    found = []
    for key in sorted(old.keys() | new.keys()):
        if key not in old:
            found.append(f"{what} `{key}`: new")
        elif key not in new:
            found.append(f"{what} `{key}`: gone")
        elif old[key] != new[key]:
            found.append(f"{what} `{key}`: was {_short(old[key])}, is {_short(new[key])}")
    return found


def _short(value: object) -> str:
    text = re.sub(r"\b([0-9a-f]{12})[0-9a-f]{28,52}\b", r"\1", str(value))  # of a digest or a commit its beginning
    return text if len(text) <= 60 else f"{text[:57]}..."
