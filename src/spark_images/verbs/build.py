"""Building an image and what it has to pass: build, plan, reproduce, test, verify."""

from __future__ import annotations

import argparse
import os

from spark_images.verbs.base import Verbs, cache_of_user, engine, variant, variant_of


def add(verbs: Verbs) -> None:
    """Add the verbs of this module."""
    build = verbs.add("build", _build, "Build an image, or say that it is built already and why that is known.")
    variant(build)
    engine(build)
    build.add_argument(
        "--memory", metavar="SIZE", help="cap of the build, e.g. 48GiB (default: what the host can spare)"
    )
    build.add_argument("--no-memory-limit", action="store_true", help="build without a cap: the host may go down")
    build.add_argument("--cold", action="store_true", help="use no engine cache and no compile cache; compare digests")
    build.add_argument(
        "--rebuild", action="store_true", help="run every step although the image is there; compare digests"
    )
    build.add_argument("--explain", action="store_true", help="say what differs from the last build; build nothing")

    plan = verbs.add("plan", _plan, "Print the plan of an image as JSON.")
    variant(plan)

    reproduce = verbs.add("reproduce", _reproduce, "Build an image twice without caches and compare the digests.")
    variant(reproduce)
    reproduce.add_argument("--engine", action="append", choices=("podman", "docker"), help="once per engine named")
    reproduce.add_argument("--memory", metavar="SIZE")
    reproduce.add_argument(
        "--reference",
        metavar="HOST/NAME/IMAGE:TAG",
        help="build this one again, from what is attached to it, and compare",
    )

    test = verbs.add("test", _test, "Test a built image: its files, and the running container.")
    variant(test)
    engine(test)
    test.add_argument("pytest", nargs="*", help="further arguments for pytest, after `--`")

    verify = verbs.add("verify", _verify, "Put a built image through all gates: audit, tests, GPU smoke.")
    variant(verify)
    engine(verify)
    verify.add_argument("--require-gpu", action="store_true", help="a smoke gate that is skipped is an error")


def _build(options: argparse.Namespace) -> int:
    from spark_images.build import BuildOptions, build, explain
    from spark_images.doctor import Need, require
    from spark_images.jobs import parse_size

    cache = cache_of_user()
    project, image, target, base = variant_of(options)
    memory_bytes = None if options.memory is None else parse_size(options.memory)
    if options.explain:
        explain(project, image, target, base, cache=cache)
        return 0
    require(Need.ENGINE, env=os.environ)
    build(
        project,
        image,
        target,
        base,
        cache=cache,
        options=BuildOptions(
            engine=options.engine,
            memory_bytes=memory_bytes,
            limit_memory=not options.no_memory_limit,
            rebuild=options.rebuild,
            cold=options.cold,
        ),
    )
    return 0


def _plan(options: argparse.Namespace) -> int:
    import json

    from spark_images.patches import require_patches_apply
    from spark_images.store import Store

    project, image, target, base = variant_of(options)
    plan, cache = project.plan(image, target, base), cache_of_user()
    require_patches_apply(plan, project.root, store=Store(cache.store), cache=cache)
    print(json.dumps({"plan_id": plan.plan_id, **plan.document()}, indent=2, ensure_ascii=False))
    return 0


def _reproduce(options: argparse.Namespace) -> int:
    from spark_images.doctor import Need, require
    from spark_images.jobs import parse_size
    from spark_images.reproduce import reproduce, reproduce_published

    memory_bytes = None if options.memory is None else parse_size(options.memory)
    if options.reference:
        from spark_images.attest.signing import find_public_key

        require(Need.ENGINE, env=os.environ)
        reproduce_published(
            options.reference,
            cache=cache_of_user(),
            engines=tuple(options.engine or ()),
            memory_bytes=memory_bytes,
            key=find_public_key(None),
        )
        return 0
    project, image, target, base = variant_of(options)
    require(Need.ENGINE, env=os.environ)
    reproduce(
        project,
        image,
        target,
        base,
        cache=cache_of_user(),
        engines=tuple(options.engine or ()),
        memory_bytes=memory_bytes,
    )
    return 0


def _test(options: argparse.Namespace) -> int:
    from spark_images.doctor import Need, require
    from spark_images.verify import test

    project, image, target, base = variant_of(options)
    require(Need.ENGINE, Need.EMULATION, env=os.environ, platform=target.platform)
    test(project, image, target, base, cache=cache_of_user(), engine=options.engine, pytest=options.pytest)
    return 0


def _verify(options: argparse.Namespace) -> int:
    from spark_images.doctor import Need, require
    from spark_images.gates import verify

    project, image, target, base = variant_of(options)
    require(Need.ENGINE, Need.EMULATION, env=os.environ, platform=target.platform)
    verify(
        project,
        image,
        target,
        base,
        cache=cache_of_user(),
        engine=options.engine,
        require_gpu=options.require_gpu,
    )
    return 0
