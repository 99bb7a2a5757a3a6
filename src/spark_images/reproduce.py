"""The proof that equal plans give equal images: build without caches and compare."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_images.build import BuildOptions, build
from spark_images.cache import Cache
from spark_images.errors import CanonicalError, ConfigError, RegistryError
from spark_images.images import Image
from spark_images.project import Project
from spark_images.targets import Target
from spark_images.workfolder import work_folder

if TYPE_CHECKING:
    from spark_images.attest.signing import PublicKey

OTHERS = "use the spark-images that its provenance names, on a machine like the one that it was built on"


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

    Every build takes the machine for another one: other host names in the steps, other paths of what they are given.
    Raises CanonicalError as soon as a digest differs from the image that the plan made before.
    """
    chosen = engines if len(engines) > 1 else (engines or (None,)) * 2
    for number, engine in enumerate(chosen, start=1):
        options = BuildOptions(engine=engine, memory_bytes=memory_bytes, cold=True, machine=_machine(number))
        layout = build(project, image, target, base, cache=cache, options=options)
        print(f"{engine or 'default engine'} {layout.manifest_digest}")


def reproduce_published(
    reference: str, *, cache: Cache, engines: tuple[str, ...], memory_bytes: int | None, key: PublicKey | None = None
) -> None:
    """Build an image in a registry again from the project that is attached to it, and compare with what is there.

    key: it has to be signed by this one. Raises CanonicalError where another image comes out, with where they differ;
    RegistryError where nothing is attached, or where this spark-images plans something else from it.
    """
    from spark_images.imagediff import layout_differences
    from spark_images.oci import read_layout
    from spark_images.registry.client import Client
    from spark_images.registry.clone import fetch_clone
    from spark_images.registry.offer import single_offer
    from spark_images.registry.pull import pull_layout
    from spark_images.registry.reference import parse_reference
    from spark_images.registry.verification import verify_offer

    wanted = parse_reference(reference)
    client = Client(wanted.repository)
    offer = single_offer(client, wanted.wanted)
    canonical = offer.form_of or offer.digest  # the config's diff_ids prove that a form is what it says
    if key is not None:
        verify_offer(client, offer, key)
    with work_folder(cache, "published") as folder:
        project = fetch_clone(client, offer.digest, folder / "project")
        try:
            image = project.image(offer.image)
            target, base = project.variant(image, offer.target, offer.base)
            image = image.on(base)
            plan = project.plan(image, target, base)
        except ConfigError as err:
            raise RegistryError(f"{offer.reference} cannot be made again by this spark-images", hint=OTHERS) from err
        if plan.plan_id != offer.plan_id:
            raise RegistryError(
                f"{offer.reference} cannot be made again here: its files give another plan",
                why=(f"published: {offer.plan_id}", f"here:      {plan.plan_id}, built on {plan.builder}"),
                hint=OTHERS,
            )
        for number, engine in enumerate(engines or (None,), start=1):
            options = BuildOptions(engine=engine, memory_bytes=memory_bytes, cold=True, machine=_machine(number))
            layout = build(project, image, target, base, cache=cache, options=options)
            print(f"{engine or 'default engine'} {layout.manifest_digest}")
            if (layout.manifest_digest, layout.config_digest) != (canonical, offer.config_digest):
                there = Cache(folder / "there")
                pull_layout(client, offer, there)
                published = read_layout(there.images / offer.place)
                raise CanonicalError(
                    f"{offer.reference} came out differently from its own plan {offer.plan_id[:12]}",
                    why=(
                        f"published: {canonical}",
                        f"here:      {layout.manifest_digest} in {layout.path}",
                        *layout_differences(published, layout),
                    ),
                    hint="one of the two builds was not determined by the plan, or the image was not built from it",
                )
        print(f"published {canonical}")


def _machine(number: int) -> str:
    """A host name as no other build has it, and of another length: a name may be padded, or cut."""
    return f"{'another-' * number}machine"
