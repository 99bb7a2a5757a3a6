"""Finding what broke: bisect."""

from __future__ import annotations

import argparse
from pathlib import Path

from spark_images.verbs.base import Verbs, cache_of_user, engine, project_of, variant


def add(verbs: Verbs) -> None:
    """Add the verbs of this module."""
    bisect = verbs.add(
        "bisect", _bisect, "Find which version of a pin, or which pins together, turn a check from good to bad."
    )
    variant(bisect)
    engine(bisect)
    bisect.add_argument(
        "--good", metavar="REF", help="PIN=VERSION, a git revision, an image's reference, a record, `.`"
    )
    bisect.add_argument("--bad", metavar="REF", help="as --good")
    bisect.add_argument(
        "--check",
        metavar="CHECK",
        required=True,
        help="build, audit, test, smoke, test:NAME, or a command (0 good, 125 cannot tell, to 124 bad, from 126 abort)",
    )
    bisect.add_argument(
        "--stage",
        choices=("source", "wheel", "image"),
        default="image",
        help="source: run the command in the fetched source tree, build nothing; wheel: in the unpacked wheel",
    )
    bisect.add_argument("--find-fix", action="store_true", help="--good is newer: find the version that repaired it")
    bisect.add_argument("--repeat", type=int, default=1, metavar="N", help="run a flaky check N times per candidate")
    bisect.add_argument("--exhaustive", action="store_true", help="try every member of a run that cannot be built")
    bisect.add_argument("--commits", action="store_true", help="of a git pin: every commit on the way, not its tags")
    bisect.add_argument("--tags", metavar="PATTERN", help="over tags that a registry holds, e.g. `*-gb10`; no build")
    bisect.add_argument("--registry", metavar="HOST/NAME", help="pull what is there in place of building it")
    bisect.add_argument("--memory", metavar="SIZE", help="cap of the builds, e.g. 48GiB")
    bisect.add_argument("--budget", metavar="TIME", help="begin no further try after this time: 8h, 90m, 30s")
    bisect.add_argument("--max-builds", type=int, metavar="N", help="try no more than N candidates in this run")
    bisect.add_argument(
        "--jobs", type=int, default=4, metavar="N", help="candidates per --matrix (default: %(default)s)"
    )
    bisect.add_argument("--matrix", type=Path, metavar="FILE", help="try nothing here; write what other runners try")
    bisect.add_argument("--verdicts", type=Path, metavar="FOLDER", help="read what other runners found")
    bisect.add_argument(
        "--try", dest="one", metavar="REF", help="try this and nothing else: 0 good, 1 bad, 125 neither"
    )
    bisect.add_argument("--verdict", type=Path, metavar="FILE", help="with --try: write the verdict and end with 0")
    bisect.add_argument(
        "--fresh", action="store_true", help="forget what earlier runs learned (default: go on from it)"
    )
    bisect.add_argument("--json", action="store_true")


def _bisect(options: argparse.Namespace) -> int:
    from spark_images.bisect.answer import CANNOT_TELL
    from spark_images.bisect.asking import Limits, told
    from spark_images.bisect.check import parse_check
    from spark_images.bisect.image_stage import ImageWords
    from spark_images.bisect.parts import Wanted
    from spark_images.bisect.run import Search
    from spark_images.errors import UsageError
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
    words = ["nox", "-s", f"bisect-{options.image}", "--"]
    for option in ("target", "base", "from", "engine", "check", "stage", "repeat", "memory", "tags"):
        value = getattr(options, "origin" if option == "from" else option)
        if value is not None and value != {"stage": "image", "repeat": 1}.get(option):
            words += [f"--{option}", str(value)]
    words += [f"--{option}" for option in ("commits", "find-fix") if getattr(options, option.replace("-", "_"))]
    return tuple(words)
