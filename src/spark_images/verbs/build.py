"""Building an image and what it has to pass: build, plan, reproduce, test, verify."""

from __future__ import annotations

import argparse
import os

from spark_images.verbs.base import Verbs, cache_of_user, engine, memory, variant, variant_of


def add(verbs: Verbs) -> None:
    """Add the verbs of this module."""
    build = verbs.add(
        "build",
        _build,
        "Build an image, or say that it is built already and why that is known.",
        "./noxw -s build-llamacpp -- --engine podman --memory 48GiB",
    )
    variant(build)
    engine(build)
    memory(build)
    build.add_argument(
        "--no-memory-limit",
        action="store_true",
        help="build without a cap: a compile that runs out of memory may take the host down",
    )
    build.add_argument(
        "--cold",
        action="store_true",
        help="use no engine cache and no compile cache; the digest has to be that of the last build",
    )
    build.add_argument(
        "--rebuild",
        action="store_true",
        help="build although the image is there; the digest has to be that of the last build",
    )
    build.add_argument("--explain", action="store_true", help="build nothing; say what differs from the last build")

    plan = verbs.add(
        "plan",
        _plan,
        "Print the plan of an image as JSON.",
        "./noxw -s plan-llamacpp -- --target hopper",
    )
    variant(plan)

    reproduce = verbs.add(
        "reproduce",
        _reproduce,
        "Build an image twice without caches and compare the digests.",
        "./noxw -s reproduce-llamacpp -- --engine podman --engine docker",
    )
    variant(reproduce)
    reproduce.add_argument(
        "--engine",
        action="append",
        choices=("podman", "docker"),
        help="build with it; named twice: once with each (default: docker where it answers, else podman, twice)",
    )
    memory(reproduce)
    reproduce.add_argument(
        "--reference",
        metavar="HOST/NAME/IMAGE:TAG",
        help="build this one of a registry again, once, from what is attached to it, and compare",
    )

    test = verbs.add(
        "test",
        _test,
        "Test a built image: its files, and the running container. What stands after `--` goes to pytest.",
        "./noxw -s test-llamacpp -- --engine podman -- -k server",
    )
    variant(test)
    engine(test)
    test.set_defaults(pytest=())  # what stands after `--`: see cli

    verify = verbs.add(
        "verify",
        _verify,
        "Put a built image through all gates: audit, tests, GPU smoke.",
        "./noxw -s verify-llamacpp -- --require-gpu",
    )
    variant(verify)
    engine(verify)
    verify.add_argument(
        "--require-gpu",
        action="store_true",
        help="fail where the GPU smoke test is skipped, as this machine is not the target",
    )


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
    from spark_images.terminal import tell

    project, image, target, base = variant_of(options)
    plan, cache = project.plan(image, target, base), cache_of_user()
    require_patches_apply(plan, project.root, store=Store(cache.store), cache=cache)
    tell(*plan.remarks)
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
    from spark_images.imagetest_run import test

    project, image, target, base = variant_of(options)
    require(Need.ENGINE, Need.EMULATION, env=os.environ, platform=target.platform)
    test(project, image, target, base, cache=cache_of_user(), engine=options.engine, pytest=options.pytest)
    return 0


def _verify(options: argparse.Namespace) -> int:
    from spark_images.doctor import Need, require
    from spark_images.verify import verify

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
