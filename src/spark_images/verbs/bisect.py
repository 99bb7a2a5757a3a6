"""Finding what broke: bisect."""

from __future__ import annotations

import argparse
from pathlib import Path

from spark_images.verbs.base import Verbs, cache_of_user, engine, memory, new_file, project_of, variant


def add(verbs: Verbs) -> None:
    """Add the verbs of this module."""
    bisect = verbs.add(
        "bisect",
        _bisect,
        "Find which version of a pin, or which pins together, turn a check from good to bad.",
        "./noxw -s bisect-vllm -- --good vllm=0.16.0 --bad vllm=0.20.0 --stage source --check 'grep -q X vllm/envs.py'",
    )
    variant(bisect)
    engine(bisect)
    bisect.add_argument(
        "--good",
        metavar="REF",
        help="where it is good: PIN=VERSION, a git revision, an image's reference, a record, or `.`, the files here",
    )
    bisect.add_argument("--bad", metavar="REF", help="where it is bad, named as --good is")
    bisect.add_argument(
        "--check",
        metavar="CHECK",
        required=True,
        help="build, audit, test, smoke, test:NAME, or a command: it ends with 0 where a candidate is good, 1 to 124 "
        "where it is bad, 125 where nobody can tell; from 126 on the search ends",
    )
    bisect.add_argument(
        "--stage",
        choices=("source", "wheel", "image"),
        default="image",
        help="where a command runs. image: beside the built image; source: in the fetched source tree, building "
        "nothing; wheel: in the unpacked wheel (default: %(default)s)",
    )
    bisect.add_argument("--find-fix", action="store_true", help="--good is newer: find the version that repaired it")
    bisect.add_argument(
        "--repeat", type=int, default=1, metavar="N", help="run a flaky check N times per candidate (default: 1)"
    )
    bisect.add_argument("--exhaustive", action="store_true", help="try every member of a run that cannot be built")
    bisect.add_argument("--commits", action="store_true", help="of a git pin: every commit on the way, not its tags")
    bisect.add_argument("--tags", metavar="PATTERN", help="over tags that a registry holds, e.g. `*-gb10`; no build")
    bisect.add_argument("--registry", metavar="HOST/NAME", help="pull what is there in place of building it")
    memory(bisect)
    bisect.add_argument(
        "--budget",
        metavar="TIME",
        help="begin no further try after this time, as 8h, 90m or 30s (default: never end early)",
    )
    bisect.add_argument(
        "--max-builds", type=int, metavar="N", help="try no more than N candidates in this run (default: no limit)"
    )
    bisect.add_argument(
        "--jobs",
        type=int,
        default=4,
        metavar="N",
        help="candidates that --matrix writes at a time (default: %(default)s)",
    )
    bisect.add_argument(
        "--matrix", type=new_file, metavar="FILE", help="try nothing here; write what other runners shall try"
    )
    bisect.add_argument("--verdicts", type=Path, metavar="FOLDER", help="read what other runners found, and go on")
    bisect.add_argument(
        "--try",
        dest="one",
        metavar="REF",
        help="try this and nothing else; ends with 0 for good, 1 for bad, 125 for neither",
    )
    bisect.add_argument(
        "--verdict", type=Path, metavar="FILE", help="with --try: write the verdict there and end with 0"
    )
    bisect.add_argument(
        "--fresh", action="store_true", help="forget what earlier runs learned (default: go on from it)"
    )
    bisect.add_argument("--svg", type=new_file, metavar="FILE", help="draw a searched line of versions there as well")
    bisect.add_argument("--report", type=new_file, metavar="FILE", help="write the report as JSON there as well")
    bisect.add_argument("--json", action="store_true", help="print the report as JSON in place of a table")


def _bisect(options: argparse.Namespace) -> int:
    from spark_images.bisect.answer import CANNOT_TELL
    from spark_images.bisect.asking import Limits, told
    from spark_images.bisect.check import parse_check
    from spark_images.bisect.parts import Wanted
    from spark_images.bisect.run import Search
    from spark_images.errors import UsageError
    from spark_images.own_verbs import ImageWords
    from spark_images.search import Verdict
    from spark_images.units import parse_duration

    if options.repeat < 1 or options.jobs < 1:
        raise UsageError("`--repeat` and `--jobs` are at least 1")
    if not options.one and not (options.good and options.bad):
        raise UsageError("a search has two ends", hint="name them: `--good REF --bad REF`, or one REF in `--try`")
    if options.tags and not (options.good and options.bad):
        raise UsageError("`--tags` is for two ends, `--good HOST/NAME:TAG --bad HOST/NAME:TAG`")
    wanted = Wanted(
        words=ImageWords(
            image=options.image,
            target=options.target,
            base=options.base,
            origin=options.origin,
            engine=options.engine,
            memory=options.memory,
        ),
        check=parse_check(options.check),
        good=options.good or options.one,
        bad=options.bad or options.one,
        stage=options.stage,
        find_fix=options.find_fix,
        repeat=options.repeat,
        exhaustive=options.exhaustive,
        commits=options.commits,
        tags=options.tags or "",
        registry=options.registry or "",
        limits=Limits(budget_s=parse_duration(options.budget) if options.budget else None, builds=options.max_builds),
        jobs=options.jobs,
        matrix=options.matrix,
        svg=options.svg,
        report=options.report,
        verdicts=options.verdicts,
        single=not (options.good and options.bad),
        fresh=options.fresh,
        as_json=options.json,
        command=_command(options),
    )
    search = Search(project_of(options), cache_of_user(), wanted)
    if not options.one:
        search.run()
        return 0
    answer = search.try_one(options.one, verdict_file=options.verdict)
    print(f"{answer.label}: {told(answer)}{f': {answer.reason}' if answer.reason else ''}")
    return 0 if options.verdict else {Verdict.GOOD: 0, Verdict.BAD: 1, Verdict.SKIP: CANNOT_TELL}[answer.verdict]


def _command(options: argparse.Namespace) -> tuple[str, ...]:
    """The words that repeat a try of this search."""
    words = ["./noxw", "-s", f"bisect-{options.image}", "--"]
    for option in ("target", "base", "from", "engine", "check", "stage", "repeat", "memory", "tags"):
        value = getattr(options, "origin" if option == "from" else option)
        if value is not None and value != {"stage": "image", "repeat": 1}.get(option):
            words += [f"--{option}", str(value)]
    words += [f"--{option}" for option in ("commits", "find-fix") if getattr(options, option.replace("-", "_"))]
    return tuple(words)
