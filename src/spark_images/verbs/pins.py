"""What images are made of: fetch, prune, render, lock, learn."""

from __future__ import annotations

import argparse
from pathlib import Path

from spark_images.verbs.base import Verbs, cache_of_user, project_of


def add(verbs: Verbs) -> None:
    """Add the verbs of this module."""
    fetch = verbs.add(
        "fetch",
        _fetch,
        "Put what the images are made of into the store; afterwards builds need no network.",
        "./noxw -s fetch -- llamacpp vllm",
    )
    fetch.add_argument("images", nargs="*", help="folders below images/ (default: all)")
    fetch.add_argument(
        "--all", action="store_true", help="for every target and base, not the image's first alone: many gigabytes"
    )

    prune = verbs.add(
        "prune",
        _prune,
        "Remove inputs and images that no pin stands for; assembled roots are made again in seconds.",
        "./noxw -s prune -- --dry-run",
    )
    prune.add_argument("--dry-run", action="store_true", help="remove nothing; say how much would go")

    render = verbs.add(
        "render",
        _render,
        "Write the Dockerfiles that the templates and pins give.",
        "./noxw -s render -- --check",
    )
    render.add_argument(
        "--check", action="store_true", help="write nothing; fail with a diff where they are out of date"
    )

    lock = verbs.add(
        "lock",
        _lock,
        "Resolve the lock files of the pins anew.",
        "./noxw -s lock -- cuda",
    )
    lock.add_argument("pins", nargs="*", help="pins of pins.yaml (default: every one that has a lock)")

    learn = verbs.add(
        "learn",
        _learn,
        "Read what releases of vLLM know by name into images/vllm-knowledge.json.",
        "./noxw -s learn-vllm -- 0.33.0",
    )
    learn.add_argument(
        "releases", nargs="*", help="versions (default: those of images/compat.yaml that were not read yet)"
    )
    learn.add_argument(
        "--sdists",
        type=Path,
        metavar="FOLDER",
        help="where vllm-<release>.tar.gz lie (default: they are fetched from the package index)",
    )


def _fetch(options: argparse.Namespace) -> int:
    from spark_images.cuobjdump import cuobjdump_content
    from spark_images.fetch import fetch
    from spark_images.host import host_platform
    from spark_images.pinned_image import fetch_image
    from spark_images.store import Store
    from spark_images.terminal import tell
    from spark_images.units import format_duration, format_size

    project = project_of(options)
    images = [project.image(name) for name in options.images] or project.images
    plans = [
        project.plan(image, *variant)
        for image in images
        for variant in (project.variants(image) if options.all else [project.variant(image, None, None)])
        if project.compiles_on(host_platform(), image, *variant)
    ]
    contents = {content.digest: content for plan in plans for content in plan.contents}
    if inspect := cuobjdump_content(project):
        contents[inspect.digest] = inspect
    store = Store(cache_of_user().store)
    done = fetch(tuple(contents.values()), store=store)
    if done.files:
        brought = f"{format_size(done.bytes)} in {format_duration(done.seconds)}"
        tell(f"fetched {done.files} files, {brought}; {done.already} were there already")
    else:
        tell(f"all {done.already} files are there already")
    for pin, platform in dict.fromkeys(one for plan in plans for one in plan.images):
        fetch_image(pin, store=store, platform=platform)
        tell(f"fetched {pin.ref} for {platform}")
    return 0


def _prune(options: argparse.Namespace) -> int:
    from spark_images.prune import prune

    prune(project_of(options), cache=cache_of_user(), dry_run=options.dry_run)
    return 0


def _render(options: argparse.Namespace) -> int:
    from spark_images.dockerfiles import check_dockerfiles, write_dockerfiles

    (check_dockerfiles if options.check else write_dockerfiles)(project_of(options))
    return 0


def _lock(options: argparse.Namespace) -> int:
    from spark_images.relock import relock

    relock(project_of(options), names=options.pins, cache=cache_of_user())
    return 0


def _learn(options: argparse.Namespace) -> int:
    from spark_images.vllm_learn import learn

    learn(project_of(options), options.releases, sdists=options.sdists, cache=cache_of_user())
    return 0
