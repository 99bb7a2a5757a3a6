"""GPU code for tests: fatbins made by hand, what cuobjdump says of them, and one that nvcc made."""

from __future__ import annotations

import base64
import lzma
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

from elf_files import EM_AARCH64, object_file

Pieces = Sequence[str]  # one module: "sm_121a", "compute_80"; with "@9.1" the version of its PTX


def fatbin(*modules: Pieces, said: str | None = None) -> bytes:
    """A section's content: a fatbin for each module; no kernel in what ends in `!`.

    In place of code each piece has what fake_cuobjdump is to print of it; with `said` the first piece has all of that.
    """
    out, first = b"", True
    for module in modules:
        body = b""
        for name in module:
            kind, number, (major, minor) = _parts(name)
            text = dump([name]) if said is None else said if first else ""
            code = b"SAID<" + text.encode() + b">SAID" if text else bytes(8)
            code = object_file({".nv.info": code}, machine=190) if name.endswith("!") else code
            code += bytes(-len(code) % 8)
            size = len(code) if name.endswith("!") else 160
            fields = (0, 64, minor, major, int(number.rstrip("af")), 0, 0, 0, 0, size)
            body += struct.pack("<HHIQIIHHIIIQQQ", kind, 0x101, 64, len(code), *fields) + code
            first = False
        out += struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body
    return out


def dump(*modules: Pieces) -> str:
    """What cuobjdump 13.2 prints of them."""
    text = ""
    for name in (name for module in modules for name in module):
        kind, number, (major, minor) = _parts(name)
        word = {1: "ptx", 2: "elf"}[kind]
        text += f"\nFatbin {word} code:\n================\narch = sm_{number}\ncode version = [{major},{minor}]\n"
        text += "host = linux\ncompile_size = 64bit\n"
    return text


def gpu_library(*modules: Pieces, machine: int = EM_AARCH64, said: str | None = None) -> bytes:
    """An ELF file with these modules. said: what fake_cuobjdump prints of it, where that is not the truth."""
    return object_file({".nv_fatbin": fatbin(*modules, said=said)}, machine=machine)


def fake_cuobjdump(folder: Path) -> Path:
    """A program that prints what fatbin() put into a file, and fails for any other file as cuobjdump does."""
    program = folder / "cuobjdump"
    program.write_text(
        f"""#!{sys.executable} -IS
import sys
said = open(sys.argv[-1], "rb").read().split(b"SAID<")[1:]
if not said:
    sys.exit(f"cuobjdump fatal   : Invalid ELF in '{{sys.argv[-1]}}'")
for text in said:
    print(text.split(b">SAID")[0].decode())
"""
    )
    program.chmod(0o755)
    return program


def _parts(name: str) -> tuple[int, str, tuple[int, int]]:
    architecture, _, version = name.rstrip("!").partition("@")
    kind, _, number = architecture.partition("_")
    major, _, minor = (version or ("9.0" if kind == "compute" else "1.8")).partition(".")
    return (1 if kind == "compute" else 2), number, (int(major), int(minor))


def real_fatbin() -> bytes:
    """One that nvcc 13.0.88 made of a kernel of one line, for sm_80, compute_80, sm_120f, sm_121a and compute_121a."""
    return lzma.decompress(base64.b64decode(_REAL))


_REAL = """
/Td6WFoAAATm1rRGAgAhARwAAAAQz1jM4DmfCApdACg7RqtfID3nknKquoV+VfpaLAekGN4735qYmvboU0bm4eFn6gGbU+22Hgf8EX8nmRQH03TUM56+
2l02gyHP7b608iJrUIArPdwXgdTiHxeq+X+P7H0R6AaPTxcXedqsN2kZBDsheYZlYcgDbDJNg5vf+Hy4ujrObgBsKvFulGxC/qXHAHRcx8kVFC+iiYfU
EbNI6k2t0z4Vix9BvzyRNZWiBEOvIpLJ+ObLtltobmDtzZX/1N+ms1vb7pRqtCd57arVIJe5YJ+4bsZHEM/qR2rLecm1+bw88I4/IErHmg5GJTOLzI4o
bZw7/7ebgxn31rLz2NqdhG8ELhZpa1JndVjGSiqhDSfrGcWN3N5NaXfthLpZH6iPc9kqvRcmBr9UWlEhygzKQT1IvLDa1a8anK1LypUS5/6L/DN5pT3a
MdYEKm5xMrEkD3VcfQDVr1piiTC1lJpGOSr+Z+9MMroaMO5MqwcJj1J91loXOkGPbufqpXdLnvSKOsEeZDZ3fVFA4GKrKgVj9zGP0oLqGIwYlQ+Xryiz
kjrzZaSx/SuNaDztTiVKxj1yVV+HaNHWU4RGOYoVpwASVovOqgTJpDrMbb7VWdPQYUlltPd9M/gPWeL5Kl0yqIRygXamnrYWc/pMP0ELcR5VRSJcbfxS
b416cv8Eh9LZlv2S6AlKMVL9rVZN8gGSvuSoP/OIoFIA5xvphG+5AVFwUe2YTcp+jSq2UKl7A/3qfDm973qBujCWLlQPch6tC59X2hE+RlngD/Ue81X9
bHIL7HJkmcBjS2EGxrF2x1s1uRSv7u1e+cxG4O3eTc9zGuvFXHVjOyGfI5pT/yquhgEQ6WWQc7qTgb8OB2a1oowq0F2IWYaKM7EeLRQ/5FnbZ0OdHWR8
Eskp7WGGxvWQg8QORtMRhsERMDU+yHenwgCE/bgUjZ/UmUSp8WSRo9gvpMKjSfBlrUeUf6ucssHr1k79h1VxIYKYl1lb/C9XFBuCxbePaB5X2dTyMpJq
DCVHsrlO9U0vtL7oOY7rD4PTBe19Ik4g4pLfxAHwGRDhpRMF73HLlgCuMnNmgpRtj42hSZ9X+Ujtve+tF2xcVNOi7AqVBYoxhBsD/xgXalj/Il37xc8v
LrSMcZ45fwKd8S4IRILqMmj0CF5yLLEp8R4zVSJC4DKwggJwyowMmGvujwF26GzJ6XNbSoKwyGfU6QZgtY1UcOSTbMSezy+mBCBVVpe2Om1VBqwjsgim
ktUGVdRfpoXong+1/EGYoSOj9FhFdp2C2Zq5tHMMvdvBm5X7lRRLbq/UbspCusAcXc6G9qBf0Z11iqjogU3XvG8Zl8Qxs9VsCMqWCkSrSvfelmZFtzPS
ygsJUWpSZxD6lNp8GP90cuNw/SDNX+siuwHlK3YrS9u0Z+hN19Y5zEtAJiM3c8Q3CvrMz4xHiEZ6jHyCS+HWZqy0qtsXPBQOef9wiFafP/ptEctk3uEg
FSYu2LlSM+CoMTn2RZfkcxJpnZ4BDWWvChRY5SAIzsMdX6aBn0gNmuYYB5ZiWnUd/1p7FuWdUJYbhsdXdO7r0E190yu88axiIXYQTyy496yo/X8Q6VwE
k0SLhV83sK6jTTrVWw5UEbbOfSKtM2YVQHXSGcUB6YV61Ep/FbV6DUjG4E4uYgetg20Pit84l5zTqTGKnmh43SeG6uqsnqhJhDT3TqlSvxsGq/Zhm8r4
LyVLUbPQhsMvE2US5g1tpvSAH3+Udh5rbdsUXAN8G2a6FcPkV+VPLo32dSf6cg7bnpzJMvtW39TYds0KvHqvz+01v4Ke5U5vTXst6cGAbgCW7kU/gIC0
5IKou0nszDKSyDHn6db2PHRU5h/0c5RKFwzSqTyeZJtmtQ/iDpt88+EGHQNX0qa+Al5D0XM/Bgc61mkMQ8fgBvBA715hV9JbZBKhOZ416eeidnehBZHY
9PPaoqgOS7dU5EAVccRiEzFXopOs8P9RsZUjXrsPstscLCbMm8S8076nW+ms+UiWFrBrOEmRlrjQJAuTXnYpqlHD4spDp5Pg5UxI45YN9qV/NZgrz7ff
MTWsTfp21t7OXboE1MziRQpf1mFXcO/Z0MB29QWO811KLKILKiouaQKwRXzxXn2ktjCX4NYPLkKlWxH/RUKxbvJA5j5kM49PZUf4lPzSDmcxmbJ16tmv
bGZrpIux1U+vphntVFvrlXmBbbeRhbV/QADwoCtwAliBSYonkssahDCwZ6x5N3zQZn1aoldV+Dswuv9gAJOhxP+IAfzszeZ+cmDFGr0JZQkmwPwzjre6
Hxyte/N+88IdcVa5AEGpsWBMFFXv7UePhWZb03Tfvnc0jELbLjIKt+B6EP3O9q1HSaxP6BzgUFS+zE94uh8RdWGVTMyuA/hCmziH8F2nlVR/3otsrQV+
mbAIpaoM2++wepMMWnQsNE4OVsMNTI4g/bH8jVUOL4N2OaKgtONQDb4EtoFZ9k45C6XUaF3nYBK1Vq1Sq5B/PNTiwfY1MHLkKxShPHXpJgQ5J5JM/mDD
IyOjaAwJp/WoV3ZUohy7dCimaC5b8OpNc+KiFxuXA3UzCwlnN1iIAxinPjEyKhl6OduwvXcDo2L8V5RsI6j+Pr5Hi2/NKxRuft1DOYx+Pq0krug4Ri6Z
MxtCYIK53ske0IlTjqKgU8NZsOqoXd1iaKHGelgzWw3kZnuYXa7hnkfljkXgGHiKDjSoXey6T6mOSEX/FeuVE7j4YFj4zCRT/bci5ocs/4dxTDXw6lX0
gAAAAJQZtu47sOQQAAGmEKBzAACgfix3scRn+wIAAAAABFla
"""

REAL_DUMP = """\

Fatbin ptx code:
================
arch = sm_80
code version = [9,0]
host = linux
compile_size = 64bit
compressed
ptxasOptions = 

Fatbin elf code:
================
arch = sm_80
code version = [1,8]
host = linux
compile_size = 64bit

Fatbin elf code:
================
arch = sm_120f
code version = [1,8]
host = linux
compile_size = 64bit

Fatbin ptx code:
================
arch = sm_121a
code version = [9,0]
host = linux
compile_size = 64bit
compressed
ptxasOptions = 

Fatbin elf code:
================
arch = sm_121a
code version = [1,8]
host = linux
compile_size = 64bit
"""  # of cuobjdump 13.2.78
