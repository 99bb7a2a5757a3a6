"""What a user sees of smoke checks: a table or JSON, JUnit XML for CI, and an error where they are red."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from spark_images.errors import CheckError
from spark_images.files import write_text
from spark_images.smoke_results import CheckResult, SmokeResults, junit
from spark_images.terminal import print_table, tell
from spark_images.verdict import Colour

UNTOLD = ("compute_capability", "driver", "free_gib", "gpu", "jit_cache")  # in the table; `device` tells most of it


def say(results: SmokeResults, *, what: str, require_gpu: bool, as_json: bool, junit_file: Path | None) -> None:
    """Print the table, or the JSON; raises CheckError where a check is red, or skipped with `require_gpu`."""
    if junit_file:
        write_text(junit_file, junit(results.checks, suite=f"smoke.{what}"))
    if as_json:
        print(json.dumps(results.document(), indent=1))
    elif len(results.checks) > 1:  # one alone is in the sentence
        _print(results)
    if results.colour is Colour.RED:
        red = [one for one in results.checks if one.colour is not Colour.GREEN]
        raise CheckError(
            f"smoke checks of {what}: red", why=[f"{one.check}: {one.colour.value}, {one.sentence}" for one in red]
        )
    if results.colour is Colour.SKIPPED and require_gpu:
        raise CheckError(f"smoke checks of {what} were skipped", why=[results.sentence], hint="run them on the target")
    tell(f"smoke checks of {what}: {results.colour.value}: {results.sentence}")


def _print(results: SmokeResults) -> None:
    rows = [
        (one.check, one.colour.value, f"{one.seconds:.1f}", one.sentence or "; ".join(_facts(one)))
        for one in results.checks
    ]
    print_table(("check", "verdict", "seconds", "what"), rows, right=("seconds",), whole=("check", "verdict"))


def _facts(one: CheckResult) -> Iterator[str]:
    """The facts that are a word or a number, and the worst of the compared results."""
    for name, value in one.facts.items():
        if isinstance(value, str | int | float) and name not in UNTOLD:
            yield f"{name.replace('_', ' ')} {value}"
    with contextlib.suppress(KeyError, TypeError, ValueError):
        worst = max(entry["of_bound"] for entry in one.facts["results"])
        yield f"{len(one.facts['results'])} results, the worst at {worst:.0%} of its bound"
