"""Moving pins forward and watching that they stay: update-pins, check-pins."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_images.verbs.base import Verbs, cache_of_user, engine, project_of

if TYPE_CHECKING:
    from spark_images.project import Project
    from spark_images.update import Row
    from spark_images.update_proof import Proof


def add(verbs: Verbs) -> None:
    """Add the verbs of this module."""
    update = verbs.add("update-pins", _update, "Find newer versions of the pins; propose, prove and apply them.")
    update.add_argument("pins", nargs="*", help="default: all")
    update.add_argument("--cool-down", type=int, default=7, metavar="DAYS", help="how old a release has to be (7)")
    update.add_argument("--verify", action="store_true", help="build and test each proposal; only what passes is taken")
    update.add_argument("--apply", action="store_true", help="write what is accepted into the files here")
    update.add_argument("--branch", metavar="NAME", help="commit each on a new branch; the files here stay as they are")
    update.add_argument(
        "--complete", action="store_true", help="find nothing; bring digests and locks after versions that were edited"
    )
    update.add_argument("--memory", metavar="SIZE", help="cap of the builds, e.g. 48GiB")
    engine(update)
    update.add_argument("--json", type=Path, metavar="FILE", help="write the rows as JSON; `-` for stdout")

    check = verbs.add("check-pins", _check, "Ask every route of every pin whether it still serves the pinned content.")
    check.add_argument("pins", nargs="*", help="default: all")
    check.add_argument("--strict", action="store_true", help="fail also where the last of several routes is left")
    check.add_argument("--json", type=Path, metavar="FILE", help="write what was seen as JSON; `-` for stdout")


def _update(options: argparse.Namespace) -> int:
    from datetime import UTC, datetime

    from spark_images.bisect.compat_rules import refusals_of_all
    from spark_images.errors import UsageError
    from spark_images.update import Rules, State, completions, find_updates
    from spark_images.upstream import Upstream

    project, cache = project_of(options), cache_of_user()
    known = [pin.name for pin in project.pins.pins]
    if unknown := [name for name in options.pins if name not in known]:
        raise UsageError(f"there is no pin `{unknown[0]}`", hint=f"the pins: {', '.join(known)}")
    if options.apply and options.branch:
        raise UsageError("`--apply` and `--branch` exclude each other")
    now = datetime.now(UTC)
    upstream = Upstream.from_env(cache)
    rules = Rules(now=now, cool_down_days=options.cool_down, refusals=refusals_of_all)
    if options.complete:
        rows, options.apply = completions(project, upstream, names=options.pins), True
    else:
        rows = find_updates(project, upstream, rules, names=options.pins)
    if options.verify or options.apply or options.branch:
        rows = _forward(project, rows, _proof(options, now.date()), options, upstream)
    _print(rows)
    if options.json:
        _write_json(options.json, [_document(row) for row in rows])
    return 1 if any(row.state is State.FAILED for row in rows) else 0


def _proof(options: argparse.Namespace, today: Any) -> Proof:
    from spark_images.bisect.image_stage import ImageWords
    from spark_images.update_proof import Proof

    words = ImageWords(image="", engine=options.engine, memory=options.memory)

    def culprit(row: Row, image: str, check: str, root: Path) -> str:
        """What a bisect between the present and the proposed version says."""
        from dataclasses import replace

        from spark_images.bisect.check import parse_check
        from spark_images.bisect.parts import Wanted
        from spark_images.bisect.report import line_words
        from spark_images.bisect.run import Search
        from spark_images.errors import SparkImagesError
        from spark_images.project import Project

        ends = [
            f"{row.pin}={row.package}=={one}" if row.package else f"{row.pin}={one}" for one in (row.now, row.newer)
        ]
        wanted = Wanted(
            words=replace(words, image=image), check=parse_check(check), good=ends[0], bad=ends[1],
            command=("nox", "-s", f"bisect-{image}", "--", "--check", check),
        )  # fmt: skip
        try:
            return line_words(Search(Project(root), cache_of_user(), wanted).run())[0]
        except SparkImagesError as err:
            return f"no culprit was found: {err.what}"

    return Proof(verify=options.verify, words=words, today=today, culprit=culprit)


def _forward(project: Project, rows: Any, proof: Proof, options: argparse.Namespace, upstream: Any) -> Any:
    from spark_images.update_proof import branch, move_forward, throw_away

    if options.branch:
        with branch(project.root, options.branch) as (root, commit):
            return move_forward(root, rows, proof, upstream=upstream, accept=commit)
    if options.apply:
        return move_forward(project.root, rows, proof, upstream=upstream, accept=lambda row: None)
    with throw_away(project.root, upstream.cache) as root:
        return move_forward(root, rows, proof, upstream=upstream, accept=lambda row: None)


def _check(options: argparse.Namespace) -> int:
    from dataclasses import asdict

    from spark_images.errors import ContentError, RouteError
    from spark_images.rot import check_routes

    pins = check_routes(project_of(options), cache=cache_of_user(), names=options.pins)
    _table(
        ("pin", "contents", "lost", "one route left", "what does not serve"),
        [
            (
                one.pin, str(one.contents), str(len(one.lost)), f"{len(one.last)} ({one.single} never had more)",
                "\n".join(f"{seen.label}: {seen.route}: {seen.health.value}: {seen.why}" for seen in one.dead[:4])
                + (f"\nand {len(one.dead) - 4} more" if len(one.dead) > 4 else ""),
            )
            for one in pins
        ],
    )  # fmt: skip
    if options.json:
        documents = [asdict(one) for one in pins]
        for document in documents:
            for seen in document["dead"]:
                seen["health"] = seen["health"].value
        _write_json(options.json, documents)
    if changed := [label for one in pins for label in one.changed]:
        raise ContentError("a route serves something else than its pin names", why=changed)
    if lost := [f"{one.pin}: {label}" for one in pins for label in one.lost]:
        raise RouteError(f"{len(lost)} contents have no route that serves them now", why=lost[:20])
    last = [one.pin for one in pins if len(one.last) > one.single]
    if last and options.strict:
        raise RouteError("only one route is left", why=last, hint="add a route to these pins while there is one")
    return 0


def _print(rows: Any) -> None:
    _table(
        ("pin", "now", "newer", "", "why"),
        [
            (f"{row.pin} ({row.package})" if row.package else row.pin, row.now, row.newer, row.state.value, row.why)
            for row in rows
        ],
    )


def _document(row: Row) -> dict[str, Any]:
    from dataclasses import asdict, replace

    return {**asdict(replace(row, move=None)), "state": row.state.value, "title": row.title if row.newer else ""}


def _table(headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    import os
    import sys

    from rich import box
    from rich.console import Console
    from rich.table import Table

    width = None if sys.stdout.isatty() else 180
    console = Console(file=sys.stdout, width=width, no_color="NO_COLOR" in os.environ or None, highlight=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _write_json(path: Path, document: Any) -> None:
    import json

    from spark_images.files import write_text

    text = json.dumps(document, indent=1, ensure_ascii=False, default=str) + "\n"
    if str(path) == "-":
        print(text, end="")
    else:
        write_text(path.absolute(), text)
