"""Whether a release of vLLM knows a variable, a flag, a parser, a backend; where not, which releases do. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from functools import cache

from packaging.version import Version

from spark_images.compat.release import ranges
from spark_images.errors import did_you_mean
from spark_images.vllm.fields import Takes
from spark_images.vllm.history import Knowledge
from spark_images.vllm.names import Names

_PREFIX = "VLLM_"  # vLLM itself takes only these for its own when it validates its environment
_TYPO = 0.9  # of difflib: VLMM_LOGGING_LEVEL is like VLLM_LOGGING_LEVEL, NCCL_DEBUG is like none


class Checker:
    """Answers for the releases of a Knowledge; a text is a refusal in a reader's words, "" is consent."""

    def __init__(self, knowledge: Knowledge) -> None:
        self.knowledge = knowledge
        self.names: Callable[[str], Names] = cache(knowledge.names)

    def variable(self, release: str, name: str, value: str) -> str:
        """An environment variable. Those of others pass, unless a name looks like a misspelt one of vLLM's."""
        known = self.names(release).variables
        if name not in known:
            if name.startswith(_PREFIX):
                return self._unknown(release, "variables", name, "variable", known)
            if like := difflib.get_close_matches(name, [one for one in known if one.startswith(_PREFIX)], 1, _TYPO):
                return f"no variable of vllm is called `{name}`; did you mean `{like[0]}`?"
            return ""
        variable = known[name]
        return "" if variable.open else self._value(release, name, value, variable.words)

    def variables(self, release: str, env: Mapping[str, str]) -> tuple[str, ...]:
        """The refusals for a whole environment, as that of an image."""
        refusals = (self.variable(release, name, value) for name, value in env.items())
        return tuple(refusal for refusal in refusals if refusal)

    def flag(self, release: str, name: str, value: str) -> str:
        """A flag by its long name with dashes. value: `true` and `false` for a flag that takes none."""
        flag = self.names(release).flag(name)
        if flag is None:
            return self._unknown(release, "flags", name, "flag", self.names(release).flags)
        if flag.name != name:
            return f"`{name}` is another name of `{flag.name}`: use that"
        match flag.takes:
            case Takes.TOGGLE:
                return "" if value in ("true", "false") else f"expected `true` or `false`, got `{value}`"
            case Takes.NOTHING:
                return "" if value == "true" else f"it takes no value: expected `true`, got `{value}`"
            case Takes.VALUE | Takes.MAYBE:
                return "" if flag.open else self._value(release, name, value, flag.words)

    def _value(self, release: str, name: str, value: str, words: tuple[str, ...]) -> str:
        # Members of Enum classes are upper-case, and vLLM takes them in any case.
        if not words or value in words or value.upper() in words:
            return ""
        held = self.knowledge.held("values", name, value)
        known = self.knowledge.every("values", name)
        nearest = did_you_mean(value, words) or f"known are {', '.join(f'`{word}`' for word in words)}"
        if held:
            return f"vllm {release} does not know `{value}`, which exists in {self._spell(held)}; {nearest}"
        ever = "" if len(known) == len(words) else f", and no other release from {self._first} to {self._last} does"
        return f"vllm {release} does not know `{value}`{ever}; {nearest}"

    def _unknown(self, release: str, table: str, name: str, what: str, known: Iterable[str]) -> str:
        nearest = did_you_mean(name, known)
        advice = f"; {nearest}" if nearest else ""
        held = self.knowledge.held(table, name)
        if not held:
            return f"no release of vllm from {self._first} to {self._last} has such a {what}{advice}"
        said = next(iter(self.knowledge.every("instead", name)), "")
        if said:
            advice = f"; the last of them says: {said}"
        return f"vllm {release} has no such {what}, which exists in {self._spell(held)}{advice}"

    def _spell(self, held: tuple[Version, ...]) -> str:
        spelt = ranges(held, self.knowledge.releases)
        return spelt.replace(f"{self._first}", f"{self._first} (or before)", 1) if held[0] == self._first else spelt

    @property
    def _first(self) -> Version:
        return self.knowledge.releases[0]

    @property
    def _last(self) -> Version:
        return self.knowledge.releases[-1]
