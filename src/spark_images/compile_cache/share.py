"""One build's part in a shared compile cache: what it needs is brought before the compile, what it adds goes out after.

Steps see no network for it. Whatever is wrong with the store is said and costs time, never the build.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from spark_images.compile_cache.index import (
    LARGEST_DOCUMENT_BYTES,
    Entry,
    index_name,
    joined,
    read_index,
    seal,
    unseal,
    write_index,
)
from spark_images.compile_cache.mount import Mount, entry_file, settings
from spark_images.compile_cache.stores import Remote, Store, StoreError, open_store
from spark_images.errors import InterruptedByUser, SparkImagesError
from spark_images.units import format_size

if TYPE_CHECKING:
    from spark_images.attest.signing import PublicKey, Signer
    from spark_images.plan import Plan

WORKERS = 8  # requests at once: entries are small, and the time goes into waiting
_MISSES = re.compile(r"\bccache cache_miss (\d+)$")
Say = Callable[[str], None]
Given = TypeVar("Given")
Got = TypeVar("Got")


class _NotTrusted(StoreError):
    """What the store has as an index is none, or not by the key that it has to be by."""


class SharedCompileCache:
    """What one build takes from the store and gives to it.

    cold: entries are not taken, but those that such a build makes are given, in place of what was there. verify: an
    index that this key has not signed is not used. signer: signs what this build gives.
    """

    def __init__(
        self,
        remote: Remote,
        plan: Plan,
        *,
        cold: bool,
        signer: Signer | None = None,
        verify: PublicKey | None = None,
        store: Store | None = None,
    ) -> None:
        self._remote, self._cold, self._signer, self._verify = remote, cold, signer, verify
        # Without the key that others ask for we would only spoil their index.
        self._gives = not remote.read_only and (signer is not None or verify is None)
        self._store = open_store(remote) if store is None else store
        self._name = index_name(image=plan.image, target=plan.target, base=plan.base, builder=plan.builder)
        self._facts: dict[str, object] = {"remote": str(remote)}

    @classmethod
    def from_env(cls, plan: Plan, *, cold: bool, env: Mapping[str, str] = os.environ) -> SharedCompileCache | None:
        """As SPARK_IMAGES_CCACHE_REMOTE and the keys of the environment say.

        None without the first, or for a plan that compiles nothing. UsageError for values that cannot be meant.
        """
        remote = Remote.from_env(env)
        if remote is None or "id=spark-images-ccache" not in plan.dockerfile:
            return None
        from spark_images.attest.signing import find_public_key, find_signer

        signer = None if remote.read_only else find_signer(None, env)
        verify = find_public_key(None, env) or (signer.public if signer else None)
        return cls(remote, plan, cold=cold, signer=signer, verify=verify)

    @property
    def settings(self) -> dict[str, str]:
        """For the environment of compilers."""
        return settings(take=not self._cold, give=self._gives)

    def document(self) -> Mapping[str, object]:
        """What was taken and given, for the record."""
        return self._facts

    def fill(self, mount: Mount, say: Say) -> None:
        """Bring what the store has for this compile and the engine does not."""
        began = time.monotonic()
        entries = mount.work / "entries"
        try:
            held = mount.begin()
            if self._cold:
                return
            noted = self._noted()
            wanted = [entry for entry in noted if entry.key not in held]
            brought = _each(wanted, lambda entry: self._bring(entry, entries))
            if any(came is not None for came in brought):
                mount.fill(entries)
        except InterruptedByUser:
            raise
        except (StoreError, SparkImagesError) as err:
            say(f"shared compile cache: {err}; compiling without it")
            self._facts["taken"] = str(err)
            return
        refused = [entry.key for entry, came in zip(wanted, brought, strict=True) if came is None]
        size = sum(came or 0 for came in brought)
        seconds = time.monotonic() - began
        self._facts["taken"] = {"entries": len(wanted) - len(refused), "bytes": size, "seconds": round(seconds, 1)}
        say(
            f"shared compile cache {self._remote}: {len(noted)} entries are noted for this compile, {len(held)} are in "
            f"the engine, {len(wanted) - len(refused)} came ({format_size(size)}, {seconds:.1f} s)"
        )
        if refused:
            self._facts["refused"] = refused
            say(f"  {len(refused)} are missing there or not what was noted, and are not used: {', '.join(refused[:3])}")

    def give(self, mount: Mount, log: Path, say: Say) -> None:
        """Bring to the store what the compile has added. log: of the compile."""
        if not self._gives or (not self._cold and _added_nothing(log)):
            return
        began = time.monotonic()
        try:
            given = _each(mount.take(), self._give)
            if given:
                # Read again: others may have written meanwhile. Where two write at once one note is lost, which costs
                # compiles on runners to come, and nothing else.
                try:
                    noted = self._noted()
                except _NotTrusted:
                    noted = ()
                index = write_index(self._name, joined(noted, given))
                signature = self._signer.sign(index) if self._signer else None
                self._store.put(self._store.index(self._name), seal(index, signature))
        except InterruptedByUser:
            raise
        except (StoreError, SparkImagesError) as err:
            say(f"shared compile cache: {err}; what was compiled stays on this machine")
            self._facts["given"] = str(err)
            return
        size, seconds = sum(entry.size_bytes for entry in given), time.monotonic() - began
        self._facts["given"] = {"entries": len(given), "bytes": size, "seconds": round(seconds, 1)}
        if given:
            came = f"{len(given)} entries given ({format_size(size)}, {seconds:.1f} s)"
            say(f"shared compile cache {self._remote}: {came}")

    def _noted(self) -> tuple[Entry, ...]:
        data = self._store.get(self._store.index(self._name))
        if data is None:
            return ()
        try:
            if len(data) > LARGEST_DOCUMENT_BYTES:
                raise ValueError(f"it has {len(data)} bytes")
            index, signature = unseal(data)
            if self._verify is not None and not self._verify.signed(index, signature):
                raise ValueError("it is not signed by the key that was named")
            return read_index(self._name, index)
        except ValueError as err:
            raise _NotTrusted(f"{self._remote} has an index of `{self._name}` that is not used: {err}") from err

    def _bring(self, entry: Entry, folder: Path) -> int | None:
        data = self._store.get(self._store.entry(entry.key))
        if data is None or f"sha256:{hashlib.sha256(data).hexdigest()}" != entry.digest:
            return None
        file = entry_file(folder, entry.key)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        return len(data)

    def _give(self, added: tuple[str, bytes]) -> Entry:
        key, data = added
        self._store.put(self._store.entry(key), data)
        return Entry(key=key, digest=f"sha256:{hashlib.sha256(data).hexdigest()}", size_bytes=len(data))


def _added_nothing(log: Path) -> bool:
    """Whether the compile's script has printed ccache's counters, and none of a miss."""
    with log.open(encoding="utf-8", errors="replace") as lines:
        misses = [int(found[1]) for line in lines if (found := _MISSES.search(line.rstrip()))]
    return bool(misses) and not any(misses)


def _each(items: Iterable[Given], work: Callable[[Given], Got]) -> list[Got]:
    """What work makes of each, in order; several at once, and no more of the items in memory than that."""
    done: list[Got] = []
    waiting = iter(items)
    with ThreadPoolExecutor(WORKERS) as pool:
        while batch := list(islice(waiting, 2 * WORKERS)):
            done += pool.map(work, batch)
    return done
