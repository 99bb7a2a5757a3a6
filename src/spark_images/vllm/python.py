"""Python files as texts: names followed from module to module, types taken apart; nothing is imported. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from spark_images.errors import UpstreamError


@dataclass(frozen=True, eq=False)
class Module:
    """One file. imports: name -> (module, name in it; "" for the module itself), of everything that it imports."""

    path: str  # within the tree, as `vllm/envs.py`
    names: Mapping[str, ast.expr | ast.stmt]  # of the top level: a value, a class or a function
    imports: Mapping[str, tuple[str, str]]
    stars: tuple[str, ...]  # modules of which it imports everything


@dataclass(frozen=True, eq=False)
class Found:
    """A node, and the module in whose names it is written."""

    module: Module
    node: ast.expr | ast.stmt

    @property
    def place(self) -> str:
        """`vllm/envs.py:123`."""
        return f"{self.module.path}:{self.node.lineno}"


@dataclass(frozen=True, kw_only=True)
class Hints:
    """What a type admits. words: those of Literal types and the members of Enum classes."""

    words: tuple[str, ...] = ()
    members: bool = False  # words are names of an Enum's members: not argparse compares them, but the configuration
    text: bool = False  # `str` is among the types
    truth: bool = False  # `bool` is
    other: bool = False  # and so is something that is none of these
    lost: str = ""  # a name of vLLM's own that could not be followed
    record: Found | None = None  # a configuration class: a JSON object with its fields as keys


class Tree:
    """The Python files of one release, parsed when they are asked for."""

    def __init__(self, files: Mapping[str, str]) -> None:
        """files: path within the tree -> text; `vllm/**/*.py`."""
        self._files = files
        self._modules: dict[str, Module] = {}

    def module(self, path: str) -> Module:
        """The module in a file; UpstreamError if there is no such file or it is not Python."""
        if path not in self._files:
            raise UpstreamError(
                f"there is no file `{path}`", hint="it has moved: say in src/spark_images/vllm/names.py where it is"
            )
        if path not in self._modules:
            try:
                parsed = ast.parse(self._files[path])
            except (SyntaxError, ValueError) as err:
                raise UpstreamError(f"`{path}` is not Python", why=(str(err),)) from None
            self._modules[path] = _module(path, parsed)
        return self._modules[path]

    def top(self, path: str, name: str) -> Found:
        """What a module calls `name`, wherever it is defined; UpstreamError if it has no such name."""
        found = self.resolve(self.module(path), ast.Name(name))
        if found is None:
            raise UpstreamError(
                f"{path}: no `{name}`", hint="it has another name: say it in src/spark_images/vllm/names.py"
            )
        return found

    def resolve(self, module: Module, node: ast.expr | ast.stmt) -> Found | None:
        """Follow names, attributes and imports to what they stand for; None for what is not vLLM's own."""
        seen: set[tuple[str, str]] = set()
        while True:
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                target, inner = module.imports.get(node.value.id, ("", ""))
                path = self._path(f"{target}.{inner}" if inner else target)
                if path is None:
                    return None
                module, node = self.module(path), ast.Name(node.attr)
            elif not isinstance(node, ast.Name):
                return Found(module, node)
            elif (module.path, node.id) in seen:
                return None
            elif node.id in module.names:
                seen.add((module.path, node.id))
                node = module.names[node.id]
            elif node.id in module.imports:
                seen.add((module.path, node.id))
                target, inner = module.imports[node.id]
                path = self._path(target)
                if path is None or not inner:
                    return None
                module, node = self.module(path), ast.Name(inner)
            else:
                paths = [path for star in module.stars if (path := self._path(star)) is not None]
                found = (self.resolve(self.module(path), node) for path in paths)
                return next((one for one in found if one is not None), None)

    def lineage(self, found: Found) -> tuple[tuple[Found, ast.ClassDef], ...]:
        """A class and those of its bases that are vLLM's own, the outermost base first."""
        if not isinstance(found.node, ast.ClassDef):
            return ()
        bases = [base for base in (self.resolve(found.module, base) for base in found.node.bases) if base is not None]
        return (*(one for base in bases for one in self.lineage(base)), (found, found.node))

    def fields(self, found: Found) -> Iterator[tuple[str, Found]]:
        """The fields that a dataclass's constructor takes, with their types; those of its bases first."""
        for of, node in self.lineage(found):
            for statement in node.body:
                if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
                    continue
                outer = statement.annotation
                kind = ast.unparse(outer.value if isinstance(outer, ast.Subscript) else outer).rpartition(".")[2]
                if kind not in ("ClassVar", "InitVar") and not _set_later(statement.value):
                    yield statement.target.id, Found(of.module, statement.annotation)

    def hints(self, found: Found) -> Hints:
        """What a type admits."""
        hints = [self._hint(one) for one in self._members(found)]
        return Hints(
            words=tuple(dict.fromkeys(word for hint in hints for word in hint.words)),
            members=any(hint.members for hint in hints),
            text=any(hint.text for hint in hints),
            truth=any(hint.truth for hint in hints),
            other=any(hint.other for hint in hints),
            lost=next((hint.lost for hint in hints if hint.lost), ""),
            record=next((hint.record for hint in hints if hint.record is not None), None),
        )

    def words(self, found: Found) -> tuple[str, ...] | None:
        """The texts of a list, a tuple, a set, `get_args(…)` or a Literal type; None where they are not all written."""
        node = found.node
        match node:
            case ast.Constant():
                return (str(node.value),)
            case ast.List() | ast.Tuple() | ast.Set():
                parts = [self.words(Found(found.module, part)) for part in node.elts]
                return None if None in parts else tuple(word for part in parts for word in part or ())
            case ast.Call(func=ast.Name(id="get_args" | "list" | "tuple"), args=[inner], keywords=[]):
                return self.words(Found(found.module, inner))
            case ast.Subscript(value=ast.Name(id="Literal")):
                return self.hints(found).words
            case ast.Name() | ast.Attribute():
                target = self.resolve(found.module, node)
                return self.words(target) if target is not None else None
            case _:
                return None

    def _members(self, found: Found) -> Iterator[Found]:
        """The types of a union, and those within Optional, Annotated and the like."""
        node = found.node
        match node:
            case ast.BinOp(op=ast.BitOr(), left=left, right=right):
                yield from self._members(Found(found.module, left))
                yield from self._members(Found(found.module, right))
            case ast.Constant(value=str(text)):
                yield from self._members(Found(found.module, ast.parse(text, mode="eval").body))
            case ast.Subscript(value=value, slice=inner):
                kind = ast.unparse(value).rpartition(".")[2]
                parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
                if kind in ("Optional", "Union", "list", "tuple", "set", "Sequence", "Iterable"):
                    for part in parts:
                        yield from self._members(Found(found.module, part))
                elif kind in ("Annotated", "Final"):
                    yield from self._members(Found(found.module, parts[0]))
                elif kind == "SkipValidation":  # whatever it is given: so no JSON for a class
                    inside = self._members(Found(found.module, parts[0]))
                    yield from (found if isinstance(one.node, ast.ClassDef) else one for one in inside)
                else:
                    yield found
            case ast.Name() | ast.Attribute():
                target = self.resolve(found.module, node)
                if target is None or isinstance(target.node, ast.stmt):
                    yield target or found
                else:
                    yield from self._members(target)
            case _:
                yield found

    def _hint(self, found: Found) -> Hints:
        node = found.node
        match node:
            case ast.Constant(value=None):
                return Hints()
            case ast.Constant() if node.value is Ellipsis:
                return Hints()
            case ast.Name(id="str"):
                return Hints(text=True)
            case ast.Name(id="bool"):
                return Hints(truth=True)
            case ast.Subscript(value=ast.Name(id="Literal"), slice=inner):
                parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
                return Hints(words=tuple(word for part in parts for word in self._literal(found.module, part)))
            case ast.ClassDef() if any(ast.unparse(base).endswith("Enum") for base in node.bases):
                return Hints(words=tuple(_enum(node)), members=True)
            case ast.ClassDef() if any("config" in ast.unparse(one).lower() for one in node.decorator_list):
                return Hints(record=found)
            case ast.Name() | ast.Attribute():
                name = ast.unparse(node)
                ours = found.module.imports.get(name.partition(".")[0], ("", ""))[0].startswith("vllm.")
                return Hints(other=True, lost=name if ours else "")
            case _:
                return Hints(other=True)

    def _literal(self, module: Module, node: ast.expr) -> Sequence[str]:
        """One argument of Literal: a constant, or a name that stands for another Literal."""
        if isinstance(node, ast.Constant):
            return () if node.value is None else (str(node.value),)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return (ast.unparse(node),)
        found = self.resolve(module, node)
        if found is None:
            raise UpstreamError(f"{module.path}:{node.lineno}: nobody can tell what `{ast.unparse(node)}` stands for")
        return self.hints(found).words

    def _path(self, dotted: str) -> str | None:
        base = dotted.replace(".", "/")
        return next((path for path in (f"{base}.py", f"{base}/__init__.py") if path in self._files), None)


_Bindings: TypeAlias = tuple[dict[str, ast.expr | ast.stmt], dict[str, tuple[str, str]], list[str]]


def _module(path: str, parsed: ast.Module) -> Module:
    names: dict[str, ast.expr | ast.stmt] = {}
    imports: dict[str, tuple[str, str]] = {}
    stars: list[str] = []
    package = path.removesuffix(".py").removesuffix("/__init__").split("/")
    _bind(parsed.body, (names, imports, stars), package if path.endswith("__init__.py") else package[:-1])
    return Module(path, names, imports, tuple(stars))


def _bind(body: Sequence[ast.stmt], into: _Bindings, package: Sequence[str]) -> None:
    """The names of a module. The first binding counts: what stands under `if TYPE_CHECKING:` says what a name is."""
    names, imports, stars = into
    for statement in body:
        match statement:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                names.setdefault(name, statement)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                if name not in imports:
                    names.setdefault(name, value)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                names.setdefault(name, value)
            case ast.Import(names=aliases):
                for alias in aliases:
                    imports.setdefault(alias.asname or alias.name.partition(".")[0], (alias.name, ""))
            case ast.ImportFrom(module=module, names=aliases, level=level):
                above = [*package[: len(package) - level + 1]] if level else []
                target = ".".join([*above, *([module] if module else [])])
                for alias in aliases:
                    if alias.name == "*":
                        stars.append(target)
                    else:
                        imports.setdefault(alias.asname or alias.name, (target, alias.name))
            case ast.If(body=then, orelse=otherwise):
                _bind(then, into, package)
                _bind(otherwise, into, package)
            case ast.Try(body=then):
                _bind(then, into, package)


def _enum(node: ast.ClassDef) -> Iterator[str]:
    """The names of an Enum's members, and its values where they are themselves a number or a text (IntEnum, str)."""
    plain = any(ast.unparse(base).rpartition(".")[2] in ("IntEnum", "StrEnum", "str", "int") for base in node.bases)
    for statement in node.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if not name.startswith("_"):
                yield name
                if plain and isinstance(value, ast.Constant):
                    yield str(value.value)


def _set_later(default: ast.expr | None) -> bool:
    """Whether a field is none of the constructor's: `field(init=False)`."""
    return isinstance(default, ast.Call) and any(
        keyword.arg == "init" and isinstance(keyword.value, ast.Constant) and keyword.value.value is False
        for keyword in default.keywords
    )
