"""The user's cache folder: the one place that knows where things lie in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from spark_images.errors import UsageError


@dataclass(frozen=True)
class Cache:
    """`$SPARK_IMAGES_CACHE`, else `$XDG_CACHE_HOME/spark-images`, else `~/.cache/spark-images`; all clones share it.

    shared_store: `$SPARK_IMAGES_STORE`, a store outside of it, on a volume that several machines have.
    """

    root: Path
    shared_store: Path | None = None

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Cache:
        """The cache that the environment names; an empty variable counts as unset. UsageError without a home."""
        try:
            stated = env.get("SPARK_IMAGES_STORE")
            store = Path(stated).expanduser().absolute() if stated else None
            if named := env.get("SPARK_IMAGES_CACHE"):
                return cls(Path(named).expanduser().absolute(), store)
            base = env.get("XDG_CACHE_HOME") or Path(env.get("HOME") or Path.home(), ".cache")
        except RuntimeError as err:  # pathlib's, for a user without a home folder
            raise UsageError("there is no place for the cache", hint="name one in `SPARK_IMAGES_CACHE`") from err
        return cls(Path(base, "spark-images").absolute(), store)

    @property
    def store(self) -> Path:
        """Content by sha256 (store.py)."""
        return self.shared_store or self.root / "store"

    @property
    def roots(self) -> Path:
        """Root file systems assembled from .debs, as OCI layouts, by key (debian.py)."""
        return self.root / "roots"

    @property
    def work(self) -> Path:
        """One folder per running attempt: inputs by hard link, the engine's raw export. Removed at its end."""
        return self.root / "work"

    @property
    def images(self) -> Path:
        """Canonical OCI layouts by plan_id (oci.py)."""
        return self.root / "images"

    @property
    def records(self) -> Path:
        """What every attempt did (record.py)."""
        return self.root / "records"

    @property
    def verdicts(self) -> Path:
        """Verdicts by plan_id, on images that came by pull: there is no record to hold them (verdicts.py)."""
        return self.root / "verdicts"

    @property
    def sboms(self) -> Path:
        """What is in an image, by its digest, for it takes minutes to find out (registry/describe.py)."""
        return self.root / "sboms"

    @property
    def histories(self) -> Path:
        """Commits of git repositories, without files (git_history.py)."""
        return self.root / "histories"

    @property
    def gpu_lock(self) -> Path:
        """Held by the process that has the GPU (smoke.py)."""
        return self.root / "gpu.lock"

    @property
    def uploads(self) -> Path:
        """Where uploads to registries stand, so that a killed push goes on (registry/upload.py). For the user alone."""
        return self.root / "uploads"

    @property
    def locks(self) -> Path:
        """What the solver said when a lock was made last, by pin (requirement_lock.py)."""
        return self.root / "locks"

    @property
    def engines(self) -> Path:
        """What engines keep for us: podman's cache mounts and settings, BuildKit's configuration."""
        return self.root / "engines"

    @property
    def tools(self) -> Path:
        """Host-side tools unpacked from pinned wheels."""
        return self.root / "tools"
