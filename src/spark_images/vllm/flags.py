"""The flags of `vllm serve`, from the calls that make its argument parser; none of them is run. Pure.

vLLM makes most flags from the fields of its configuration classes (`get_kwargs` of vllm/engine/arg_utils.py): a field
of type bool becomes a flag with a --no- form, a Literal becomes choices, a configuration class takes a JSON object or
one dotted flag per key. A call that is written in a way that nobody has seen yet is an error, not a guess.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeGuard

from spark_images.errors import UpstreamError
from spark_images.vllm.fields import Argument, Takes, read_argument, read_keys
from spark_images.vllm.python import Found, Tree

SERVE = "vllm/entrypoints/cli/serve.py"
_PARSER = "vllm/utils/argparse_utils.py"
_LEAST = 200  # 0.16.0 has 212


@dataclass(frozen=True, kw_only=True)
class Flag:
    """One flag. words: the values that its release names; none: it names none, so any value will do."""

    name: str  # `--moe-backend`; dashes throughout, but for what follows a dot
    aliases: tuple[str, ...] = ()  # `-q`, `--device-memory-utilization`
    takes: Takes = Takes.VALUE
    words: tuple[str, ...] = ()
    open: str = ""  # why a value may be none of these words; "" where they are all


_Fields: TypeAlias = dict[str, Argument]


def read_flags(tree: Tree) -> tuple[Flag, ...]:
    """Every flag in the order of its making, dotted ones after their own. UpstreamError for what is not understood."""
    maker = tree.top(SERVE, "make_arg_parser")
    reader = _Reader(tree)
    reader.function(maker, owner=None)
    flags = {flag.name: flag for flag in reader.flags}
    if len(flags) < len(reader.flags) or len(flags) < _LEAST:
        raise UpstreamError(
            f"{len(reader.flags)} flags of `vllm serve` were found, {len(flags)} of them different",
            why=(f"from {maker.place} on", f"each release so far has {_LEAST} or more, each made once"),
        )
    if "EnableDisableAction" in tree.module(_PARSER).names:  # from 0.33.0: --disable-x goes with --enable-x
        for flag in reader.flags:
            if flag.takes is Takes.TOGGLE and (inverse := _inverse(flag.name)) and inverse not in flags:
                flags[inverse] = Flag(name=inverse, takes=Takes.NOTHING)
    return tuple(flags.values())


def _inverse(name: str) -> str:
    for prefix, other in (("--enable-", "--disable-"), ("--disable-", "--enable-")):
        if name.startswith(prefix):
            return other + name.removeprefix(prefix)
    return ""


class _Reader:
    def __init__(self, tree: Tree) -> None:
        self.flags: list[Flag] = []
        self._tree = tree

    def function(self, function: Found, *, owner: Found | None, handed: dict[str, _Fields] | None = None) -> None:
        """Walk through a function. owner: the class whose method it is; handed: arguments that hold fields."""
        assert isinstance(function.node, ast.FunctionDef)
        scope: dict[str, _Fields | Argument] = dict(handed or {})
        _Walk(self, self._tree, function, owner, scope).body(function.node.body)

    def add(self, argument: Argument, names: Sequence[str]) -> None:
        long = [name for name in names if name.startswith("--")]
        short = [name for name in names if name.startswith("-") and name not in long]
        if not long:
            return  # a positional argument
        name, *more = (one.replace("_", "-") for one in long)  # FlexibleArgumentParser.parse_args does the same
        aliases = (*more, *short)
        self.flags.append(
            Flag(name=name, aliases=aliases, takes=argument.takes, words=argument.words, open=argument.open)
        )
        if argument.record is not None:
            for key, below in read_keys(self._tree, argument.record):
                words = ("true", "false") if below.takes is Takes.TOGGLE else below.words
                self.flags.append(Flag(name=f"{name}.{key}", words=words, open=below.open))


class _Walk:
    """The statements of one function, in their order."""

    def __init__(
        self,
        reader: _Reader,
        tree: Tree,
        function: Found,
        owner: Found | None,
        scope: dict[str, _Fields | Argument],
    ) -> None:
        self._reader, self._tree, self._module, self._owner = reader, tree, function.module, owner
        self._scope = scope

    def body(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            self._statement(statement)

    def _statement(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Assign(targets=[target], value=value) | ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, value)
            case ast.AugAssign(target=ast.Subscript(slice=ast.Constant(value=str(key))) as target):
                self._change(target, key, None)
            case ast.Expr(value=value) | ast.Return(value=ast.expr() as value):
                self._call(value)
            case ast.If(body=then, orelse=otherwise):
                self.body(then)
                self.body(otherwise)
            case ast.With(body=inside) | ast.Try(body=inside):
                self.body(inside)
            case ast.For(iter=ast.Call(func=ast.Attribute(value=of, attr="items")), body=inside):
                self._for_each(of, inside)
            case _:
                if any(_is_add_argument(node) for node in ast.walk(statement)):
                    raise self._unknown(statement)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        held = self._held(value)
        if isinstance(target, ast.Name):
            self._scope.pop(target.id, None)
            if held is not None:
                self._scope[target.id] = held
            else:
                self._call(value)
        elif isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
            self._change(target, str(target.slice.value), value)

    def _change(self, target: ast.expr, key: str, value: ast.expr | None) -> None:
        """`kwargs["field"]["choices"] = …`, and `+= …`, of which nobody can tell what it adds."""
        held = self._held(target.value) if isinstance(target, ast.Subscript) else None
        if not isinstance(held, Argument):
            return
        if value is None and key == "choices":
            held.open = "the release adds values to it as it starts"
        elif value is not None:
            self._keyword(held, key, value)

    def _for_each(self, of: ast.expr, inside: Sequence[ast.stmt]) -> None:
        """`for key, value in kwargs.items(): add_argument(*flags, f"--{key…}", **value)`."""
        fields = self._held(of)
        adds = [node for one in inside for node in ast.walk(one) if _is_add_argument(node)]
        if not adds:
            return
        named = [arg for add in adds for arg in add.args if isinstance(arg, ast.JoinedStr)]
        if not isinstance(fields, dict) or len(adds) != 1 or len(named) != 1:
            raise self._unknown(adds[0])
        for name, argument in fields.items():
            self._reader.add(argument, (f"--{name}", *argument.flags))

    def _call(self, node: ast.expr) -> None:
        if not isinstance(node, ast.Call):
            return
        if _is_add_argument(node):
            self._add_argument(node)
        elif isinstance(node.func, ast.Attribute) and node.func.attr == "add_cli_args":
            self._method(node)
        elif isinstance(node.func, ast.Attribute) and node.func.attr == "remove" and len(node.args) == 1:
            of = node.func.value
            held = self._held(of.value) if isinstance(of, ast.Subscript) else None
            removed = self._tree.words(Found(self._module, node.args[0]))
            if isinstance(held, Argument):
                if removed is None:
                    raise self._unknown(node)
                held.words = tuple(word for word in held.words if word not in removed)
        elif isinstance(node.func, ast.Name):
            found = self._tree.resolve(self._module, node.func)
            if found is not None and any(_is_add_argument(inner) for inner in ast.walk(found.node)):
                self._reader.function(found, owner=None)

    def _method(self, node: ast.Call) -> None:
        """`parser = FrontendArgs.add_cli_args(parser)`."""
        assert isinstance(node.func, ast.Attribute)
        owner = self._class(node.func.value)
        methods = [] if owner is None else self._methods(owner, node.func.attr)
        if owner is None or not methods:
            raise self._unknown(node)
        self._reader.function(methods[-1], owner=owner)

    def _add_argument(self, node: ast.Call) -> None:
        names = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        if len(names) != len(node.args):
            raise self._unknown(node)
        argument = Argument(Takes.VALUE)
        for keyword in sorted(node.keywords, key=lambda keyword: keyword.arg is not None):
            if keyword.arg is not None:
                self._keyword(argument, keyword.arg, keyword.value)
                continue
            held = self._held(keyword.value)
            if not isinstance(held, Argument):
                raise self._unknown(node)
            argument = replace(held)
        self._reader.add(argument, names)

    def _keyword(self, argument: Argument, key: str, value: ast.expr) -> None:
        if key == "action":
            action = value.value if isinstance(value, ast.Constant) else ast.unparse(value).rpartition(".")[2]
            argument.takes = _ACTIONS.get(str(action), Takes.VALUE)
        elif key == "nargs" and isinstance(value, ast.Constant) and value.value == "?":
            argument.takes = Takes.MAYBE
        elif key == "choices":
            self._choices(argument, value)
        elif key == "flags":
            argument.flags = self._tree.words(Found(self._module, value)) or ()

    def _choices(self, argument: Argument, value: ast.expr) -> None:
        """`["auto", "cpu"] + (… if … else …)`: what is written is known, the rest is not."""
        parts = [value]
        while isinstance(parts[0], ast.BinOp) and isinstance(parts[0].op, ast.Add):
            parts[:1] = [parts[0].left, parts[0].right]
        words = [self._tree.words(Found(self._module, part)) for part in parts]
        argument.words = tuple(word for part in words for word in part or ())
        argument.open = "the release computes values as it starts" if None in words else ""

    def _held(self, node: ast.expr) -> _Fields | Argument | None:
        """What an expression holds of fields: those of a class, or one of them."""
        match node:
            case ast.Name(id=name):
                return self._scope.get(name)
            case ast.Call(func=ast.Name(id="get_kwargs"), args=[of]):
                owner = self._class(of)
                if owner is None:
                    raise self._unknown(node)
                return {name: read_argument(self._tree, owner, name, kind) for name, kind in self._tree.fields(owner)}
            case ast.Call(func=ast.Attribute(attr="_customize_cli_kwargs"), args=[of]) if self._owner is not None:
                fields = self._held(of)
                assert isinstance(fields, dict)
                for method in self._methods(self._owner, "_customize_cli_kwargs"):
                    assert isinstance(method.node, ast.FunctionDef)
                    self._reader.function(method, owner=None, handed={method.node.args.args[-1].arg: fields})
                return fields
            case ast.Subscript(value=of, slice=ast.Constant(value=str(key))):
                held = self._held(of)
                if isinstance(held, dict):
                    if key not in held:
                        raise self._unknown(node)
                    return held[key]
                return None
            case ast.Dict(keys=keys, values=values):  # {**kwargs["field"], "default": None}
                spread = [self._held(value) for name, value in zip(keys, values, strict=True) if name is None]
                return replace(spread[0]) if spread and isinstance(spread[0], Argument) else None
            case _:
                return None

    def _class(self, node: ast.expr) -> Found | None:
        if isinstance(node, ast.Name) and node.id == "cls":
            return self._owner
        found = self._tree.resolve(self._module, node)
        return found if found is not None and isinstance(found.node, ast.ClassDef) else None

    def _methods(self, owner: Found, name: str) -> list[Found]:
        """The methods of this name, the outermost base's first."""
        return [
            Found(of.module, statement)
            for of, node in self._tree.lineage(owner)
            for statement in node.body
            if isinstance(statement, ast.FunctionDef) and statement.name == name
        ]

    def _unknown(self, node: ast.expr | ast.stmt) -> UpstreamError:
        return UpstreamError(
            f"{self._module.path}:{node.lineno}: flags are made in a way that is not known here",
            why=(ast.unparse(node).splitlines()[0][:200],),
            hint="teach it to src/spark_images/vllm/flags.py: a flag that it does not see is refused in every recipe",
        )


_ACTIONS = {
    "store_true": Takes.NOTHING,
    "store_false": Takes.NOTHING,
    "store_const": Takes.NOTHING,
    "count": Takes.NOTHING,
    "BooleanOptionalAction": Takes.TOGGLE,
}


def _is_add_argument(node: ast.AST) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument"
