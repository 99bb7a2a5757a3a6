"""Bench of the two forms in which an image is pushed: how long engines take to pull and unpack each.

A registry on loopback takes the line out of the comparison: what is left is the work of unpacking, and of checking.
"""

from __future__ import annotations

import io
import os
import shutil
import socket
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from spark_images.bench.base import Measured, NotMeasured, Subject
from spark_images.bench.serving import serving
from spark_images.errors import CheckError
from spark_images.process import capture
from spark_images.units import format_size

if TYPE_CHECKING:
    from spark_images.oci import Layout

ROUNDS = 2  # of each form, in turn, so that what else the machine does meets both; the quicker one counts
NAMESPACE = "spark-images-bench"
_SOCKETS = ("/run/containerd/containerd.sock", "/run/docker/containerd/containerd.sock")


@dataclass(frozen=True, kw_only=True)
class Puller:
    """A program that pulls, and how it forgets what it pulled."""

    name: str
    pull: tuple[str, ...]  # the reference comes behind
    remove: tuple[str, ...]


def pull(subject: Subject) -> Measured:
    """How many times as fast the zstd form is pulled and unpacked as the gzip form, by the engine that gains least."""
    from spark_images.built import built_layout
    from spark_images.registry.client import Client
    from spark_images.registry.forms import GZIP, ZSTD, write_gzip
    from spark_images.registry.push import push_layout
    from spark_images.registry.reference import Repository
    from spark_images.workfolder import work_folder

    subject.require_built()
    with work_folder(subject.cache, "bench-pull") as folder, _registry(folder / "registry") as host:
        image = _of_its_own(built_layout(subject.plan, subject.cache), folder / "image")
        forms = {ZSTD: image, GZIP: write_gzip(image, folder / "gzip")}
        repository = Repository(host=host, name="bench")
        for form, layout in forms.items():
            client = Client(repository)
            push_layout(client, layout, form, states=folder / "uploads")
        facts = [f"{form}: {format_size(sum(layer.size_bytes for layer in forms[form].layers))}" for form in forms]
        ratios = []
        with _pullers(folder / "podman", f"{image.config['os']}/{image.config['architecture']}") as pullers:
            for puller in pullers:
                took, said = _race(puller, [repository.at(form) for form in forms])
                facts.append(f"{puller.name}: {said}")
                if len(took) == len(forms):
                    ratios.append(took[1] / took[0])
    if not ratios:
        raise NotMeasured(f"no engine here pulls both forms: {'; '.join(facts)}")
    return Measured(value=min(ratios), facts=tuple(facts))


def _race(puller: Puller, references: Sequence[str]) -> tuple[list[float], str]:
    """Seconds for each reference, as far as it can be pulled; and in words."""
    took: dict[str, float] = {}
    refused = ""
    for reference in list(references) * ROUNDS:
        form = reference.rpartition(":")[2]
        began = time.monotonic()
        done = capture([*puller.pull, reference])
        seconds = time.monotonic() - began
        if done.status:
            refused = f"{form} not: {done.stderr.strip().splitlines()[-1][-160:]}"
            continue
        took[form] = min(seconds, took.get(form, seconds))
        if (removed := capture([*puller.remove, reference])).status:
            raise CheckError(f"{puller.name} does not remove `{reference}`", why=removed.stderr.splitlines()[-3:])
    said = [f"{form} {seconds:.1f} s" for form, seconds in took.items()]
    return list(took.values()), ", ".join([*said, refused] if refused else said)


@contextmanager
def _pullers(folder: Path, platform: str) -> Iterator[list[Puller]]:
    """The engines that are here; podman with a storage of its own, containerd with a namespace of its own."""
    found = []
    run = tempfile.mkdtemp(prefix="podman-")  # podman takes no more than 50 characters
    if shutil.which("podman"):
        podman = ("podman", "--root", str(folder / "root"), "--runroot", run)
        arch = platform.partition("/")[2]
        found.append(
            Puller(
                name=f"podman {_version('podman', '--version').split()[-1]}",
                pull=(*podman, "pull", "--quiet", "--arch", arch, "--tls-verify=false"),
                remove=(*podman, "rmi", "--force"),
            )
        )
    if shutil.which("docker") and capture(["docker", "info"]).status == 0:
        found.append(
            Puller(
                name=f"docker {_version('docker', 'version', '--format', '{{.Server.Version}}')}",
                pull=("docker", "pull", "--quiet", "--platform", platform),
                remove=("docker", "rmi", "--force"),
            )
        )
    address = next((path for path in _SOCKETS if os.access(path, os.W_OK)), "")
    if address and shutil.which("ctr"):
        ctr = ("ctr", "--address", address, "--namespace", NAMESPACE, "images")
        found.append(
            Puller(
                name=f"containerd {_version('containerd', '--version').split()[-2]}",
                pull=(*ctr, "pull", "--plain-http", "--platform", platform),
                remove=(*ctr, "rm", "--sync"),
            )
        )
    try:
        yield found
    finally:
        if (folder / "root/overlay").is_mount():
            capture(["umount", str(folder / "root/overlay")])  # podman leaves it, and then the folder cannot go
        shutil.rmtree(run)
        if address and shutil.which("ctr"):
            capture(["ctr", "--address", address, "namespaces", "remove", NAMESPACE])


def _version(*command: str) -> str:
    return capture(command).stdout.decode().strip()


def _of_its_own(layout: Layout, output: Path) -> Layout:
    """The image above a layer that no engine has: else it would unpack nothing of what it holds already."""
    import tarfile

    from spark_images.layout_writer import new_layout
    from spark_images.oci import read_layout
    from spark_images.tarform import open_canonical

    with new_layout(output) as writer:
        with writer.layer() as sink:
            with open_canonical(sink) as tar:
                info = tarfile.TarInfo("bench")
                info.size = 16
                tar.addfile(info, io.BytesIO(os.urandom(info.size)))
            layers = [sink.finish(created_by="bench")]
        for layer in layout.layers:
            writer.take(layer, layout.blob(layer.digest))
            layers.append(layer)
        writer.finish(config=layout.config, layers=layers, annotations={})
    return read_layout(output)


@contextmanager
def _registry(folder: Path) -> Iterator[str]:
    """A registry on loopback for the time of the block; its host and port."""
    program = shutil.which("docker-registry") or shutil.which("registry")
    if program is None:
        raise NotMeasured("there is no registry program: `apt-get install docker-registry`")
    folder.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        host = f"127.0.0.1:{free.getsockname()[1]}"
    (folder / "config.yml").write_text(
        f"version: 0.1\nlog: {{level: error}}\nhttp: {{addr: '{host}'}}\n"
        f"storage: {{filesystem: {{rootdirectory: {folder / 'data'}}}}}\n"
    )
    command = [program, "serve", str(folder / "config.yml")]
    with serving(command, folder / "log", partial(_answers, host)):
        yield host


def _answers(host: str) -> bool:
    try:
        urllib.request.urlopen(f"http://{host}/v2/", timeout=5).close()
    except OSError:
        return False
    return True
