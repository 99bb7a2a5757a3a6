"""An image of ours in a registry, as its manifest and config tell before anything large is fetched."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from spark_images.errors import RegistryError
from spark_images.imageconfig import BASE_LABEL, PINS_LABEL, PLAN_LABEL, TARGET_LABEL, TITLE_LABEL, VERSION_LABEL
from spark_images.registry.client import Client
from spark_images.registry.manifest import Manifest
from spark_images.registry.reference import DIGEST, NAME

FORM_OF = "io.spark-images.form-of"  # annotation of another form's manifest (forms.py): the canonical manifest's digest


@dataclass(frozen=True, kw_only=True)
class Offer:
    """One image, for one platform."""

    reference: str  # by digest
    manifest: Manifest
    config: dict[str, Any]
    config_data: bytes
    plan_id: str
    image: str
    sizes: dict[str, int]  # layer digest -> bytes, lowest first
    config_digest: str  # what engines call the image ID
    form_of: str  # "", or the digest of the canonical manifest where this is another form (forms.py)

    @property
    def digest(self) -> str:
        """Of the manifest."""
        return self.manifest.digest

    @property
    def labels(self) -> dict[str, str]:
        """What the image says of itself."""
        return {str(key): str(value) for key, value in (self.config["config"].get("Labels") or {}).items()}

    @property
    def version(self) -> str:
        return self.labels.get(VERSION_LABEL, "")

    @property
    def target(self) -> str:
        return self.labels.get(TARGET_LABEL, "")

    @property
    def base(self) -> str:
        return self.labels.get(BASE_LABEL, "")

    @property
    def pins(self) -> dict[str, str]:
        """Name -> ingredients.describe_pin's words for it."""
        return dict(json.loads(self.labels.get(PINS_LABEL) or "{}"))

    @property
    def size_bytes(self) -> int:
        """Of all layers."""
        return sum(self.sizes.values())

    @property
    def platform(self) -> str:
        """`linux/arm64`."""
        return f"{self.config.get('os')}/{self.config.get('architecture')}"

    @property
    def place(self) -> str:
        """The folder's name in cache.images. Only the canonical form lies where a build would put it."""
        return f"{self.plan_id}-{self.digest[7:19]}" if self.form_of else self.plan_id


def read_offer(client: Client, wanted: str) -> Offer:
    """The image behind a tag or digest of a single image; RegistryError where there is none, or none of ours."""
    manifest = client.manifest(wanted)
    if manifest is None:
        raise RegistryError(f"{client.at(wanted)} is not there", hint="`push` brings it, `list` shows what there is")
    try:
        parts = manifest.document()
        config_data = client.blob(parts["config"]["digest"])
        config = json.loads(config_data)
        labels = config["config"].get("Labels") or {}
        plan_id, image = str(labels.get(PLAN_LABEL)), str(labels.get(TITLE_LABEL))
        if not (re.fullmatch("[0-9a-f]{64}", plan_id) and NAME.fullmatch(image)):
            raise ValueError(f"its labels name plan `{plan_id}` and image `{image}`")
        sizes = {str(layer["digest"]): int(layer["size"]) for layer in parts["layers"]}
        form_of = str((parts.get("annotations") or {}).get(FORM_OF, ""))
        if form_of and not DIGEST.fullmatch(form_of):
            raise ValueError(f"it says that it is a form of `{form_of}`")
    except (KeyError, TypeError, ValueError, AttributeError) as err:
        raise RegistryError(
            f"{client.at(wanted)} is no image that spark-images made",
            why=(f"those say in the label `{PLAN_LABEL}` which plan they are of",),
            hint="`podman pull` and `docker pull` take any image",
        ) from err
    return Offer(
        reference=client.at(manifest.digest),
        manifest=manifest,
        config=config,
        config_data=config_data,
        plan_id=plan_id,
        image=image,
        sizes=sizes,
        config_digest=str(parts["config"]["digest"]),
        form_of=form_of,
    )


def single_offer(client: Client, wanted: str) -> Offer:
    """As read_offer, of an index that names one image that one."""
    manifest = client.manifest(wanted)
    if manifest is None:
        raise RegistryError(f"{client.at(wanted)} is not there", hint="`push` brings it, `list` shows what there is")
    if manifest.is_index:
        found = members(client, manifest)
        if len(found) != 1:
            raise RegistryError(
                f"{client.at(wanted)} is an index of several images",
                why=tuple(f"{name}: {digest}" for name, digest in found.items()),
                hint="name one of them by its digest",
            )
        return read_offer(client, next(iter(found.values())))
    return read_offer(client, manifest.digest)


def members(client: Client, manifest: Manifest) -> dict[str, str]:
    """Platform -> image digest of what a tag names: one image, or an index of several."""
    document = manifest.document()
    if manifest.is_index:
        found = {}
        for entry in document["manifests"]:
            platform = entry.get("platform") or {}
            found[f"{platform.get('os')}/{platform.get('architecture')}"] = str(entry["digest"])
        return found
    config = json.loads(client.blob(document["config"]["digest"]))
    return {f"{config.get('os')}/{config.get('architecture')}": manifest.digest}
