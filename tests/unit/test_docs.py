"""What README.md, docs/ and our own messages name exists: links, sessions, verbs, options, files."""

from __future__ import annotations

import argparse
import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from spark_images.cli import _parser

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SOURCES = [ROOT / "noxfile.py", *sorted((ROOT / "src").rglob("*.py"))]
IMAGE = r"(?:<image>|IMAGE|\{image\})"  # what stands for an image's name
SAID = re.compile(r"\bnoxw? -s ([\w<>{}-]+)([^`\n]*)")
VERB = re.compile(r"python -m spark_images ([\w-]+)([^`\n]*)")


@cache
def sessions() -> dict[str, str]:
    """Every session with its description, as `nox -l` has them."""
    command = [sys.executable, "-m", "nox", "--noxfile", str(ROOT / "noxfile.py"), "--list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()
    return dict(line[2:].split(" -> ", 1) for line in listed if line.startswith(("- ", "* ")))


@cache
def options_of() -> dict[str, frozenset[str]]:
    """Every verb with its options."""
    (verbs,) = (action for action in _parser()._actions if isinstance(action, argparse._SubParsersAction))
    return {verb: frozenset(parser._option_string_actions) for verb, parser in verbs.choices.items()}


def verb_of(session: str) -> str:
    """`bisect` of `bisect-vllm`; `learn` of `learn-vllm`; "" where another program is run, with options of its own."""
    return next((verb for verb in (session, session.rpartition("-")[0]) if verb in options_of()), "")


def commands_in(text: str) -> Iterator[tuple[str, str]]:
    """What stands in `noxw -s SESSION REST`, lines that go on joined."""
    text = re.sub(r" \\\n\s*", " ", text)
    for found in SAID.finditer(text):
        yield found[1], re.split(r"\s#|;|&&|\|", found[2])[0]


def texts_of(path: Path) -> Iterator[str]:
    """All strings of a module, docstrings too; what is filled in stands as IMAGE."""
    parts: set[int] = set()
    for node in ast.walk(ast.parse(path.read_text())):  # a string with values in it comes before its parts
        if isinstance(node, ast.JoinedStr):
            parts |= {id(part) for part in node.values}
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "IMAGE" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.value


def wrong(text: str) -> Iterator[str]:
    """Every command in it that would not be understood."""
    for session, rest in commands_in(text):
        named = re.sub(rf"-{IMAGE}$", "-vllm", session)
        if re.match(r"IMAGE|NAME|VERB|[<{]", named):
            continue  # all of it stands for something
        if named not in sessions():
            yield f"there is no session `{session}`"
        elif verb := verb_of(named):
            yield from wrong_options(verb, rest.partition(" -- ")[2].partition(" -- ")[0])
    for found in VERB.finditer(re.sub(r" \\\n\s*", " ", text)):
        verb, rest = found[1], re.split(r"\s#|;|&&|\|", found[2])[0]
        if verb in options_of():
            yield from wrong_options(verb, rest)
        elif verb not in ("VERB", "NAME", "IMAGE"):
            yield f"there is no verb `{verb}`"


def wrong_options(verb: str, words: str) -> Iterator[str]:
    for option in re.findall(r"(?<!\S)(--[a-z][a-z-]*)", words):
        if option not in options_of()[verb]:
            yield f"`{verb}` has no option `{option}`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_exists(page: Path) -> None:
    text = page.read_text()
    for image in re.findall(r"New file `images/([\w-]+)/image.yaml`", text):  # the page's own; see test_adding.py
        text = re.sub(rf"(\w)-{image}\b", r"\1-IMAGE", text)

    assert list(wrong(text)) == []


def test_every_command_that_we_tell_users_to_run_exists() -> None:
    found = {(path.name, said) for path in SOURCES for text in texts_of(path) for said in wrong(text)}

    assert found == set()


def test_every_option_that_nox_lists_exists() -> None:
    found = []
    for session, says in sessions().items():
        if verb := verb_of(session):
            examples = re.findall(r"\(-- (.*?)\)", says)
            found += [f"{session}: {said}" for example in examples for said in wrong_options(verb, example)]

    assert found == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("`./noxw -s buidl-vllm`", "there is no session `buidl-vllm`"),
        ("`nox -s plan-<image> -- --taget x`", "`plan` has no option `--taget`"),
        ("run `.venv/bin/python -m spark_images audti x`", "there is no verb `audti`"),
    ],
)
def test_a_wrong_command_would_be_found(text: str, says: str) -> None:
    assert list(wrong(text)) == [says]


def test_every_file_of_ours_that_a_message_names_exists() -> None:
    named = {
        name for path in SOURCES for text in texts_of(path) for name in re.findall(r"\bsrc/spark_images/[\w/]+", text)
    }

    assert {name for name in named if not (ROOT / name).exists() and not (ROOT / f"{name}.py").exists()} == set()
    assert named


def anchors(page: Path) -> set[str]:
    """The ids that forges give the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links_of(page: Path) -> list[tuple[str, Path, str]]:
    """Every link of a page to something here: as it is written, where to, and to which heading there."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    parts = [(link, *link.partition("#")[::2]) for link in links]
    return [(link, (page.parent / name).resolve() if name else page, anchor) for link, name, anchor in parts]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_something_here_leads_there(page: Path) -> None:
    found = links_of(page)

    assert [link for link, there, _ in found if not there.exists()] == []
    assert [link for link, there, anchor in found if anchor and anchor not in anchors(there)] == []


def test_every_page_is_reached_from_the_readme() -> None:
    reached, ahead = set(), [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        reached.add(page)
        ahead += [there for _, there, _ in links_of(page) if there.suffix == ".md" and there not in reached]

    assert reached == set(PAGES)


@pytest.mark.parametrize(
    "command",
    [
        "recipe-vllm",
        "estimate-vllm -- --cores 20 --memory 64GiB",
        "estimate-flashinfer",
        "plan-llamacpp",
        "build-llamacpp -- --explain",
        "report",
        "prune -- --dry-run",
    ],
)
def test_commands_that_neither_build_nor_ask_anybody_do_what_the_pages_say(command: str, tmp_path: Path) -> None:
    """The others are run by the tests of what they do; builds of this repository's own images by .ci/run."""
    session, _, options = command.partition(" -- ")
    named = re.escape(session).replace("llamacpp", f"(llamacpp|{IMAGE})")
    assert any(re.search(rf"`[^`]*{named}|^[^`\n]*-s {named}", page.read_text(), re.MULTILINE) for page in PAGES)
    verb = verb_of(session)
    words = [verb, *([image] if (image := session[len(verb) + 1 :]) else []), *options.split()]

    ran = subprocess.run(
        [sys.executable, "-m", "spark_images", *words],
        cwd=ROOT,
        env=os.environ | {"SPARK_IMAGES_CACHE": str(tmp_path), "COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() or ran.stderr.strip()
