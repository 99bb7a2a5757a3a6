"""What gives an error away in the output of compilers, linkers, shells and build tools, and what is no error at all."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from typing import TypeAlias


class Kind(Enum):
    """What went wrong; the value completes "the build …"."""

    OUT_OF_MEMORY = "ran out of memory"
    KILLED = "lost a process to SIGKILL"
    NETWORK = "asked for the network"
    DISK_FULL = "filled the disk"
    MISSING_HEADER = "misses a header"
    COMPILE_ERROR = "does not compile"
    LINK_ERROR = "does not link"
    WRONG_ARCH = "met code of another architecture"
    PYTHON_EXCEPTION = "ended in a Python exception"
    NOT_ISOLATED = "could reach a network"
    CAP_NOT_PROVED = "is not under its memory limit"
    ENGINE = "was refused by the engine"
    UNKNOWN = "failed"


Sign: TypeAlias = tuple[Kind, str, str]

# What gives an error away: a phrase in lower case (quick to look for) and, where that says too little, a pattern.
# Ordered: where a line fits several the first one is meant. KILLED may have been for memory: what the step has counted
# tells, and that stands elsewhere in the log.
SIGNS: tuple[Sign, ...] = (
    (Kind.NOT_ISOLATED, "[spark] not isolated: ", r"^\[spark\] not"),
    (Kind.CAP_NOT_PROVED, "[spark] cap not proved: ", r"^\[spark\] cap"),
    (
        Kind.KILLED,
        "killed",
        r"^(?:.*: line \d+: +\d+ |g?make(?:\[\d+\])?: \*\*\* .*)?Killed(?: |$)",
    ),  # shells, make
    (Kind.KILLED, "make", r"^g?make(?:\[\d+\])?: \*\*\* .* Error 137$"),
    (Kind.KILLED, "killed signal terminated program", ""),
    (Kind.KILLED, "internal compiler error: killed", ""),
    (Kind.KILLED, "unable to execute command: killed", ""),
    (Kind.KILLED, "signal 9", r"(?:died due to|terminated (?:with|by)|killed by) signal 9\b"),
    (Kind.KILLED, "sigkill", r"signal: 9, SIGKILL|died with <Signals\.SIGKILL"),
    (Kind.KILLED, "signal: killed", ""),  # Go
    (Kind.KILLED, "exit", r"\bexit(?:ed with)? (?:status|code):? (?:-9|9|137)\b"),
    (Kind.OUT_OF_MEMORY, "allocate memory", r"(?i:can(?:not|'t) allocate memory)"),
    (Kind.OUT_OF_MEMORY, "memory allocation of ", r"\d+ bytes failed"),  # Rust
    (Kind.OUT_OF_MEMORY, "memory exhausted", ""),
    (Kind.OUT_OF_MEMORY, "out of memory", r"\b(?i:out of memory)\b"),
    (Kind.OUT_OF_MEMORY, "memoryerror", r"^(?:[\w.]+\.)?_?(?:Array)?MemoryError\b"),  # the longer one is numpy's
    (Kind.OUT_OF_MEMORY, "std::bad_alloc", ""),
    (Kind.OUT_OF_MEMORY, "memory allocation failure", ""),
    (Kind.OUT_OF_MEMORY, "oom-killed", ""),  # OCI runtimes, of a container's first process
    (Kind.OUT_OF_MEMORY, "unable to set memory limit", ""),  # runc, where its own start needs more
    (Kind.DISK_FULL, "no space left on device", ""),
    (Kind.DISK_FULL, "disk quota exceeded", ""),
    (Kind.NETWORK, "could not resolve ", ""),
    (Kind.NETWORK, "temporary failure ", r"in name resolution|resolving"),
    (Kind.NETWORK, "unable to resolve host address", ""),  # wget
    (Kind.NETWORK, "getaddrinfo", r"EAI_AGAIN|ENOTFOUND"),  # node
    (Kind.NETWORK, "name or service not known", ""),
    (Kind.NETWORK, "network is unreachable", ""),
    (Kind.NETWORK, "dial tcp", ""),
    (Kind.NETWORK, "no such host", ""),
    (Kind.NETWORK, "curl: (", r"curl: \((?:5|6|7|28)\)"),
    (Kind.NETWORK, "newconnectionerror", ""),
    (Kind.NETWORK, "connect to ", r"Failed to connect to |Could not connect to "),
    (Kind.NETWORK, "unable to access 'http", ""),
    (Kind.WRONG_ARCH, "exec format error", ""),
    (Kind.WRONG_ARCH, "cannot execute binary file", ""),
    (Kind.WRONG_ARCH, "file in wrong format", ""),
    (Kind.WRONG_ARCH, "wrong elf class", ""),
    (Kind.WRONG_ARCH, "relocations in generic elf", ""),
    (Kind.WRONG_ARCH, "incompatible", r"is incompatible with .*output|incompatible target"),
    (Kind.WRONG_ARCH, "could not open", r"^qemu-\w+: "),
    (Kind.MISSING_HEADER, "fatal error: ", r"fatal error: '?[^' ]+'? ?(?:: No such file or directory|file not found)"),
    (Kind.MISSING_HEADER, "error: cannot open source file ", ""),
    (Kind.LINK_ERROR, "undefined reference to ", ""),
    (Kind.LINK_ERROR, "multiple definition of ", ""),
    (Kind.LINK_ERROR, "ld: cannot find ", ""),
    (Kind.LINK_ERROR, "collect2: error: ", ""),
    (Kind.LINK_ERROR, "nvlink ", r"^nvlink +(?:error|fatal)"),
    (Kind.LINK_ERROR, "ld.lld: error: ", ""),
    (Kind.LINK_ERROR, "relocation truncated to fit", ""),
    (Kind.LINK_ERROR, "recompile with -fpic", ""),
    (Kind.COMPILE_ERROR, "error", r"^\S[^:(]*(?::\d+(?::\d+)?|\(\d+\)): (?:fatal |internal compiler )?[Ee]rror\b"),
    (Kind.COMPILE_ERROR, "error: ", r"^(?:cc1(?:plus)?|(?:\S+-)?g(?:cc|\+\+)|c\+\+|clang(?:\+\+)?): .*\berror: "),
    (Kind.COMPILE_ERROR, " error", r"^(?:nvcc|ptxas|cudafe\+\+|cicc|fatbinary) +error\b"),
    (Kind.COMPILE_ERROR, " fatal", r"^(?:nvcc|ptxas|cudafe\+\+|cicc|fatbinary) +fatal\b"),
    (Kind.COMPILE_ERROR, "error[e", r"^error\[E\d+\]: "),  # Rust
    (Kind.UNKNOWN, "build_sdists: ", "^build_sdists: "),  # our own word on a build backend's traceback
)
# Often only the consequence of a line above, or something that the step got over.
WEAK_SIGNS: tuple[Sign, ...] = (
    (Kind.PYTHON_EXCEPTION, "traceback (most recent call last):", "^Traceback"),
    (Kind.UNKNOWN, "cmake error", "^CMake Error"),
    (Kind.UNKNOWN, "error", r"^(?:\S+: )*(?i:error) ?:"),
    (Kind.UNKNOWN, "fatal", r"^(?:\S+: )*(?i:fatal) ?:"),
    (Kind.UNKNOWN, "not found", r": (?:command )?not found$"),
    (Kind.KILLED, "failed: [", r"^FAILED: \[code=(?:137|-9)\]"),
    (Kind.UNKNOWN, "failed: ", "^FAILED: "),
)

# What is no error, whatever its words. pip alone says in a warning why it found no version.
NO_ERROR = re.compile(
    r"^\[spark\] (?:step|unit|gate|proved)|"  # a compiler that the gate ran again has cost time only
    r"^\[ *\d+(?:/\d+|%)\] |"  # what ninja and CMake are about to do may be called anything
    r"^(?!WARNING: Retrying )(?: *= )?(?:[^\s:(]+(?::\d+|\(\d+\))*: |nvcc )*(?:warning|remark|note)\b[^:]{0,12}:",
    re.IGNORECASE,
)


def sign_of(text: str, signs: Sequence[Sign]) -> Kind | None:
    """What a line of output says has gone wrong; None if it does not speak of an error."""
    low = text.lower()
    for kind, phrase, pattern in signs:
        if phrase in low and (not pattern or re.search(pattern, text)) and not NO_ERROR.search(text):
            return kind
    return None
