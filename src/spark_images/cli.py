"""The command line: `python -m spark_images VERB …`; nox sessions call nothing else."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from spark_images.cache import Cache
from spark_images.errors import ConfigError, InterruptedByUser, SparkImagesError, UsageError, did_you_mean

if TYPE_CHECKING:
    from spark_images.pins import Content
    from spark_images.project import Project


def main(argv: Sequence[str]) -> int:
    """Run one verb; returns 0 or the exit status of the error, whose text goes to stderr without a traceback."""
    for number in (signal.SIGINT, signal.SIGTERM):  # also where a script that runs us in the background ignores SIGINT
        signal.signal(number, _interrupt)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup means what it says
        signal.signal(signal.SIGHUP, _interrupt)
    try:
        options = _parser().parse_args(argv)
        status: int = options.run(options)
        sys.stdout.flush()  # or the reader's absence shows only after this function
        return status
    except SparkImagesError as err:
        print(err.render(), file=sys.stderr)
        return err.exit_status
    except KeyboardInterrupt:
        stopped = InterruptedByUser("stopped", hint="the same command again goes on from what is finished")
        print(f"\n{stopped.render()}", file=sys.stderr)
        return stopped.exit_status
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains at exit
        return 141
    except OSError as err:  # a folder of another user's, a file where a folder should be, a disk that fails
        if err.filename is None or isinstance(err, FileNotFoundError):
            raise
        failed = SparkImagesError(
            f"`{err.filename}`: {(err.strerror or '').lower()}",
            hint="`SPARK_IMAGES_CACHE` names another folder for the cache" if _in_cache(err.filename) else "",
        )
        print(failed.render(), file=sys.stderr)
        return failed.exit_status


def _in_cache(path: object) -> bool:
    return isinstance(path, str | Path) and Path(path).is_relative_to(Cache.from_env(os.environ).root)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """All that ends on Ctrl-C ends on SIGTERM and SIGHUP as well."""
    raise KeyboardInterrupt(signal.Signals(number).name)


class _Parser(argparse.ArgumentParser):
    """argparse, with errors in our form and the nearest known word."""

    def error(self, message: str) -> NoReturn:
        hint = f"see `{self.prog} --help`"
        typed = {part for word in sys.argv for part in (word, *word.split("=", 1))}
        for word in (word.strip("'").partition("=")[0] for word in message.replace(",", " ").split()):
            known = self._known(options=word.startswith("-"))
            if word in typed and word not in known:
                hint = did_you_mean(word, known) or hint
                break
        raise UsageError(message, hint=hint)

    def _known(self, *, options: bool) -> list[str]:
        """The options, or the other words, that this parser and those of its verbs take."""
        known = [*self._option_string_actions] if options else []
        for action in self._actions:
            choices = action.choices or ()
            known += [] if options else [str(choice) for choice in choices]
            if isinstance(choices, dict):
                verbs = [parser for verb, parser in choices.items() if verb in sys.argv]
                known += [word for parser in verbs for word in parser._known(options=options)]
        return known


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="spark_images", description="Reproducible container images for NVIDIA GB10.", allow_abbrev=False
    )
    parser.add_argument("--project", type=Path, default=Path.cwd(), help="folder with pins.yaml (default: here)")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    def verb(name: str, run: object, help_text: str) -> argparse.ArgumentParser:
        added = verbs.add_parser(name, help=help_text, description=help_text, allow_abbrev=False)
        added.set_defaults(run=run)
        return added

    def variant(added: argparse.ArgumentParser) -> None:
        added.add_argument("image", help="a folder below images/")
        added.add_argument("--target", help="a machine of images/targets.yaml (default: the image's first)")
        added.add_argument("--base", help="what the image stands on (default: the image's first for the target)")

    def engine(added: argparse.ArgumentParser) -> None:
        added.add_argument(
            "--engine", choices=("podman", "docker"), help="default: docker where it answers, else podman"
        )

    build = verb("build", _build, "Build an image, or say that it is built already and why that is known.")
    variant(build)
    engine(build)
    build.add_argument(
        "--memory", metavar="SIZE", help="cap of the build, e.g. 48GiB (default: what the host can spare)"
    )
    build.add_argument("--no-memory-limit", action="store_true", help="build without a cap: the host may go down")
    build.add_argument("--cold", action="store_true", help="use no engine cache and no compile cache; compare digests")
    build.add_argument(
        "--rebuild", action="store_true", help="run every step although the image is there; compare digests"
    )
    build.add_argument("--explain", action="store_true", help="say what differs from the last build; build nothing")

    plan = verb("plan", _plan, "Print the plan of an image as JSON.")
    variant(plan)

    reproduce = verb("reproduce", _reproduce, "Build an image twice without caches and compare the digests.")
    variant(reproduce)
    reproduce.add_argument("--engine", action="append", choices=("podman", "docker"), help="once per engine named")
    reproduce.add_argument("--memory", metavar="SIZE")

    test = verb("test", _test, "Test a built image: its files, and the running container.")
    variant(test)
    engine(test)
    test.add_argument("pytest", nargs="*", help="further arguments for pytest, after `--`")

    push = verb("push", _push, "Push a built image to a registry under its plan_id and read it back.")
    variant(push)
    push.add_argument("--registry", required=True, metavar="HOST/NAME")

    pull = verb("pull", _pull, "Pull an image by digest, verify every blob, and load it into the engine.")
    pull.add_argument("reference", metavar="HOST/NAME/IMAGE@sha256:…")
    engine(pull)

    fetch = verb(
        "fetch", _fetch, "Put every pinned input of the images into the store; afterwards builds need no network."
    )
    fetch.add_argument("images", nargs="*", help="default: all")

    prune = verb("prune", _prune, "Empty the store of what no pin names; root file systems are made again when needed.")
    prune.add_argument("--dry-run", action="store_true")

    render = verb("render", _render, "Write the Dockerfiles that the templates and pins give.")
    render.add_argument(
        "--check", action="store_true", help="write nothing; fail with a diff where they are out of date"
    )

    lock = verb("lock", _lock, "Resolve the lock files of the pins anew.")
    lock.add_argument("pins", nargs="*", help="default: every pin with a lock")

    recipe = verb("recipe", _recipe, "List an image's recipes; describe one; print what to run of it.")
    recipe.add_argument("image", help="a folder below images/ with recipes.yaml")
    recipe.add_argument("name", nargs="?", metavar="RECIPE", help="default: list them all")
    forms = ("docker", "compose", "kubernetes", "systemd")
    recipe.add_argument("--as", dest="form", choices=forms, help="print what to run, in this form")
    recipe.add_argument("--image", dest="reference", metavar="HOST/NAME@sha256:…", help="default: the last one pushed")
    recipe.add_argument("--release", help="of what the image serves with (default: the pin's)")
    recipe.add_argument("--engine", choices=("podman", "docker"), default="docker", help="for docker and systemd")
    recipe.add_argument("--listen", default="127.0.0.1", metavar="ADDRESS", help="of the host (default: %(default)s)")
    recipe.add_argument(
        "--models", default="huggingface", metavar="VOLUME|FOLDER", help="what holds the models (default: %(default)s)"
    )
    recipe.add_argument("--json", action="store_true")

    learn = verb("learn", _learn, "Read what releases of vLLM know by name into images/vllm-knowledge.json.")
    learn.add_argument("releases", nargs="*", help="default: those of images/compat.yaml that were not read yet")
    learn.add_argument("--sdists", type=Path, metavar="FOLDER", help="with vllm-<release>.tar.gz (default: the index)")

    report = verb("report", _report, "What was built when, how long it took, how large it is; what a build held.")
    report.add_argument("topic", nargs="?", choices=("memory",), help="memory and compilers of one build, over time")
    report.add_argument("of", nargs="?", metavar="RECORD|IMAGE", help="default: the newest build that ran a step")
    report.add_argument("--json", action="store_true")

    doctor = verb("doctor", _doctor, "Check this machine: what is missing, what it is for, and how to get it.")
    doctor.add_argument("--install", action="store_true", help="as root on Debian or Ubuntu: install what is missing")

    clean = verb("clean", _clean, "Remove containers, builders and folders that killed runs left behind.")
    engine(clean)

    bench = verb("bench", _bench, "Measure the pipeline's own speed against what README.md promises.")
    bench.add_argument("benches", nargs="*", help="default: all")
    engine(bench)
    return parser


# Each verb imports what it needs, so that `--help` and an unchanged build stay quick.


def _build(options: argparse.Namespace) -> int:
    from spark_images.build import BuildOptions, build, explain
    from spark_images.doctor import Need, require
    from spark_images.jobs import parse_size

    project, cache = _project(options), Cache.from_env(os.environ)
    image = project.image(options.image)
    target, base = project.variant(image, options.target, options.base)
    memory_bytes = None if options.memory is None else parse_size(options.memory)
    if options.explain:
        explain(project, image, target, base, cache=cache)
        return 0
    require(Need.ENGINE, env=os.environ)
    build(
        project,
        image,
        target,
        base,
        cache=cache,
        options=BuildOptions(
            engine=options.engine,
            memory_bytes=memory_bytes,
            limit_memory=not options.no_memory_limit,
            rebuild=options.rebuild,
            cold=options.cold,
        ),
    )
    return 0


def _plan(options: argparse.Namespace) -> int:
    import json

    project = _project(options)
    image = project.image(options.image)
    plan = project.plan(image, *project.variant(image, options.target, options.base))
    print(json.dumps({"plan_id": plan.plan_id, **plan.document()}, indent=2, ensure_ascii=False))
    return 0


def _reproduce(options: argparse.Namespace) -> int:
    from spark_images.doctor import Need, require
    from spark_images.jobs import parse_size
    from spark_images.reproduce import reproduce

    project = _project(options)
    image = project.image(options.image)
    target, base = project.variant(image, options.target, options.base)
    memory_bytes = None if options.memory is None else parse_size(options.memory)
    require(Need.ENGINE, env=os.environ)
    reproduce(
        project,
        image,
        target,
        base,
        cache=Cache.from_env(os.environ),
        engines=tuple(options.engine or ()),
        memory_bytes=memory_bytes,
    )
    return 0


def _test(options: argparse.Namespace) -> int:
    from spark_images.doctor import Need, require
    from spark_images.verify import test

    project = _project(options)
    image = project.image(options.image)
    target, base = project.variant(image, options.target, options.base)
    require(Need.ENGINE, Need.EMULATION, env=os.environ, platform=target.platform)
    test(project, image, target, base, cache=Cache.from_env(os.environ), engine=options.engine, pytest=options.pytest)
    return 0


def _push(options: argparse.Namespace) -> int:
    from spark_images.doctor import Need, require
    from spark_images.registry import push

    project = _project(options)
    image = project.image(options.image)
    target, base = project.variant(image, options.target, options.base)
    require(Need.TRANSFER, env=os.environ)
    print(push(project, image, target, base, cache=Cache.from_env(os.environ), registry=options.registry))
    return 0


def _pull(options: argparse.Namespace) -> int:
    from spark_images.doctor import Need, require
    from spark_images.registry import pull

    project, cache = _project(options), Cache.from_env(os.environ)
    require(Need.ENGINE, Need.TRANSFER, env=os.environ)
    print(pull(project, options.reference, cache=cache, engine=options.engine))
    return 0


def _fetch(options: argparse.Namespace) -> int:
    from spark_images.fetch import fetch
    from spark_images.store import Store
    from spark_images.terminal import tell
    from spark_images.units import format_duration, format_size
    from spark_images.verify import inspect_content

    project = _project(options)
    images = [project.image(name) for name in options.images] or project.images
    contents: dict[str, Content] = {}
    if inspect := inspect_content(project):
        contents[inspect.digest] = inspect
    for image in images:
        for name, bases in image.supports:
            for base in bases:
                plan = project.plan(image, *project.variant(image, name, base))
                contents.update({content.digest: content for content in plan.contents})
    done = fetch(tuple(contents.values()), store=Store(Cache.from_env(os.environ).store))
    brought = f"{format_size(done.bytes)} in {format_duration(done.seconds)}"
    tell(f"fetched {done.files} files, {brought}; {done.already} were there already")
    return 0


def _prune(options: argparse.Namespace) -> int:
    from spark_images.prune import prune

    prune(_project(options), cache=Cache.from_env(os.environ), dry_run=options.dry_run)
    return 0


def _render(options: argparse.Namespace) -> int:
    import difflib

    from spark_images.errors import DriftError
    from spark_images.files import write_text
    from spark_images.terminal import tell

    project = _project(options)
    drifted = []
    for path, text in project.dockerfiles():
        name = str(path.relative_to(project.root))
        found = path.read_text() if path.exists() else ""
        if found == text:
            continue
        drifted.append(name)
        if options.check:
            sys.stdout.writelines(
                difflib.unified_diff(
                    found.splitlines(True), text.splitlines(True), f"{name} (committed)", f"{name} (rendered)"
                )
            )
        else:
            write_text(path, text)
            tell(f"wrote {name}")
    if options.check and drifted:
        raise DriftError(f"out of date: {', '.join(drifted)}", hint="write them with `nox -s render`")
    return 0


def _lock(options: argparse.Namespace) -> int:
    from spark_images.lock import lock

    lock(_project(options), names=options.pins, cache=Cache.from_env(os.environ))
    return 0


def _recipe(options: argparse.Namespace) -> int:
    from spark_images.recipe import recipe

    recipe(
        _project(options),
        options.image,
        options.name,
        cache=Cache.from_env(os.environ),
        form=options.form,
        release=options.release,
        reference=options.reference,
        engine=options.engine,
        listen=options.listen,
        models=options.models,
        as_json=options.json,
    )
    return 0


def _learn(options: argparse.Namespace) -> int:
    from spark_images.vllm_learn import learn

    learn(_project(options), options.releases, sdists=options.sdists, cache=Cache.from_env(os.environ))
    return 0


def _report(options: argparse.Namespace) -> int:
    from spark_images.record import read_records

    records = read_records(Cache.from_env(os.environ).records)
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

    clean(_project(options), cache=Cache.from_env(os.environ), engine=options.engine)
    return 0


def _bench(options: argparse.Namespace) -> int:
    from spark_images.bench.run import bench

    bench(_project(options), cache=Cache.from_env(os.environ), names=options.benches, engine=options.engine)
    return 0


def _project(options: argparse.Namespace) -> Project:
    from spark_images.project import Project

    root = options.project.absolute()
    if not (root / "pins.yaml").is_file():
        raise ConfigError(
            f"no pins.yaml in {root}", hint="run this in a clone of spark-images, or name one with `--project`"
        )
    return Project(root)
