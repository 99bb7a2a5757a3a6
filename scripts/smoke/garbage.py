"""What nonsense looks like: the signs of a model that runs and answers wrongly. Pure.

Each rule returns a sentence on what is wrong, "" where nothing is. They are for models of which the check knows that a
sound answer varies; the tiny models of the checks are made so.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

# An answer of so many equal tokens in a row is stuck. A sound greedy answer may say a word thrice.
MOST_REPEATS = 8
# Where a quantised kernel goes wrong, vLLM's answer is token 0, which most vocabularies print as "!".
LONGEST_EXCLAMATION = 4
# A cycle of up to so many tokens that fills the answer's second half is a loop.
LONGEST_CYCLE = 4


def repeated_token(tokens: Sequence[int | str]) -> str:
    """One token over and over, or a short cycle that fills the second half."""
    run = longest = 1
    for before, token in itertools.pairwise(tokens):
        run = run + 1 if token == before else 1
        longest = max(longest, run)
    if longest > MOST_REPEATS:
        return f"one token {longest} times in a row"
    half = tokens[len(tokens) // 2 :]
    for length in range(2, LONGEST_CYCLE + 1):
        if len(half) >= 3 * length and all(half[at] == half[at - length] for at in range(length, len(half))):
            return f"a cycle of {length} tokens fills the second half of {len(tokens)}"
    return ""


def exclamations(text: str) -> str:
    """The row of exclamation marks that logits of NaN or 0 give."""
    longest = max((len(part) for part in _runs(text) if part[0] == "!"), default=0)
    return f"{longest} exclamation marks in a row" if longest > LONGEST_EXCLAMATION else ""


def not_finite(values: Sequence[float | None]) -> str:
    """NaN or infinity among numbers; None is what JSON writers make of NaN."""
    bad = [value for value in values if value is None or not math.isfinite(value)]
    return f"{len(bad)} of {len(values)} numbers are not finite" if bad else ""


def independent_of_input(answers: Sequence[Sequence[int | str] | str]) -> str:
    """The same answer to different questions."""
    if len(answers) > 1 and all(answer == answers[0] for answer in answers):
        return f"{len(answers)} different inputs give one answer"
    return ""


def flat(logprobs: Sequence[float]) -> str:
    """Every candidate equally likely: logits that are all the same."""
    if len(logprobs) > 1 and max(logprobs) - min(logprobs) < 1e-6:
        return f"{len(logprobs)} candidates are equally likely"
    return ""


def signs(tokens: Sequence[int | str], text: str) -> list[str]:
    """All that looks wrong about one answer."""
    return [sign for sign in (repeated_token(tokens), exclamations(text)) if sign]


def _runs(text: str) -> list[str]:
    runs: list[str] = []
    for letter in text:
        if runs and runs[-1][0] == letter:
            runs[-1] += letter
        else:
            runs.append(letter)
    return runs
