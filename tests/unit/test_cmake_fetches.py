"""What CMake files fetch, and that whatever may fetch and is not understood is an error."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_images.cmake.fetches import Fetch, find_fetches
from spark_images.errors import UpstreamError

COMMIT = "0123456789" * 4
DECLARED = f"FetchContent_Declare(a GIT_REPOSITORY https://example.org/a.git GIT_TAG {COMMIT})\n"
GOT = "FetchContent_MakeAvailable(a)\n"


def find(text: str, *, files: dict[str, str] | None = None, **variables: str) -> tuple[Fetch, ...]:
    return find_fetches({"CMakeLists.txt": text, **(files or {})}, variables=variables).fetches


def the_error(text: str, *, files: dict[str, str] | None = None, **variables: str) -> str:
    with pytest.raises(UpstreamError) as caught:
        find(text, files=files, **variables)
    assert caught.value.hint
    return str(caught.value)


# --- what is understood -----------------------------------------------------------------------------------------------


def test_a_declared_repository_is_found_with_all_that_it_says() -> None:
    (fetch,) = find(
        """
        FetchContent_Declare(Some-Lib
          GIT_REPOSITORY "https://example.org/lib.git"
          GIT_TAG v1  # a tag
          GIT_SHALLOW TRUE GIT_PROGRESS ON
          GIT_SUBMODULES "third-party/fmt" cutlass
          SOURCE_SUBDIR python/lib
          CONFIGURE_COMMAND "" BUILD_COMMAND "")
        FetchContent_GetProperties(some-lib)
        FetchContent_Populate(some-lib)
        """
    )
    assert fetch == Fetch(
        name="some-lib",
        url="https://example.org/lib.git",
        ref="v1",
        submodules=("third-party/fmt", "cutlass"),
        shallow=True,
        folder="python/lib",
        fetchcontent_options=True,
        place="CMakeLists.txt:2",
    )


def test_without_a_list_all_submodules_come_and_with_an_empty_one_none() -> None:
    (every,) = find(DECLARED + GOT)
    (none,) = find(DECLARED.replace(")", ' GIT_SUBMODULES "")') + GOT)
    assert (every.submodules, none.submodules) == (None, ())


@pytest.mark.parametrize(
    "setting",
    [
        f'set(TAG "{COMMIT}")',
        f'set(PART {COMMIT[:20]})\nset(TAG "${{PART}}{COMMIT[20:]}")',
        f'set(NAME TAG)\nset(${{NAME}} {COMMIT} CACHE STRING "what")',
        f'if(DEVICE STREQUAL rocm)\nset(TAG x)\nelseif(DEVICE STREQUAL "cuda" AND NOT OFF)\nset(TAG {COMMIT})\nendif()',
    ],
)
def test_values_are_followed_through_plain_set(setting: str) -> None:
    text = f"{setting}\nFetchContent_Declare(a GIT_REPOSITORY https://example.org/a.git GIT_TAG ${{TAG}})\n{GOT}"
    (fetch,) = find(text, DEVICE="cuda", rocm="rocm")
    assert fetch.ref == COMMIT


def test_a_tree_is_local_by_the_variable_that_the_other_branch_names() -> None:
    (fetch,) = find(
        f"""
        if(DEFINED ENV{{A_SRC}})
          set(A_SRC $ENV{{A_SRC}})
        endif()
        if(A_SRC)
          get_filename_component(A_SRC "${{A_SRC}}" ABSOLUTE)
          FetchContent_Declare(a SOURCE_DIR ${{A_SRC}})
        else()
          {DECLARED}
        endif()
        {GOT}"""
    )
    assert (fetch.environment, fetch.definitions) == (("A_SRC",), ("A_SRC",))


def test_a_variable_of_the_environment_alone_is_no_option_of_cmake() -> None:
    (fetch,) = find(
        f"if(DEFINED ENV{{A_SRC}})\nFetchContent_Declare(a SOURCE_DIR $ENV{{A_SRC}})\nelse()\n{DECLARED}endif()\n{GOT}"
    )
    assert (fetch.environment, fetch.definitions) == (("A_SRC",), ())


def test_the_direct_form_needs_no_declaration_and_ignores_fetchcontents_options() -> None:
    (fetch,) = find(
        f"""
        if(DEFINED ENV{{A_SRC}})
          set(A_SRC $ENV{{A_SRC}})
        endif()
        if(A_SRC)
          set(_given "${{A_SRC}}")
          cmake_path(ABSOLUTE_PATH _given BASE_DIRECTORY "${{CMAKE_SOURCE_DIR}}" NORMALIZE)
          set(a_SOURCE_DIR "${{_given}}")
        else()
          set(_src "${{FETCHCONTENT_BASE_DIR}}/a-src")
          if(EXISTS "${{_src}}/x.cpp")
            set(a_SOURCE_DIR "${{_src}}")
          else()
            FetchContent_Populate(a SUBBUILD_DIR "${{_src}}-sub" SOURCE_DIR "${{_src}}"
              GIT_REPOSITORY https://example.org/a.git GIT_TAG {COMMIT})
          endif()
        endif()"""
    )
    assert not fetch.fetchcontent_options
    assert (fetch.environment, fetch.definitions) == (("A_SRC",), ("A_SRC",))


def test_an_external_project_is_a_source_too() -> None:
    (fetch,) = find(DECLARED.replace("FetchContent_Declare", "ExternalProject_Add"))
    assert (fetch.name, fetch.fetchcontent_options) == ("a", False)


def test_files_are_followed_and_places_named_in_them() -> None:
    files = {"cmake/a.cmake": f"\n{DECLARED}", "cmake/sub/b.cmake": "include(${CMAKE_CURRENT_LIST_DIR}/../a.cmake)"}
    text = f"include(FetchContent)\ninclude(${{CMAKE_CURRENT_LIST_DIR}}/cmake/sub/b.cmake)\n{GOT}"
    assert [fetch.place for fetch in find(text, files=files)] == ["cmake/a.cmake:2"]


def test_what_is_certainly_not_reached_does_not_count() -> None:
    text = f'if(NOT DEVICE STREQUAL "cuda")\ninclude(gone.cmake)\nendif()\nif(ON)\nreturn()\nendif()\n{DECLARED}'
    assert find(text, DEVICE="cuda") == ()


def test_a_return_that_may_not_be_reached_ends_nothing() -> None:
    assert len(find(f"if(X)\nreturn()\nendif()\n{DECLARED}{GOT}")) == 1


def test_a_return_ends_only_its_own_file() -> None:
    assert (
        len(find(f"include(a.cmake)\n{GOT}", files={"a.cmake": f"{DECLARED}return()\nexecute_process(COMMAND git)"}))
        == 1
    )


# --- what is not ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "FetchContent_Declare(a GIT_REPOSITORY u GIT_TAG ${TAG})",
            "1: GIT_TAG of `a` is not known: it can be `${TAG}`",
        ),
        (
            "if(X)\nset(TAG v1)\nelse()\nset(TAG v2)\nendif()\nFetchContent_Declare(a GIT_REPOSITORY u GIT_TAG ${TAG})",
            "6: GIT_TAG of `a` is not known: it can be `v1` or `v2`",
        ),
        (
            "set(T v1)\nstring(TOLOWER x T)\nFetchContent_Declare(a GIT_REPOSITORY u GIT_TAG ${T})",
            "3: GIT_TAG of `a` is not",
        ),
        (
            "macro(m)\nset(T v2)\nendmacro()\nset(T v1)\nm()\nFetchContent_Declare(a GIT_REPOSITORY u GIT_TAG ${T})",
            "6: GIT_TAG of `a` is not known: it can be `${T}`",
        ),
        (
            "set(T v)\nforeach(x 1)\nset(T ${x})\nendforeach()\nFetchContent_Declare(a GIT_REPOSITORY u GIT_TAG ${T})",
            "5: GIT_TAG of `a` is not known: it can be `${T}`",
        ),
        ("FetchContent_Declare(a GIT_REPOSITORY $ENV{URL} GIT_TAG v1)", "1: GIT_REPOSITORY of `a` is not known"),
        ("FetchContent_Declare(a GIT_REPOSITORY u)", "1: `a` has no GIT_TAG"),
        ("FetchContent_Declare(a GIT_REPOSITORY)", "1: GIT_REPOSITORY of `a` has no value"),
        (
            'set(T "")\nFetchContent_Declare(a GIT_REPOSITORY u GIT_TAG ${T} GIT_PROGRESS TRUE)',
            "2: GIT_TAG of `a` has no value",
        ),
        ("FetchContent_Declare(a URL https://example.org/a.tar.gz)", "1: `URL` of `a` is not understood"),
        ("FetchContent_Declare(a GIT_REPOSITORY u GIT_TAG v PATCH_COMMAND x)", "1: `PATCH_COMMAND` of `a` is not"),
        ("FetchContent_Declare(a GIT_REPOSITORY u GIT_SUBMODULES s GIT_CONFIG c)", "1: `GIT_CONFIG` of `a` is not"),
        ("FetchContent_Declare(a GIT_REPOSITORY u GIT_TAG v ${MORE})", "1: `${MORE}` of `a` is not understood"),
        ('FetchContent_Declare(a GIT_REPOSITORY u BUILD_COMMAND "make")', "1: BUILD_COMMAND of `a` is not empty"),
        (
            "FetchContent_Declare(a SOURCE_DIR /usr/src/a)",
            "1: `a` comes neither from git nor from a tree that a variable",
        ),
        ("FetchContent_Declare(${NAME} GIT_REPOSITORY u)", "1: the name is not known: it can be `${NAME}`"),
        (f"{DECLARED}{DECLARED}{GOT}", "2: `a` is declared a second time, after CMakeLists.txt:1"),
        (DECLARED, "1: `a` is declared and never fetched"),
        (f"\n{GOT}", "2: `a` is fetched, and nothing says from where"),
        (f"foreach(x a b)\n{DECLARED}endforeach()", "2: `fetchcontent_declare` stands where it is not followed"),
        (f"function(f)\nif(X)\n{DECLARED}endif()\nendfunction()", "3: `fetchcontent_declare` stands where it is not"),
        ("FetchContent_SetPopulated(a)", "1: `fetchcontent_setpopulated` stands where it is not followed"),
        ("add_subdirectory(third_party)", "1: `add_subdirectory` stands where it is not followed"),
        ("cmake_language(CALL FetchContent_Declare a)", "1: `cmake_language` stands where it is not followed"),
        ("CPMAddPackage(NAME a)", "1: `cpmaddpackage` is no command that is known, nor one that the release defines"),
        ('file(DOWNLOAD "https://example.org/x" x)', "1: `file(DOWNLOAD …)` fetches"),
        ("execute_process(COMMAND git submodule update --init)", "1: `git` is called, which fetches"),
        ("execute_process(COMMAND ${GIT_EXECUTABLE} clone x)", "1: `${GIT_EXECUTABLE}` is called, which fetches"),
        ('set(G /usr/bin/git)\nexecute_process(COMMAND "${G}" clone x)', "2: `/usr/bin/git` is called, which fetches"),
        ('add_custom_command(OUTPUT o COMMAND sh -c "cd x && curl -O y")', "1: `curl` is called, which fetches"),
        (
            "function(f)\nexecute_process(COMMAND ${PY} -m pip install x)\nendfunction()",
            "2: `pip` is called, which fetches",
        ),
        ("execute_process(COMMAND ${CMAKE_COMMAND} -P get.cmake)", "1: `cmake -P` runs a script that is not followed"),
        ('install(CODE "\nfile(DOWNLOAD \\"u\\" \\"\\${X}\\")")', "2: `file(DOWNLOAD …)` fetches"),
        ("install(CODE [[execute_process(COMMAND wget u)]])", "1: `wget` is called, which fetches"),
        ("install(SCRIPT get.cmake)", "1: `install(SCRIPT …)` is not followed"),
        ("include(cmake/gone.cmake)", "1: `cmake/gone.cmake` is included, which is no file of the release"),
        ("include(CPM)", "1: `CPM` is included, which is no file of the release"),
        ("include(${WHERE}/a.cmake)", "1: the file is not known: it can be `${WHERE}/a.cmake`"),
        ("include(CMakeLists.txt)", "1: `CMakeLists.txt` is included a second time"),
        ("set(${WHICH} x)", "1: nobody knows which variable `set(${WHICH} …)` sets"),
        ("endif()", "1: `endif` is no command that is known, nor one that the release defines"),
    ],
)
def test_what_may_fetch_and_is_not_understood_is_an_error_with_its_line(text: str, message: str) -> None:
    assert the_error(text).startswith(f"CMakeLists.txt:{message}")


def test_the_release_may_define_commands_of_its_own_anywhere() -> None:
    files = {"a.cmake": "function(later x)\nmine()\nendfunction()\nmacro(mine)\nendmacro()\n"}
    assert find("include(a.cmake)\nlater(1)\nMine()", files=files) == ()


@given(st.text(st.sampled_from('ab${}\\;"() ENV[]=#\n'), max_size=40))
def test_no_argument_is_worse_than_an_error(text: str) -> None:
    for begin in ("set(X ", "if(", "include(", "FetchContent_Declare(", "get_filename_component(", "cmake_path("):
        ending = "\nendif()" if begin == "if(" else ""
        with suppress(UpstreamError):
            find(f"{begin}{text}){ending}")
