"""What the CMake files of a release fetch, read without running them. Pure.

Files are followed from one to the next; where nobody can know a condition, every branch is taken. A command that may
fetch is either understood or an error: a source that is overlooked here would be missing in a build without a network.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise

from spark_images.cmake.text import BLOCKS, DEFINITIONS, Block, Command, Kind, Part, every_command, parse_cmake
from spark_images.cmake.values import Texts, Variables, certain
from spark_images.errors import UpstreamError


@dataclass(frozen=True, kw_only=True)
class Fetch:
    """One git repository that CMake fetches."""

    name: str  # as CMake knows it
    url: str
    ref: str  # tag or commit
    submodules: tuple[str, ...] | None  # which of its submodules come with it; None: all
    shallow: bool
    folder: str  # SOURCE_SUBDIR: where CMake goes on in the tree; "" for its root
    environment: tuple[str, ...] = ()  # variables of the environment that name a local tree instead
    definitions: tuple[str, ...] = ()  # and those that do so by -D
    fetchcontent_options: bool  # whether FETCHCONTENT_SOURCE_DIR_<NAME> and FETCHCONTENT_FULLY_DISCONNECTED count
    place: str  # "CMakeLists.txt:328", where its command begins


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a release fetches, in its own order, and the files that were followed to know it."""

    fetches: tuple[Fetch, ...]
    files: tuple[str, ...]


def find_fetches(files: Mapping[str, str], *, variables: Mapping[str, str]) -> Reading:
    """What CMake fetches when it is started on CMakeLists.txt.

    files: path -> text, every CMake file of the release. variables: what is known of the build, by name.
    Raises UpstreamError, with file and line, for whatever may fetch and is not understood.
    """
    reader = _Reader(files, {"CMAKE_SOURCE_DIR": ".", "CMAKE_CURRENT_SOURCE_DIR": ".", **variables})
    reader.read("CMakeLists.txt")
    return Reading(fetches=tuple(reader.fetches()), files=tuple(reader.files_read))


_FETCHING = re.compile(r"fetchcontent_\w+|externalproject_\w+|include|add_subdirectory|cmake_language")
_PROGRAM = re.compile(r"git|hg|svn|curl|wget|aria2c|pip[0-9.]*|uv|conda|cargo|go|npm|apt|apt-get|.*(GIT|CURL|WGET).*\}")
_MODULES = frozenset(["CheckCXXCompilerFlag", "ExternalProject", "FetchContent", "ProcessorCount"])
# What comes with CMake and fetches nothing. Anything else that a release calls it has to define itself.
_HARMLESS = BLOCKS.union(
    """add_compile_definitions add_compile_options add_custom_command add_custom_target add_dependencies add_executable
    add_library add_link_options break cmake_minimum_required cmake_parse_arguments cmake_path cmake_policy continue
    enable_language execute_process file find_file find_library find_package find_path find_program
    get_cmake_property get_directory_property get_filename_component get_property get_source_file_property
    get_target_property include_directories include_guard install link_directories link_libraries list mark_as_advanced
    math message option processorcount project python_add_library return separate_arguments set set_directory_properties
    set_property set_source_files_properties set_target_properties string target_compile_definitions
    target_compile_features target_compile_options target_include_directories target_link_directories
    target_link_libraries target_link_options target_sources unset""".split()  # noqa: SIM905
)
_FLAGS = frozenset(["EXCLUDE_FROM_ALL", "SYSTEM"])
_OPTIONS = frozenset(["GIT_REPOSITORY", "GIT_TAG", "GIT_SHALLOW", "GIT_PROGRESS", "SOURCE_DIR", "BINARY_DIR",
                      "SUBBUILD_DIR", "SOURCE_SUBDIR"])  # fmt: skip
_EMPTY_OPTIONS = frozenset(["CONFIGURE_COMMAND", "BUILD_COMMAND", "INSTALL_COMMAND", "TEST_COMMAND"])
_WORDS = _OPTIONS | _EMPTY_OPTIONS | _FLAGS | {"GIT_SUBMODULES"}
_LOCAL = re.compile(r"\$(ENV)?\{(\w+)\}")


class _Return(Exception):
    """return(), where nothing around it may be skipped."""


class _Reader:
    def __init__(self, files: Mapping[str, str], variables: Mapping[str, str]) -> None:
        self._files = {path: parse_cmake(text, path=path) for path, text in files.items()}
        commands = (command for parts in self._files.values() for command in every_command(parts))
        self._known = _HARMLESS.union(
            command.arguments[0].text.lower() for command in commands if command.name in DEFINITIONS
        )
        self._variables = Variables((name, frozenset({text})) for name, text in variables.items())
        self._unsure = False  # inside of a branch that may not be taken
        self._bodies: dict[str, tuple[Part, ...]] = {}  # of functions and macros
        self._declared: dict[str, Fetch] = {}
        self._got: dict[str, Command] = {}  # name -> where CMake is told to get what was declared
        self._trees: dict[str, set[str]] = {}  # name -> local trees that it can be
        self.files_read: list[str] = []

    def fetches(self) -> Iterator[Fetch]:
        """What was found, with the variables that make each of it local."""
        for name, command in self._got.items():
            if name not in self._declared:
                raise _error(command, f"`{name}` is fetched, and nothing says from where")
        for name, fetch in self._declared.items():
            if fetch.fetchcontent_options and name not in self._got:
                raise UpstreamError(f"{fetch.place}: `{name}` is declared and never fetched", hint=_HINT)
            local = [match for tree in self._trees.get(name, ()) if (match := _LOCAL.fullmatch(tree))]
            yield replace(
                fetch,
                environment=tuple(sorted(match[2] for match in local if match[1])),
                definitions=tuple(sorted(match[2] for match in local if not match[1])),
            )

    def read(self, path: str) -> None:
        """Follow one file."""
        self.files_read.append(path)
        around = self._variables["CMAKE_CURRENT_LIST_DIR"]
        self._variables.set("CMAKE_CURRENT_LIST_DIR", frozenset({posixpath.dirname(path) or "."}))
        with suppress(_Return):
            self._run(self._files[path])
        self._variables.set("CMAKE_CURRENT_LIST_DIR", around)

    def _run(self, parts: Iterable[Part]) -> None:
        for part in parts:
            if isinstance(part, Command):
                self._command(part)
            elif part.opening.name == "if":
                self._if(part)
            else:
                self._check([part])
                if part.opening.name in DEFINITIONS:
                    self._bodies[part.opening.arguments[0].text.lower()] = part.branches[0].body
                else:
                    self._forget([part])

    def _if(self, block: Block) -> None:
        before, unsure, after = self._variables, self._unsure, []
        for branch in block.branches:
            self._variables = before.copy()
            truth = True if branch.condition is None else self._variables.truth(branch.condition)
            if truth is False:
                continue
            self._unsure = self._unsure or truth is None
            self._run(branch.body)
            after.append(self._variables)
            if truth:
                break
        else:
            after.append(before)
        self._variables, self._unsure = Variables.either(after), unsure

    def _command(self, command: Command) -> None:
        name, words = command.name, command.arguments
        texts = {word.text for word in words}
        if name == "set":
            self._set(command)
        elif name == "include":
            self._include(command)
        elif name in ("fetchcontent_declare", "externalproject_add") or (
            name == "fetchcontent_populate" and len(words) > 1
        ):
            self._declare(command)
        elif name in ("fetchcontent_makeavailable", "fetchcontent_populate"):
            for word in self._variables.words(words):
                self._got[self._certain(word, command, "a name").lower()] = command
        elif name == "return" and not self._unsure:
            raise _Return
        elif name == "get_filename_component" and {"ABSOLUTE", "REALPATH"} & texts and words[0].text.isidentifier():
            self._variables.set(words[0].text, self._variables.expand(words[1]))  # the same path, made absolute
        elif name == "cmake_path" and "ABSOLUTE_PATH" in texts and "OUTPUT_VARIABLE" not in texts:
            pass  # likewise, in place
        elif name != "fetchcontent_getproperties":
            self._check([command])
            self._forget([command, *self._bodies.get(name, ())])

    def _set(self, command: Command) -> None:
        texts = [word.text for word in command.arguments]
        name = certain(self._variables.expand(command.arguments[0])) if texts else None
        if name is None:
            raise _error(command, f"nobody knows which variable `set({' '.join(texts[:1])} …)` sets")
        end = next((at for at, text in enumerate(texts) if text in ("CACHE", "PARENT_SCOPE")), len(texts))
        if end == 1:
            self._variables.forget(name)
            return
        self._variables.set(name, self._variables.joined(command.arguments[1:end]))
        if name.endswith("_SOURCE_DIR"):  # what FetchContent would have set
            self._trees.setdefault(name.removesuffix("_SOURCE_DIR").lower(), set()).update(self._variables[name])

    def _include(self, command: Command) -> None:
        path = self._certain(self._variables.joined(command.arguments[:1]), command, "the file")
        if path in _MODULES:
            return
        path = posixpath.normpath(path)
        if path not in self._files:
            raise _error(command, f"`{path}` is included, which is no file of the release")
        if path in self.files_read:
            raise _error(command, f"`{path}` is included a second time")
        self.read(path)

    def _declare(self, command: Command) -> None:
        name, options = self._options(command)
        direct = command.name != "fetchcontent_declare"
        trees = options.get("SOURCE_DIR", [])
        if "GIT_REPOSITORY" not in options:
            if direct or not trees or not all(map(_LOCAL.fullmatch, trees[0])):
                raise _error(command, f"`{name}` comes neither from git nor from a tree that a variable names")
            self._trees.setdefault(name, set()).update(trees[0])
            return
        values = {
            option: self._certain(texts[0], command, f"{option} of `{name}`")
            for option, texts in options.items()
            if option in ("GIT_REPOSITORY", "GIT_TAG", "GIT_SHALLOW", "SOURCE_SUBDIR")
        }
        if "GIT_TAG" not in values:
            raise _error(command, f"`{name}` has no GIT_TAG, so it is another tree every day")
        submodules = None
        if "GIT_SUBMODULES" in options:  # an empty one: none of them
            submodules = [self._certain(word, command, "a submodule") for word in options["GIT_SUBMODULES"]]
        fetch = Fetch(
            name=name,
            url=values["GIT_REPOSITORY"],
            ref=values["GIT_TAG"],
            submodules=None if submodules is None else tuple(filter(None, submodules)),
            shallow=values.get("GIT_SHALLOW", "").upper() in ("TRUE", "ON", "YES", "1"),
            folder=values.get("SOURCE_SUBDIR", ""),
            fetchcontent_options=not direct,
            place=f"{command.path}:{command.line}",
        )
        if name in self._declared:
            raise _error(command, f"`{name}` is declared a second time, after {self._declared[name].place}")
        self._declared[name] = fetch

    def _options(self, command: Command) -> tuple[str, dict[str, list[Texts]]]:
        """The name and the options of a declaration; an option that is not understood is an error."""
        words = self._variables.words(command.arguments)
        name = self._certain(words[0] if words else frozenset(), command, "the name").lower()
        options: dict[str, list[Texts]] = {}
        open_option = ""
        for word in words[1:]:
            text = certain(word)
            if open_option not in ("", "GIT_SUBMODULES") and not options[open_option]:
                if text in _WORDS:
                    break  # what should be its value is empty
                options[open_option].append(word)
                if open_option in _EMPTY_OPTIONS and text != "":
                    raise _error(command, f"{open_option} of `{name}` is not empty")
            elif text in _WORDS - _FLAGS and text not in options:
                open_option = text
                options[text] = []
            elif open_option == "GIT_SUBMODULES" and text is not None and not re.fullmatch("[A-Z][A-Z0-9_]+", text):
                options[open_option].append(word)
            elif text not in _FLAGS:
                raise _error(command, f"{_shown(word)} of `{name}` is not understood")
        if open_option != "GIT_SUBMODULES" and open_option and not options[open_option]:
            raise _error(command, f"{open_option} of `{name}` has no value")
        return name, options

    def _check(self, parts: Iterable[Part]) -> None:
        """Refuse what fetches, or may do so, among commands that are not followed."""
        for command in every_command(parts):
            name = command.name
            if _FETCHING.fullmatch(name):
                raise _error(command, f"`{name}` stands where it is not followed")
            if name not in self._known:
                raise _error(command, f"`{name}` is no command that is known, nor one that the release defines")
            words = [text for word in command.arguments for text in self._variables.expand(word)]
            if name == "file" and words[:1] == ["DOWNLOAD"]:
                raise _error(command, "`file(DOWNLOAD …)` fetches")
            if name in ("execute_process", "add_custom_command", "add_custom_target"):
                if any(posixpath.basename(word) in ("sh", "bash") for word in words):
                    words = [part for word in words for part in re.split(r"[\s;&|()]+", word)]
                if "-P" in words:
                    raise _error(command, "`cmake -P` runs a script that is not followed")
                if program := next((word for word in words if _PROGRAM.fullmatch(posixpath.basename(word))), ""):
                    raise _error(command, f"`{program}` is called, which fetches")
            if name == "install":
                for kind, code in pairwise(command.arguments):
                    if kind.text == "CODE":
                        text = code.text if code.kind is Kind.BRACKET else re.sub(r"\\([^nrt;])", r"\1", code.text)
                        self._check(parse_cmake(text, path=command.path, line=code.line))
                    elif kind.text == "SCRIPT":
                        raise _error(command, "`install(SCRIPT …)` is not followed")

    def _forget(self, parts: Iterable[Part]) -> None:
        """Whatever these commands name may have another value afterwards."""
        for command in every_command(parts):
            for word in command.arguments:
                for text in (word.text, *self._variables.expand(word)):
                    self._variables.forget(text)

    def _certain(self, texts: Texts, command: Command, what: str) -> str:
        text = certain(texts)
        if text is None:
            raise _error(command, f"{what} is not known: it can be {_shown(texts)}")
        return text


def _shown(texts: Texts) -> str:
    return " or ".join(f"`{text}`" for text in sorted(texts)) or "nothing"


_HINT = "read the file; then teach src/spark_images/cmake/fetches.py what it says"


def _error(command: Command, text: str) -> UpstreamError:
    return UpstreamError(f"{command.path}:{command.line}: {text}", hint=_HINT)
