"""Bench of scripts/memgate on real compilers whose peaks differ by ten times, under a cap too small for all cores."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from spark_images.bench.base import Measured, NotMeasured, Subject
from spark_images.bench.ninja import Attempt, Compile, Gate, build, program, write_profile
from spark_images.errors import CheckError
from spark_images.jobs import plan_jobs
from spark_images.schedule import oracle
from spark_images.terminal import tell
from spark_images.units import GIB, MIB

MOST_SLOTS = 8  # more would only make the load larger
OF_ORACLE = 1.15
QUIET = 0.9  # of a core for each compiler; less, and other work has slowed down whoever uses all cores
HUNGRIEST = 3  # of `sources`

_FLAGS = ("-std=c++17", "-O1", "-fconstexpr-ops-limit=4000000000", "-fconstexpr-loop-limit=2000000000")
# Evaluating takes time and no memory, instantiating takes both: so each can be set for itself. A compiler begins with
# the first and comes to its peak late, as nvcc does.
_SOURCE = """\
#include <utility>

constexpr unsigned longest_chain(unsigned limit) {{
  unsigned longest = 0;
  for (unsigned from = 1; from < limit; ++from) {{
    unsigned steps = 0;
    for (unsigned long at = from; at != 1; at = at % 2 ? 3 * at + 1 : at / 2) ++steps;
    if (steps > longest) longest = steps;
  }}
  return longest;
}}
static_assert({limit} < 10 || longest_chain({limit}) > 5);

template <int Row, int Column> struct cell {{
  int value = Row * 31 + Column;
  int scaled(int by) const {{ return value * by + Column; }}
  template <int Other> int mixed(const cell<Row, Other>& other) const {{ return scaled(Other) ^ other.scaled(Row); }}
}};
template <int Row, int Column> int visit(int by) {{
  cell<Row, Column> here;
  cell<Row, Column + 1> next;
  return here.mixed(next) + by;
}}
template <int Row, int... Columns> int row(int by, std::integer_sequence<int, Columns...>) {{
  return (visit<Row, Columns>(by) + ... + 0);
}}
template <int... Rows> int all(int by, std::integer_sequence<int, Rows...>) {{
  return (row<Rows>(by, std::make_integer_sequence<int, 50>()) + ... + 0);
}}
int {name}(int by) {{ return all(by, std::make_integer_sequence<int, {rows}>()); }}
"""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A generated C++ file. limit: how far is evaluated; rows: of 50 instantiated cells, 3 MiB each."""

    name: str
    limit: int
    rows: int

    @property
    def text(self) -> str:
        return _SOURCE.format(name=self.name.replace("/", "_"), limit=self.limit, rows=self.rows)


def sources(pairs: int) -> Iterator[Source]:
    """The load for so many pairs of slots: a few hungry ones first, as long as all others together."""
    for number in range(4 * pairs):
        yield Source(name=f"moe/grouped{number}", limit=9000, rows=180 + 5 * (number % 4))
    for number in range(6 * pairs):
        yield Source(name=f"gemm/tile{number}", limit=4000 + 500 * (number % 6), rows=40 + 2 * (number % 6))
    for number in range(10 * pairs):
        yield Source(name=f"ops/map{number}", limit=12000 + 500 * (number % 10), rows=1 + number % 3)


def memory(subject: Subject) -> Measured:
    """How much quicker the gate builds than the quickest job count under which nothing fails.

    All builds are of the same C++ files, one after the other, each in a cgroup of its own with the same cap: enough for
    half of the slots where each has the hungriest file.
    """
    from spark_images.workfolder import work_folder

    compiler = program("g++", "g++")
    slots = min(len(os.sched_getaffinity(0)), MOST_SLOTS) // 2 * 2
    if slots < 2:
        raise NotMeasured("needs two cores: with one there is nothing to run at once")
    gate = Gate(program=subject.project.root / "scripts/memgate", slots=slots, unit_mib=1024)
    with work_folder(subject.cache, "bench") as folder:
        compiles = write_sources(tuple(sources(slots // 2)), folder / "src", compiler)
        alone = build([compiles[HUNGRIEST]], folder / "alone", jobs=1, cap_bytes=4 * GIB, gate=gate)
        if not alone.units:
            raise CheckError(f"`{compiler}` does not compile what this bench generates", why=alone.said[-5:])
        largest_mib = alone.units[0].peak_mib
        cap_mib = int((slots // 2 + 0.5) * largest_mib)

        def run(name: str, jobs: int, gate: Gate | None = None) -> Attempt:
            tell(f"bench: {len(compiles)} files, {name}")
            return build(compiles, folder / name, jobs=jobs, cap_bytes=cap_mib * MIB, gate=gate)

        fixed = {}
        for jobs in range(slots // 2, slots + 1):
            fixed[jobs] = run(f"-j{jobs}", jobs)
            if fixed[jobs].failed:
                break
        if slots not in fixed:
            fixed[slots] = run(f"-j{slots}", slots)
        gate = replace(gate, unit_mib=int(largest_mib))
        # As many as a build would let wait: each of them takes a little of the same memory.
        queue = plan_jobs(budget_gib=cap_mib * MIB / GIB, gib_per_job=1, cores=slots, gated=True).queue
        unknown = run("gate without profile", queue, gate)
        profile = write_profile(unknown.units, folder / "profile")
        known = run("gate with profile", queue, replace(gate, profile=profile))
    return Comparison(slots=slots, cap_mib=cap_mib, fixed=fixed, unknown=unknown, known=known).measured()


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Builds of the same files under the same cap.

    fixed: job count -> how it went; the first is safe by the largest peak, the last is one for each slot.
    unknown, known: behind the gate, without and with a profile.
    """

    slots: int
    cap_mib: int
    fixed: Mapping[int, Attempt]
    unknown: Attempt
    known: Attempt

    def measured(self) -> Measured:
        """The quickest job count that nothing failed under, in times of the gate.

        CheckError: another promise broke. NotMeasured: other work took too much of the machine.
        """
        ideal_s = oracle(self.known.units, slots=self.slots, cap_mib=self.cap_mib).seconds
        peaks = [unit.peak_mib for unit in self.known.units]
        facts = (
            f"{len(peaks)} C++ files, peaks {min(peaks, default=0):.0f} to {max(peaks, default=0):.0f} MiB, "
            f"cap {self.cap_mib} MiB, {self.slots} slots",
            *(
                f"-j{jobs}{', safe by the largest peak' if jobs == min(self.fixed) else ''}: {one.told}"
                for jobs, one in self.fixed.items()
            ),
            f"memgate that knows no file: {self.unknown.told}",
            f"memgate with the profile that this gave: {self.known.told}",
            f"oracle, a simulated schedule of the units as they were measured in that: {ideal_s:.1f} s",
            f"each compiler had {self.known.core_part:.0%} of a core" if self.known.units else "nothing was compiled",
        )
        failed = self.unknown.failed + self.known.failed > 0
        if not failed and self.known.core_part < QUIET:
            raise NotMeasured(
                f"compilers behind the gate had {self.known.core_part:.0%} of a core each, as other work is on this "
                "machine; run it again when that has ended"
            )
        broken = {
            "units failed behind the gate": failed,
            f"the gate takes more than {OF_ORACLE} times the oracle": self.known.seconds > OF_ORACLE * ideal_s,
            f"nothing failed with -j{self.slots}, so the cap was no hindrance": not self.fixed[self.slots].failed,
            "every job count failed": all(one.failed for one in self.fixed.values()),
        }
        if any(broken.values()):
            raise CheckError("; ".join(text for text, is_so in broken.items() if is_so), why=facts)
        best_s = min(one.seconds for one in self.fixed.values() if not one.failed)
        return Measured(value=best_s / self.known.seconds, facts=facts)


def write_sources(generated: Sequence[Source], folder: Path, compiler: str) -> tuple[Compile, ...]:
    """Write the files; how each is compiled."""
    compiles = []
    for source in generated:
        file = folder / f"{source.name}.cpp"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source.text)
        unit = f"{source.name}.o"
        compiles.append(Compile(unit=unit, command=(compiler, *_FLAGS, "-c", str(file), "-o", unit)))
    return tuple(compiles)
