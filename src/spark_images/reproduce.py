"""The proof that equal plans give equal images: build without caches and compare."""

from __future__ import annotations

from spark_images.build import BuildOptions, build
from spark_images.cache import Cache
from spark_images.images import Image
from spark_images.project import Project
from spark_images.targets import Target


def reproduce(
    project: Project,
    image: Image,
    target: Target,
    base: str,
    *,
    cache: Cache,
    engines: tuple[str, ...],
    memory_bytes: int | None,
) -> None:
    """Build once on each of several engines named, or twice on the one named or the default, each time without caches.

    Raises CanonicalError as soon as a digest differs from the image that the plan made before.
    """
    for engine in engines if len(engines) > 1 else (engines or (None,)) * 2:
        options = BuildOptions(engine=engine, memory_bytes=memory_bytes, cold=True)
        layout = build(project, image, target, base, cache=cache, options=options)
        print(f"{engine or 'default engine'} {layout.manifest_digest}")
