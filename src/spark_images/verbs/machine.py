"""This machine and what was done on it: report, doctor, clean, bench."""

from __future__ import annotations

import argparse
import os

from spark_images.verbs.base import Verbs, cache_of_user, engine, project_of


def add(verbs: Verbs) -> None:
    """Add the verbs of this module."""
    report = verbs.add("report", _report, "What was built when, how long it took, how large it is; what a build held.")
    report.add_argument("topic", nargs="?", choices=("memory",), help="memory and compilers of one build, over time")
    report.add_argument("of", nargs="?", metavar="RECORD|IMAGE", help="default: the newest build that ran a step")
    report.add_argument("--json", action="store_true")

    doctor = verbs.add("doctor", _doctor, "Check this machine: what is missing, what it is for, and how to get it.")
    doctor.add_argument("--install", action="store_true", help="as root on Debian or Ubuntu: install what is missing")

    clean = verbs.add("clean", _clean, "Remove containers, builders and folders that killed runs left behind.")
    engine(clean)

    bench = verbs.add("bench", _bench, "Measure the pipeline's own speed against what README.md promises.")
    bench.add_argument("benches", nargs="*", help="default: all")
    engine(bench)


def _report(options: argparse.Namespace) -> int:
    from spark_images.record import read_records

    records = read_records(cache_of_user().records)
    if options.topic == "memory":
        from spark_images.report_memory import print_memory_report

        print_memory_report(records, options.of, as_json=options.json)
        return 0
    from spark_images.report import print_report

    print_report(records, as_json=options.json)
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from spark_images.doctor import doctor

    doctor(install=options.install, env=os.environ)
    return 0


def _clean(options: argparse.Namespace) -> int:
    from spark_images.prune import clean

    clean(project_of(options), cache=cache_of_user(), engine=options.engine)
    return 0


def _bench(options: argparse.Namespace) -> int:
    from spark_images.bench.run import bench

    bench(project_of(options), cache=cache_of_user(), names=options.benches, engine=options.engine)
    return 0
