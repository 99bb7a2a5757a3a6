"""Moving pins forward and watching that they stay: update-pins, check-pins."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_images.verbs.base import Verbs, cache_of_user, engine, memory, project_of

if TYPE_CHECKING:
    from spark_images.project import Project
    from spark_images.update import Row
    from spark_images.update_proof import Proof

MOST_DEAD = 4  # routes of a pin that are named


def add(verbs: Verbs) -> None:
    """Add the verbs of this module."""
    update = verbs.add(
        "update-pins",
        _update,
        "Find newer versions of the pins; propose, prove and apply them.",
        "./noxw -s update-pins -- llama-cpp --verify --branch bump",
    )
    update.add_argument("pins", nargs="*", help="pins of pins.yaml (default: all)")
    update.add_argument(
        "--cool-down",
        type=int,
        default=7,
        metavar="DAYS",
        help="pass over releases that are younger (default: %(default)s)",
    )
    update.add_argument(
        "--verify", action="store_true", help="build and test each proposal first, for hours; only what passes is taken"
    )
    update.add_argument("--apply", action="store_true", help="write what is taken into the files here")
    update.add_argument(
        "--branch", metavar="NAME", help="commit each on this new branch; the files here stay as they are"
    )
    update.add_argument(
        "--complete", action="store_true", help="find nothing; bring digests and locks after versions that were edited"
    )
    memory(update)
    engine(update)
    update.add_argument("--json", type=Path, metavar="FILE", help="write the rows as JSON; `-` for stdout")

    check = verbs.add(
        "check-pins",
        _check,
        "Ask every route of every pin whether it still serves the pinned content.",
        "./noxw -s check-pins -- --strict",
    )
    check.add_argument("pins", nargs="*", help="pins of pins.yaml (default: all)")
    check.add_argument("--strict", action="store_true", help="fail also where one of several routes is left")
    check.add_argument("--json", type=Path, metavar="FILE", help="write what was seen as JSON; `-` for stdout")


def _update(options: argparse.Namespace) -> int:
    from datetime import UTC, datetime

    from spark_images.errors import UsageError
    from spark_images.pin_rules import refusals_of_all
    from spark_images.update import Rules, State, completions, find_updates
    from spark_images.upstream import Upstream

    project, cache = project_of(options), cache_of_user()
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
    from spark_images.own_verbs import ImageWords
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
            command=("./noxw", "-s", f"bisect-{image}", "--", "--check", check),
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
    from spark_images.terminal import print_table

    print_table(
        ("pin", "contents", "lost", "one route left", "of these never more"),
        [(one.pin, *map(str, (one.contents, len(one.lost), len(one.last), one.single))) for one in pins],
        right=("contents", "lost", "one route left", "of these never more"),
    )
    for one in pins:
        for seen in one.dead[:MOST_DEAD]:
            print(f"{seen.label}: {seen.route}: {seen.health.value}: {seen.why}")
        if len(one.dead) > MOST_DEAD:
            print(f"and {len(one.dead) - MOST_DEAD} more of `{one.pin}`: `--json FILE` has all")
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
    from spark_images.terminal import print_table

    print_table(
        ("pin", "now", "newer", "state", "why"),
        [
            (f"{row.pin} ({row.package})" if row.package else row.pin, row.now, row.newer, row.state.value, row.why)
            for row in rows
        ],
        whole=("pin", "state"),
    )


def _document(row: Row) -> dict[str, Any]:
    from dataclasses import asdict, replace

    return {**asdict(replace(row, move=None)), "state": row.state.value, "title": row.title if row.newer else ""}


def _write_json(path: Path, document: Any) -> None:
    import json

    from spark_images.files import write_text

    text = json.dumps(document, indent=1, ensure_ascii=False, default=str) + "\n"
    if str(path) == "-":
        print(text, end="")
    else:
        write_text(path.absolute(), text)
