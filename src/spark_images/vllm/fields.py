"""What becomes of the fields of vLLM's configuration classes: flags of its command line, keys of JSON objects. Pure.

The rules are those of `_compute_kwargs` in vllm/engine/arg_utils.py, the same in 0.16 to 0.33.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from spark_images.vllm.python import Found, Tree

_DEEPEST = 3  # keys below keys: --compilation-config.pass_config.fuse_norm_quant


class Takes(Enum):
    """What follows a flag."""

    NOTHING = "nothing"
    TOGGLE = "toggle"  # nothing, and there is a --no- form
    VALUE = "value"
    MAYBE = "maybe"  # a value or nothing


@dataclass
class Argument:
    """argparse's keyword arguments of one flag, as far as they matter here; the code that makes it may change them."""

    takes: Takes
    words: tuple[str, ...] = ()  # the values that its type names; none: it names none
    open: str = ""  # why a value may be none of these words; "" where they are all
    record: Found | None = None  # the configuration class whose fields are the keys of its JSON object
    flags: tuple[str, ...] = ()  # further names


def read_argument(tree: Tree, owner: Found, name: str, kind: Found) -> Argument:
    """The argument of one field. owner: its class; kind: its type."""
    hints = tree.hints(kind)
    if hints.record is not None:
        return Argument(Takes.VALUE, record=hints.record)
    if hints.truth:
        return Argument(Takes.MAYBE if hints.text else Takes.TOGGLE)
    if hints.words:
        words = (*hints.words, *(_also_taken(owner, name) if hints.members else ()))
        return Argument(Takes.VALUE, words=words, open="it takes any text besides" if hints.text else "")
    return Argument(Takes.VALUE, open=f"`{hints.lost}` could not be followed" if hints.lost else "")


def _also_taken(owner: Found, name: str) -> Iterator[str]:
    """Texts that a field's validator compares with before it looks for a member: `if value.lower() == "auto"`."""
    assert isinstance(owner.node, ast.ClassDef)
    for method in owner.node.body:
        if not isinstance(method, ast.FunctionDef):
            continue
        of = [
            one for one in method.decorator_list if isinstance(one, ast.Call) and "field_validator" in ast.unparse(one)
        ]
        if any(isinstance(arg, ast.Constant) and arg.value == name for one in of for arg in one.args):
            for node in ast.walk(method):
                if isinstance(node, ast.Compare) and isinstance(node.comparators[0], ast.Constant):
                    yield str(node.comparators[0].value)


def read_keys(tree: Tree, record: Found, within: tuple[Found, ...] = ()) -> Iterator[tuple[str, Argument]]:
    """The keys of a JSON object, dotted where they are below others; their values are JSON or plain text."""
    if len(within) == _DEEPEST or any(one.node is record.node for one in within):
        return
    for name, kind in tree.fields(record):
        argument = read_argument(tree, record, name, kind)
        yield name, argument
        if argument.record is not None:
            for key, below in read_keys(tree, argument.record, (*within, record)):
                yield f"{name}.{key}", below
