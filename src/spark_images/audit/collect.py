"""From what was read to the value that is judged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from packaging.version import InvalidVersion, Version

from spark_images.audit.closure import command_sources
from spark_images.audit.facts import Library, Subject
from spark_images.audit.installed import distributions, loader_cache, settings
from spark_images.audit.kept import KeptSources
from spark_images.audit.scan import Scan
from spark_images.compat.build import COMPONENTS_FOR, Component, vllm_components
from spark_images.compat.command import Kernels
from spark_images.compat.release import vllm_release
from spark_images.errors import UsageError
from spark_images.imagechecks import tree_of
from spark_images.images import Image
from spark_images.ingredients import installed_pin
from spark_images.oci import Layout
from spark_images.pins import SdistPin
from spark_images.project import Project
from spark_images.shipped import read_shipped
from spark_images.targets import Target
from spark_images.terminal import tell
from spark_images.vllm.check import Checker
from spark_images.vllm.history import read_knowledge


def subject_of(project: Project, image: Image, target: Target, base: str) -> Subject:
    """What the files, pins and locks of this repository say of one of its images, before it is read."""
    image = image.on(base)
    installed = installed_pin(image, project.pins)
    wheels = project.wheels_lock(installed.name).wheels if installed else ()
    return Subject(
        name=f"{image.name} for {target.name} on {base}",
        target=target,
        tree={},
        meant=frozenset(image.runtime.env),
        never_called=image.audit.never_called,
        absent=image.audit.absent,
        brought=image.audit.brought,
        locked=tuple((wheel.project, wheel.version) for wheel in wheels) if installed else None,
        departed=installed.departed if installed else frozenset(),
        given=installed.provided if installed else (),
        stands_on=bool(image.runtime.image),
        predicted=_predicted(project, image, target),
    )


def _predicted(project: Project, image: Image, target: Target) -> tuple[Component, ...]:
    """What a compile of vLLM for the target is to hold.

    () where that is not known: of a wheel, whose makers chose the architectures, or for another GPU; the numbers only
    where the release's own profile is shipped.
    """
    pin, gpu = project.pins[image.compile.pin], Subject(name="", target=target, tree={}).gpu
    if not (isinstance(pin, SdistPin) and pin.project == "vllm" and gpu == COMPONENTS_FOR):
        return ()
    facts = project.required_facts.vllm
    release = vllm_release(facts, pin.version, allow_unknown=True)
    shipped = read_shipped(project.root / "images" / image.name, target.name)
    units = (unit.unit for profile in shipped if str(profile.release) == pin.version for unit in profile.units)
    return vllm_components(facts, release, all_kernels=image.compile.kernels is Kernels.ALL, units=units)


def of_layout(about: Subject, layout: Layout, scan: Scan, sources: KeptSources, *, knowledge: Path) -> Subject:
    """An image with all that was read in it. knowledge: images/vllm-knowledge.json, where there is one."""
    manifest = json.loads((layout.path / "index.json").read_bytes())["manifests"][0]
    platform = manifest.get("platform") or {}
    indexed = f"{platform['os']}/{platform['architecture']}" if {"os", "architecture"} <= platform.keys() else ""
    found = settings(layout.config, indexed=indexed)
    subject = _with_scan(replace(about, settings=found), scan, sources, (*found.entrypoint, *found.command))
    return replace(subject, unknown_variables=_unknown_variables(subject, knowledge))


def of_wheel(about: Subject, scan: Scan, sources: KeptSources) -> Subject:
    """A wheel with all that was read in it."""
    return _with_scan(about, scan, sources, None)


def _with_scan(about: Subject, scan: Scan, sources: KeptSources, words: tuple[str, ...] | None) -> Subject:
    examined, tree = scan.examined, tree_of(scan.files.values())
    texts = {path: found.text for path, found in examined.items() if found.text}
    installed = distributions(texts)
    owned = {entry.path for one in installed for entry in one.files}
    # What a distribution brought is public; what a layer deletes is still in the image.
    secrets = [(path, found.secret) for path, found in examined.items() if found.secret and path not in owned]
    secrets += [(f"{path} (hidden by a layer above)", kind) for path, kind in scan.buried]
    return replace(
        about,
        tree=tree,
        libraries=tuple(
            Library(path=path, modules=found.modules, problem=found.problem)
            for path, found in examined.items()
            if found.modules is not None
        ),
        digests={path: found.sha256 for path, found in examined.items()},
        distributions=installed,
        loader_cache=next((loader_cache(found.loader_cache) for found in examined.values() if found.loader_cache), {}),
        secrets=tuple(secrets),
        texts=texts,
        marked={path: found.knows for path, found in examined.items() if found.knows is not None},
        stale_bytecode=tuple(path for path, found in examined.items() if found.stale),
        sources=command_sources(installed, words, tree=tree, sources=sources),
    )


def _unknown_variables(subject: Subject, knowledge: Path) -> tuple[str, ...]:
    version = next((one.version for one in subject.distributions if one.name == "vllm"), "")
    if not version or subject.settings is None or not knowledge.is_file():
        return ()
    try:
        checker, release = Checker(read_knowledge(knowledge)), Version(version).public
        refusals = {name: checker.variable(release, name, value) for name, value in subject.settings.env}
        return tuple(f"{name}: {refusal}" for name, refusal in refusals.items() if refusal)
    except (InvalidVersion, UsageError) as err:
        tell(f"the environment is not held against vllm {version}: {err}")
        return ()
