"""This machine and what was done on it: report, doctor, clean, bench."""

from __future__ import annotations

import argparse
import os

from spark_images.errors import UsageError
from spark_images.verbs.base import Verbs, cache_of_user, engine, new_file, project_of


def add(verbs: Verbs) -> None:
    """Add the verbs of this module."""
    report = verbs.add(
        "report",
        _report,
        "What was built when, how long it took, how large it is; what a build held.",
        "./noxw -s report -- memory llamacpp --svg memory.svg",
    )
    report.add_argument(
        "topic",
        nargs="?",
        choices=("memory", "layers", "changes"),
        help="memory: of one build, over time; layers: sizes in one image; changes: from one image to another",
    )
    report.add_argument(
        "of",
        nargs="*",
        metavar="RECORD|IMAGE",
        help="which (default: the newest); changes takes the old one and the new one, or the new one alone",
    )
    report.add_argument("--svg", type=new_file, metavar="FILE", help="with a topic: draw it there")
    report.add_argument("--json", action="store_true", help="print everything as JSON in place of tables")

    doctor = verbs.add(
        "doctor",
        _doctor,
        "Check this machine: what is missing, what it is for, and how to get it.",
        "./noxw -s doctor -- --install",
    )
    doctor.add_argument("--install", action="store_true", help="as root on Debian or Ubuntu: install what is missing")

    clean = verbs.add(
        "clean",
        _clean,
        "Remove containers, builders and folders that killed runs left behind.",
        "./noxw -s clean -- --engine podman",
    )
    engine(clean)

    bench = verbs.add(
        "bench",
        _bench,
        "Measure the pipeline's own speed against what docs/measured.md promises.",
        "./noxw -s bench -- render canonical",
    )
    bench.add_argument("benches", nargs="*", metavar="BENCH", help="a row of docs/measured.md's table (default: all)")
    engine(bench)


def _report(options: argparse.Namespace) -> int:
    from spark_images.record import read_records

    records, topic, of = read_records(cache_of_user().records), options.topic, options.of
    if len(of) > (most := {"changes": 2, None: 0}.get(topic, 1)):
        about = {0: "no single one", 1: "one record or image", 2: "two records or images"}[most]
        raise UsageError(f"`report {topic or ''}` is about {about}, and {len(of)} were named")
    if topic is None:
        if options.svg:
            raise UsageError("`--svg` draws a topic", hint="such as `report memory --svg FILE`")
        from spark_images.report import print_report

        print_report(records, as_json=options.json)
    elif topic == "memory":
        from spark_images.report_memory import print_memory_report

        print_memory_report(records, of[0] if of else None, as_json=options.json, svg=options.svg)
    else:
        from spark_images.report_layers import report_changes, report_layers

        (report_layers if topic == "layers" else report_changes)(records, of, as_json=options.json, svg=options.svg)
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from spark_images.doctor import doctor

    doctor(install=options.install, env=os.environ)
    return 0


def _clean(options: argparse.Namespace) -> int:
    from spark_images.prune import clean

    clean(cache=cache_of_user(), engine=options.engine)
    return 0


def _bench(options: argparse.Namespace) -> int:
    from spark_images.bench.run import bench

    bench(project_of(options), cache=cache_of_user(), names=options.benches, engine=options.engine)
    return 0
