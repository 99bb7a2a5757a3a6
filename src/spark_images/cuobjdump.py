"""NVIDIA's cuobjdump: which GPU code a library holds. The program comes out of a pinned wheel."""

from __future__ import annotations

import re
import zipfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from spark_images.errors import CheckError, ContentError, HostProgramError
from spark_images.files import write_bytes
from spark_images.process import capture, quoted
from spark_images.store import digest_of
from spark_images.terminal import tell

MEMBER = "nvidia/cu13/bin/cuobjdump"  # where the wheels of CUDA 13 keep it
TIMEOUT_S = 120  # 0.1 s for 144 cubins on a quiet machine
LISTED = re.compile(r"^(?P<kind>ELF|PTX) file +\d+: .*\.(?P<architecture>sm_\d+[af]?)\.(?:cubin|ptx)$")


@dataclass(frozen=True, kw_only=True)
class GpuCode:
    """What a file carries for GPUs: architecture ("sm_121a") -> number of cubins, and of PTX texts."""

    cubins: Mapping[str, int]
    ptx: Mapping[str, int]


def unpack_cuobjdump(wheel: Path, tools: Path) -> Path:
    """The program, unpacked from a wheel whose content was verified into `tools`/<sha256 of the wheel>; done once."""
    folder = tools / digest_of(wheel).removeprefix("sha256:")
    program = folder / "cuobjdump"
    if program.exists():
        return program
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with zipfile.ZipFile(wheel) as archive:
            content = archive.read(MEMBER)
    except (zipfile.BadZipFile, KeyError) as err:
        raise ContentError(f"`{wheel.name}` holds no `{MEMBER}`") from err
    write_bytes(program, content, mode=0o777)
    return program


def list_gpu_code(program: Path, file: Path) -> GpuCode:
    """Run cuobjdump over a file. A file without GPU code gives an empty answer; CheckError where cuobjdump fails."""
    # Without --all-fatbin it shows the fatbins of the executable part only, or the others where there are none.
    command = [str(program), "--all-fatbin", "--list-elf", "--list-ptx", str(file)]
    tell(quoted(command))
    try:
        done = capture(command, timeout_s=TIMEOUT_S)
    except HostProgramError as err:
        raise CheckError("`cuobjdump` does not run to its end", why=[quoted(command)]) from err
    if done.status != 0 and "does not contain device code" not in done.stderr:
        raise CheckError(
            f"`cuobjdump` cannot read `{file.name}`",
            why=[quoted(command), f"status {done.status}: {done.stderr.strip()}"],
        )
    return parse_listing(done.stdout.decode(errors="replace"))


def parse_listing(text: str) -> GpuCode:
    """Read what `cuobjdump --list-elf --list-ptx` prints; CheckError at a line of another form."""
    found: dict[str, Counter[str]] = {"ELF": Counter(), "PTX": Counter()}
    for line in text.splitlines():
        if not line.strip():
            continue
        match = LISTED.match(line.strip())
        if match is None:
            raise CheckError("`cuobjdump` printed a line that is not understood", why=[line])
        found[match["kind"]][match["architecture"]] += 1
    return GpuCode(cubins=dict(found["ELF"]), ptx=dict(found["PTX"]))
