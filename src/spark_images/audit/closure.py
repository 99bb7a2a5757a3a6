"""Which Python files a command comes to import, and whether they compile: read by `ast`, none of them is run."""

from __future__ import annotations

import ast
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context

from spark_images.audit.facts import Distribution, Sources
from spark_images.audit.kept import KeptSources
from spark_images.errors import HostProgramError
from spark_images.imagechecks import Tree

AT_ONCE = 64  # files handed to a process at a time
FEW = 200  # files for which no further processes are worth their start


def command_sources(
    distributions: Iterable[Distribution], words: Sequence[str] | None, *, tree: Tree, sources: KeptSources
) -> Sources:
    """Follow the imports of console scripts. words: those of the image's command; None for a wheel: follow all.

    Followed are statements outside of functions, as they run when a module is imported; imports of what is nowhere in
    the image are somebody's try/except.
    """
    distributions = tuple(distributions)
    names = None if words is None else {word.rpartition("/")[2] for word in words}
    sites = tuple(dict.fromkeys(one.site for one in distributions))
    missing, modules = [], set[str]()
    for one in distributions:
        for name, target in one.entry_points:
            module = target.partition(":")[0].strip()
            if not any(_files(module, [site], tree) for site in sites):
                missing.append(f"{name} of {one.name} {one.version}: there is no module {module}")
            elif names is None or name in names:
                modules |= {*_with_parents(module)}
    if words is not None and "-m" in words[:-1]:
        modules |= {*_with_parents(words[words.index("-m") + 1])}
    read, refused = _follow(modules, sites, tree, sources)
    return Sources(
        read=read,
        missing=tuple(missing),
        refused=tuple(sorted(refused.items())),
        newest=sys.version_info[:2],
    )


def _follow(modules: set[str], sites: Sequence[str], tree: Tree, sources: KeptSources) -> tuple[int, dict[str, str]]:
    done, refused, read = set[str](), dict[str, str](), set[str]()
    wave = modules
    pool: ProcessPoolExecutor | None = None
    try:
        while wave:
            done |= wave
            found = {
                path: (module, is_package)
                for module in wave
                for path, is_package in _files(module, sites, tree)
                if path not in read and path in sources
            }
            read |= found.keys()
            jobs = [(path, sources.read(path), *about) for path, about in found.items()]
            if pool is None and len(jobs) > FEW:
                pool = ProcessPoolExecutor(mp_context=get_context("spawn"))
            parts = [jobs[at : at + AT_ONCE] for at in range(0, len(jobs), AT_ONCE)]
            wave = set()
            for results in pool.map(read_many, parts) if pool and len(jobs) > FEW else map(read_many, parts):
                for path, imports, why in results:
                    if why:
                        refused[path] = why
                    wave |= {module for name in imports for module in _with_parents(name)} - done
    except BrokenProcessPool as err:
        raise HostProgramError("a process that read Python files was killed", hint="is there enough memory?") from err
    finally:
        if pool:
            pool.shutdown(cancel_futures=True)
    return len(read), refused


def read_many(jobs: Sequence[tuple[str, bytes, str, bool]]) -> list[tuple[str, tuple[str, ...], str]]:
    """For each path, source, module and whether it is a package: what it imports, and why it does not compile."""
    results: list[tuple[str, tuple[str, ...], str]] = []
    for path, source, module, is_package in jobs:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of escapes that are no escapes: the author's business
                parsed = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError) as err:
            line = f"line {err.lineno}: {err.msg}" if isinstance(err, SyntaxError) else str(err)
            results.append((path, (), line))
            continue
        results.append((path, tuple(set(_imports(parsed, module if is_package else module.rpartition(".")[0]))), ""))
    return results


def _imports(parsed: ast.Module, package: str) -> Iterator[str]:
    """The names of modules in the import statements that run when the module is imported."""
    left: list[ast.AST] = [parsed]
    while left:
        node = left.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            left += node.orelse
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, [base, node.module or ""]))
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names if alias.name != "*")
        elif isinstance(node, ast.stmt | ast.ExceptHandler | ast.Module | ast.match_case):
            left += ast.iter_child_nodes(node)


def _with_parents(name: str) -> Iterator[str]:
    parts = [part for part in name.split(".") if part]
    yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def _files(module: str, sites: Sequence[str], tree: Tree) -> list[tuple[str, bool]]:
    """What an import of the module finds first: path and whether it is a package; [] where there is nothing."""
    for site in sites:
        stem = f"{site}/{module.replace('.', '/')}"
        if f"{stem}/__init__.py" in tree:
            return [(f"{stem}/__init__.py", True)]
        if f"{stem}.py" in tree:
            return [(f"{stem}.py", False)]
        if any(path in tree for path in (stem, f"{stem}.abi3.so", f"{stem}.so")):
            return [(stem, True)]  # a namespace, or a module without a source
    return []
