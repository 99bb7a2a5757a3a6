from __future__ import annotations

import ast

import pytest

from spark_images.errors import UpstreamError
from spark_images.vllm.python import Found, Hints, Tree


def hints(text: str, **files: str) -> Hints:
    """What the type of the field `field` of the class `One` in a file admits."""
    tree = Tree({"vllm/one.py": text, **{f"vllm/{name}.py": other for name, other in files.items()}})
    fields = dict(tree.fields(tree.top("vllm/one.py", "One")))
    return tree.hints(fields["field"])


def words(text: str, name: str = "NAMES") -> tuple[str, ...] | None:
    tree = Tree({"vllm/one.py": text})
    return tree.words(tree.top("vllm/one.py", name))


def test_name_is_followed_through_imports_and_stars() -> None:
    tree = Tree(
        {
            "vllm/one.py": "from vllm.two import name as other",
            "vllm/two/__init__.py": "from .three import *",
            "vllm/two/three.py": "name = 'here'",
        }
    )

    assert tree.top("vllm/one.py", "other").place == "vllm/two/three.py:1"


def test_what_is_imported_for_types_alone_counts() -> None:
    text = (
        "if TYPE_CHECKING:\n    from vllm.two import Kind\nelse:\n    Kind = Any\n@config\nclass One:\n    field: Kind"
    )

    assert hints(text, two="from typing import Literal\nKind = Literal['a', 'b']").words == ("a", "b")


def test_literals_within_unions_and_literals_are_taken_together() -> None:
    found = hints("A = Literal['a']\nclass One:\n    field: Optional[Literal[A, 'b']] | list[Literal['c']] | None")

    assert found == Hints(words=("a", "b", "c"))


def test_members_of_an_enum_are_words_by_name() -> None:
    assert hints("class Kind(Enum):\n    A = 1\n    B = 2\nclass One:\n    field: 'Kind'").words == ("A", "B")


def test_own_type_that_cannot_be_followed_is_said() -> None:
    assert hints("from vllm.gone import Kind\nclass One:\n    field: Kind | None").lost == "Kind"


def test_foreign_type_is_not_missed() -> None:
    assert hints("import torch\nclass One:\n    field: torch.dtype") == Hints(other=True)


def test_class_variables_and_fields_that_are_set_later_are_none() -> None:
    later = "b: ClassVar[int] = 1\n    c: int = field(init=False)"
    tree = Tree({"vllm/one.py": f"class Base:\n    a: int\nclass One(Base):\n    {later}\n    d: int"})

    assert [name for name, _ in tree.fields(tree.top("vllm/one.py", "One"))] == ["a", "d"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("NAMES = ['a', 'b']", ("a", "b")),
        ("A = Literal['a']\nNAMES = get_args(A)", ("a",)),
        ("A = ('a',)\nNAMES = list(A)", ("a",)),
        ("NAMES = [*others(), 'a']", None),
        ("NAMES = sorted(others())", None),
    ],
)
def test_words_are_known_where_all_are_written(text: str, found: tuple[str, ...] | None) -> None:
    assert words(text) == found


def test_names_that_stand_for_each_other_end() -> None:
    tree = Tree({"vllm/one.py": "from vllm.two import a", "vllm/two.py": "from vllm.one import a"})

    assert tree.resolve(tree.module("vllm/one.py"), ast.Name("a")) is None


def test_missing_file_and_what_is_not_python_are_said() -> None:
    tree = Tree({"vllm/one.py": "print 'two'"})

    with pytest.raises(UpstreamError, match=r"no file `vllm/two\.py`"):
        tree.module("vllm/two.py")
    with pytest.raises(UpstreamError, match=r"`vllm/one\.py` is not Python"):
        tree.module("vllm/one.py")


def test_literal_of_an_unknown_name_is_refused_with_its_place() -> None:
    tree = Tree({"vllm/one.py": "\nKind = Literal[gone]"})

    with pytest.raises(UpstreamError, match=r"vllm/one\.py:2: nobody can tell what `gone` stands for"):
        tree.hints(Found(tree.module("vllm/one.py"), ast.Name("Kind")))
