"""What must hold in an image, without starting it: audit."""

from __future__ import annotations

import argparse
from pathlib import Path

from spark_images.verbs.base import Verbs, cache_of_user, new_file, project_of, variant_of


def add(verbs: Verbs) -> None:
    """Add the verbs of this module."""
    audit = verbs.add(
        "audit",
        _audit,
        "Look into an image or a wheel: GPU code, linking, Python, settings, secrets.",
        "./noxw -s audit-llamacpp -- --json audit.json",
    )
    audit.add_argument(
        "what",
        nargs="?",
        metavar="IMAGE|LAYOUT|REFERENCE|WHEEL",
        help="a built image of this repository, the folder of an OCI layout, any image's reference, or a .whl file",
    )
    audit.add_argument("--target", help="a machine of images/targets.yaml (default: what the image's label says)")
    audit.add_argument("--base", help="of an image of this repository: what it stands on (default: its first)")
    audit.add_argument(
        "--from",
        dest="origin",
        choices=("source", "wheel"),
        help="of an image of this repository: what it is made of (default: its first)",
    )
    audit.add_argument("--json", type=new_file, metavar="FILE", help="write everything that was found there as well")
    audit.add_argument("--list", action="store_true", help="list the checks: id, severity, reason, source")


def _audit(options: argparse.Namespace) -> int:
    from spark_images.errors import UsageError

    if options.list:
        from spark_images.audit.judge import CHECKS
        from spark_images.audit.report import listed

        print("\n".join(listed(CHECKS)))
        return 0
    if options.what is None:
        raise UsageError("`audit` of what?", hint="see `.venv/bin/python -m spark_images audit --help`")
    from spark_images.audit.run import Auditor, finish, target_of
    from spark_images.cuobjdump import cuobjdump_of

    project, cache, path = project_of(options), cache_of_user(), Path(options.what)
    auditor = Auditor(project=project, cache=cache, cuobjdump=cuobjdump_of(project, cache))
    if path.suffix == ".whl" and path.is_file():
        result = auditor.wheel(path, target_of(project, options.target, "", options.what))
    elif (path / "oci-layout").is_file():
        result = auditor.folder(path, options.target)
    elif options.what in {image.name for image in project.images}:
        options.image = options.what
        _, image, target, base = variant_of(options)
        result = auditor.built(image, target, base)
    else:
        result = auditor.reference(options.what, options.target)
    finish(result, options.json)
    return 0
