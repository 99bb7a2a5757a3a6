"""Images in a registry: push, pull."""

from __future__ import annotations

import argparse
import os

from spark_images.verbs.base import Verbs, cache_of_user, engine, project_of, variant, variant_of


def add(verbs: Verbs) -> None:
    """Add the verbs of this module."""
    push = verbs.add("push", _push, "Push a built image to a registry under its plan_id and read it back.")
    variant(push)
    push.add_argument("--registry", required=True, metavar="HOST/NAME")

    pull = verbs.add("pull", _pull, "Pull an image by digest, verify every blob, and load it into the engine.")
    pull.add_argument("reference", metavar="HOST/NAME/IMAGE@sha256:…")
    engine(pull)


def _push(options: argparse.Namespace) -> int:
    from spark_images.doctor import Need, require
    from spark_images.registry import push

    project, image, target, base = variant_of(options)
    require(Need.TRANSFER, env=os.environ)
    print(push(project, image, target, base, cache=cache_of_user(), registry=options.registry))
    return 0


def _pull(options: argparse.Namespace) -> int:
    from spark_images.doctor import Need, require
    from spark_images.registry import pull

    project, cache = project_of(options), cache_of_user()
    require(Need.ENGINE, Need.TRANSFER, env=os.environ)
    print(pull(project, options.reference, cache=cache, engine=options.engine))
    return 0
