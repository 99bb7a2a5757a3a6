"""The command line: `python -m spark_images VERB …`; nox sessions call nothing else."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from spark_images.cache import Cache
from spark_images.errors import FileError, InterruptedByUser, SparkImagesError, UsageError, did_you_mean
from spark_images.verbs import audit, bisect, build, ci, machine, pins, registry, serve, smoke, units, update
from spark_images.verbs.base import Verbs


def main(argv: Sequence[str]) -> int:
    """Run one verb; returns 0 or the exit status of the error, whose text goes to stderr without a traceback."""
    for number in (signal.SIGINT, signal.SIGTERM):  # also where a script that runs us in the background ignores SIGINT
        signal.signal(number, _interrupt)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup means what it says
        signal.signal(signal.SIGHUP, _interrupt)
    try:
        options = _read(argv)
        status: int = options.run(options)
        sys.stdout.flush()  # or the reader's absence shows only after this function
        return status
    except SparkImagesError as err:
        print(err.render(), file=sys.stderr)
        _annotate(err)
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
        failed = FileError(
            f"`{err.filename}`: {(err.strerror or '').lower()}",
            hint="`SPARK_IMAGES_CACHE` names another folder for the cache" if _in_cache(err.filename) else "",
        )
        print(failed.render(), file=sys.stderr)
        return failed.exit_status


def _annotate(err: SparkImagesError) -> None:
    """Tell a forge's runner of the error, where one reads us: it shows it at the line that it is about."""
    from spark_images.ci.annotate import annotated, pin_lines, wants_annotations

    if wants_annotations(os.environ):
        pins = Path("pins.yaml")
        lines = pin_lines(pins.read_text(encoding="utf-8", errors="replace")) if pins.is_file() else {}
        print(*annotated(err, str(Path.cwd()), lines), sep="\n", file=sys.stderr)


def _in_cache(path: object) -> bool:
    return isinstance(path, str | Path) and Path(path).is_relative_to(Cache.from_env(os.environ).root)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """All that ends on Ctrl-C ends on SIGTERM and SIGHUP as well."""
    raise KeyboardInterrupt(signal.Signals(number).name)


class _Parser(argparse.ArgumentParser):
    """argparse, with errors in our form and the nearest known word."""

    def error(self, message: str) -> NoReturn:
        hint = f"see `.venv/bin/python -m {self.prog} --help`"
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


def _read(argv: Sequence[str]) -> argparse.Namespace:
    """What the command line says. argparse itself takes no `--` after an option that follows a positional."""
    cut = argv.index("--") if "--" in argv else len(argv)
    options = _parser().parse_args(argv[:cut])
    if argv[cut + 1 :]:
        if "pytest" not in options:
            raise UsageError(
                f"`{options.verb}` takes nothing after `--`",
                hint=f"see `.venv/bin/python -m spark_images {options.verb} --help`",
            )
        options.pytest = argv[cut + 1 :]
    return options


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="spark_images",
        description="Reproducible container images for NVIDIA GB10: what `./noxw -s VERB` and `-s VERB-IMAGE` run.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--project",
        type=Path,
        default=Path.cwd(),
        metavar="FOLDER",
        help="a clone of spark-images, with pins.yaml (default: here)",
    )
    verbs = Verbs(parser.add_subparsers(dest="verb", required=True, metavar="VERB"))
    for group in (audit, build, registry, pins, serve, smoke, units, bisect, update, ci, machine):
        group.add(verbs)
    return parser
