"""Bench of scripts/memgate on a real tree: hungry CUDA files of llama.cpp, by its own build, under a small cap."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_images.bench.base import IMAGE, Measured, Subject
from spark_images.bench.stages import build_stages
from spark_images.errors import BuildError, CheckError
from spark_images.units import MIB, format_size

CUDA = "ggml/src/ggml-cuda/CMakeFiles/ggml-cuda.dir"
OBJECTS = (  # peaks in MiB by nvcc 13.0.88 for 12.1a; half a minute of CPU the first two, seconds the others
    f"{CUDA}/argsort.cu.o",  # 700
    f"{CUDA}/template-instances/mmq-instance-q4_k.cu.o",  # 557
    f"{CUDA}/softmax.cu.o",  # 421
    f"{CUDA}/scale.cu.o",  # 330
)
CAP_BYTES = 900 * MIB  # each fits, the first beside none of the next two
_WAY = re.compile(r"\bcapped (\w+) status=(\d+) missing=(\d+) seconds=(\d+)$")
_DOCKERFILE = """\
FROM build-root AS part
ARG SOURCE_DATE_EPOCH={epoch}
RUN --mount=type=bind,source=.,target=/spark/scripts \\
    --mount=type=bind,from=inputs,source=.,target=/spark/inputs \\
    COMPILE_CACHE=ignore MEMGATE_SLOTS={cores} MEMGATE_UNIT_MIB={unit_mib} \\
    /spark/scripts/compile_capped {cores} {objects} -- {arguments}

FROM scratch
COPY --from=part /out/ /
"""


@dataclass(frozen=True, kw_only=True)
class Way:
    """How one way to compile the part ended."""

    missing: int  # objects
    seconds: int

    @property
    def told(self) -> str:
        return f"{self.missing} of {len(OBJECTS)} objects missing after {self.seconds} s"


def tree(subject: Subject) -> Measured:
    """How many objects are missing with the gate, where compiling on all cores loses some to the cap."""
    cores = max(2, len(os.sched_getaffinity(0)))
    arguments = re.search(rf"/compile_{IMAGE} (.+)$", subject.plan.dockerfile, re.MULTILINE)
    if arguments is None:
        raise BuildError(f"the Dockerfile of `{IMAGE}` does not call `compile_{IMAGE}`")
    text = _DOCKERFILE.format(
        epoch=subject.plan.config.epoch,
        cores=cores,
        unit_mib=round(subject.image.compile.gib_per_job * 1024),
        objects=" ".join(OBJECTS),
        arguments=arguments[1],
    )
    engine = subject.choose_engine()
    lines = build_stages(subject, engine, dockerfile=text, script="compile_capped", memory_bytes=CAP_BYTES)
    ways = read_ways(lines)
    if set(ways) != {"counted", "gated"}:
        raise BuildError("a part of llama.cpp could not be compiled", why=lines[-20:])
    counted, gated = ways["counted"], ways["gated"]
    facts = (
        f"{len(OBJECTS)} CUDA files, cap {format_size(CAP_BYTES)}, {engine.name}",
        f"-j{cores}: {counted.told}",
        f"memgate that knows no file: {gated.told}",
    )
    if not counted.missing:
        raise CheckError(f"-j{cores} did not fail, so the cap was no hindrance", why=facts)
    return Measured(value=gated.missing, facts=facts)


def read_ways(log: Sequence[str]) -> Mapping[str, Way]:
    """What compile_capped printed, whatever the engine put before it."""
    found = (match for line in log if (match := _WAY.search(line.rstrip())))
    return {match[1]: Way(missing=int(match[3]), seconds=int(match[4])) for match in found}
