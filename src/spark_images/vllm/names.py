"""What one release of vLLM knows by name, read from its own source: variables, flags, parsers, backends. Pure.

A set of values that the source does not state in full is marked open, with the reason. What is written in a way that
nobody has seen yet is an UpstreamError that names file and line.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, replace

from spark_images.errors import UpstreamError
from spark_images.vllm.fields import Takes
from spark_images.vllm.flags import Flag, read_flags
from spark_images.vllm.python import Found, Tree

_VARIABLES = ("vllm/envs.py", "environment_variables")
# Flags of type str whose values the server looks up in a registry: it ends on another one.
_REGISTRIES = {
    "--reasoning-parser": ("vllm/reasoning/__init__.py", "_REASONING_PARSERS_TO_REGISTER"),
    "--tool-call-parser": ("vllm/tool_parsers/__init__.py", "_TOOL_PARSERS_TO_REGISTER"),
}
# Flags that take any text for the sake of plugins, which no image of ours has; ModelConfig._verify_quantization and
# get_model_loader refuse what is not in these types.
_TYPES = {
    "--quantization": ("vllm/model_executor/layers/quantization/__init__.py", "QuantizationMethods"),
    "--load-format": ("vllm/model_executor/model_loader/__init__.py", "LoadFormats"),
}
_CHOOSERS = ("env_with_choices", "env_list_with_choices", "env_set_with_choices")


@dataclass(frozen=True, kw_only=True)
class Variable:
    """An environment variable of vllm/envs.py. words: the values that it may have; none: any."""

    name: str
    words: tuple[str, ...] = ()
    open: str = ""  # why it may have another value than these words
    instead: str = ""  # what the release says to use in its place, where it is to go: `Use --linear-backend.`


@dataclass(frozen=True, kw_only=True)
class Names:
    """Everything that a release knows by name."""

    variables: Mapping[str, Variable]
    flags: Mapping[str, Flag]

    def flag(self, name: str) -> Flag | None:
        """The flag of a long name, an alias, or the --no- form of a toggle."""
        if name in self.flags:
            return self.flags[name]
        positive = self.flags.get(f"--{name.removeprefix('--no-')}") if name.startswith("--no-") else None
        if positive is not None and positive.takes is Takes.TOGGLE:
            return positive
        return next((flag for flag in self.flags.values() if name in flag.aliases), None)


def read_names(files: Mapping[str, str]) -> Names:
    """What a release knows. files: path within the tree -> text, of `vllm/**/*.py`. Raises UpstreamError."""
    tree = Tree(files)
    flags = {flag.name: flag for flag in read_flags(tree)}
    registered = {name: _keys(tree.top(*registry)) for name, registry in _REGISTRIES.items()}
    registered |= {name: tree.hints(tree.top(*kind)).words for name, kind in _TYPES.items()}
    for name, words in registered.items():
        if name not in flags or not words:
            raise UpstreamError(f"the release has no flag `{name}`, or no values for it")
        flags[name] = replace(flags[name], words=words, open="")
    return Names(variables=_variables(tree), flags=flags)


def _variables(tree: Tree) -> dict[str, Variable]:
    found = tree.top(*_VARIABLES)
    names = _keys(found)
    assert isinstance(found.node, ast.Dict)
    values = zip(names, found.node.values, strict=True)
    return {name: _variable(tree, name, Found(found.module, value)) for name, value in values}


def _variable(tree: Tree, name: str, found: Found) -> Variable:
    """`env_with_choices(name, default, ["a", "b"], …)`, perhaps within `deprecated_env(name, when, instead, …)`."""
    node = found.node
    match node:
        case ast.Call(func=ast.Name(id="deprecated_env"), args=[_, _, ast.Constant(value=str(instead)), getter]):
            return replace(_variable(tree, name, Found(found.module, getter)), instead=instead)
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CHOOSERS):
        return Variable(name=name)
    given = {keyword.arg: keyword.value for keyword in node.keywords}
    choices = node.args[2] if len(node.args) > 2 else given.get("choices")
    words = tree.words(Found(found.module, choices)) if choices is not None else None
    if words is None:
        return Variable(name=name, open="the release computes its values as it starts")
    return Variable(name=name, words=tuple(dict.fromkeys(words)))


def _keys(found: Found) -> tuple[str, ...]:
    """The keys of a dictionary that is written out."""
    keys = found.node.keys if isinstance(found.node, ast.Dict) else []
    names = [key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
    if not names or len(names) != len(keys):
        raise UpstreamError(f"{found.place}: expected a dictionary whose keys are all written out")
    return tuple(names)
