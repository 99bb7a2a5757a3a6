"""The lock of a wheels pin: for every package and platform the wheel that pip would take, with digest and size."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from spark_images.errors import ContentError, RouteError
from spark_images.files import write_text
from spark_images.locks import LockedWheel, lock_text, made_from
from spark_images.pins import RequirementsPin, WheelsPin

if TYPE_CHECKING:
    from spark_images.package_index import IndexFile, PackageIndex


def resolve_wheels(pin: WheelsPin, *, index: PackageIndex | None = None) -> tuple[LockedWheel, ...]:
    """The wheels of the pin's packages on its platforms; one that fits all of them stands once, as for `any`.

    Only wheels for any Python 3 fit: they hold programs and libraries, and no Python of ours imports them.
    index: the user's own, as pip is configured, if None.
    Raises ContentError where no wheel fits or the index does not give its sha256, RouteError when no index answers.
    """
    from spark_images.package_index import PackageIndex, select_wheel

    index = index or PackageIndex.from_env()
    found: dict[str, LockedWheel] = {}
    for package in pin.packages:
        project, _, version = package.partition("==")
        files = index.find_files(project)
        for platform in pin.platforms:
            file = select_wheel(files, project=project, version=version, platform=platform, python=None)
            if file.filename not in found:
                found[file.filename] = lock_file(file, project=project, version=version, platform=platform, index=index)
    return tuple(found.values())


def write_wheels_lock(pin: WheelsPin | RequirementsPin, wheels: Iterable[LockedWheel], path: Path) -> None:
    """Write the lock in one go, a line per wheel, layer by layer: readers see the old file or the new one."""
    layers = [layer.name for layer in pin.requirements.layers] if isinstance(pin, RequirementsPin) else [""]
    comment = f"The wheels behind the pin `{pin.name}` of pins.yaml. Remade by `nox -s lock`; do not edit."
    entries = [
        # Quotes where YAML could see a number: versions such as 1.10, digests such as 1234e56.
        f'{{project: {wheel.project}, version: "{wheel.version}", filename: {wheel.filename}, '
        f'platform: {wheel.platform}, sha256: "{wheel.sha256}", size: {wheel.size_bytes}'
        + (f", layer: {wheel.layer}}}" if wheel.layer else "}")
        for wheel in sorted(wheels, key=lambda wheel: (layers.index(wheel.layer), wheel.project, wheel.platform))
    ]
    write_text(path, lock_text(comment, made=made_from(pin), key="wheels", entries=entries))


def lock_file(
    file: IndexFile, *, project: str, version: str, platform: str, index: PackageIndex, layer: str = ""
) -> LockedWheel:
    """The line of a lock for a file that an index offers; its size is asked for where the index does not say it.

    Raises ContentError where the index does not give its sha256, RouteError when nobody tells the size.
    """
    if file.sha256 is None:
        raise ContentError(f"the package index gives no sha256 for `{file.filename}`, so it cannot be locked")
    return LockedWheel(
        project=project,
        version=version,
        filename=file.filename,
        platform=platform if file.filename.endswith(".whl") and not file.filename.endswith("-any.whl") else "any",
        sha256=file.sha256,
        size_bytes=_ask_size(file, index) if file.size_bytes is None else file.size_bytes,
        layer=layer,
    )


def _ask_size(file: IndexFile, index: PackageIndex) -> int:
    """HTML pages of an index say no sizes; the server of the file does."""
    import requests

    from spark_images.download import TransferError, check_status, explain, persist, without_credentials

    timeout_s = index.patience.timeout_s

    def ask() -> int:
        try:
            with index.session().head(file.url, allow_redirects=True, timeout=timeout_s) as response:
                check_status(response)
                length = response.headers.get("Content-Length", "")
        except requests.RequestException as err:
            raise explain(err, timeout_s=timeout_s) from err
        if not length.isdigit():
            raise TransferError("the server does not say how large the file is", passing=False)
        return int(length)

    try:
        return persist(ask, patience=index.patience, stop=threading.Event())
    except TransferError as err:
        shown = without_credentials(file.url)
        raise RouteError(f"the size of `{file.filename}` cannot be asked", why=[f"{shown}: {err}"]) from err
