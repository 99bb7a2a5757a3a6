"""Real registries on loopback, each with a folder of its own: Debian's docker-registry, distribution 3 and Gitea."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from spark_images.oci import Layout

TOOLS = Path(os.environ.get("GO_TOOLS_DIR", "/opt/go-tools")) / "bin"  # where CI builds what Debian does not have


def tool(name: str) -> str | None:
    """A program of the tests: on PATH, or built for them."""
    return shutil.which(name) or shutil.which(str(TOOLS / name))


DEBIANS, DISTRIBUTION, GITEA = shutil.which("docker-registry"), tool("registry"), tool("gitea")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@dataclass
class Registry:
    """A registry on loopback with a storage folder of its own."""

    host: str
    folder: Path
    process: subprocess.Popen[bytes] = field(repr=False)

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def blob(self, digest: str) -> Path:
        """Where distribution keeps a blob."""
        name = digest.removeprefix("sha256:")
        return self.folder / "data/docker/registry/v2/blobs/sha256" / name[:2] / name / "data"

    def broken_tags(self) -> list[str]:
        """Tags of distribution whose manifest, or a blob of it, is not there."""
        import json

        broken = []
        repositories = self.folder / "data/docker/registry/v2/repositories"
        for link in repositories.glob("**/_manifests/tags/*/current/link"):
            repository = next(p for p in link.parents if (p / "_manifests").is_dir())
            manifest = self.blob(link.read_text())
            if not manifest.exists():
                broken.append(str(link))
                continue
            parts = json.loads(manifest.read_bytes())
            for blob in [parts["config"], *parts["layers"]] if "layers" in parts else []:
                linked = repository / "_layers/sha256" / blob["digest"].removeprefix("sha256:") / "link"
                kept = self.blob(blob["digest"])
                if not linked.exists() or not kept.exists() or kept.stat().st_size != blob["size"]:
                    broken.append(f"{link}: {blob['digest']}")
        return broken


@contextmanager
def distribution(folder: Path, *, program: str | None = None, settings: str = "") -> Iterator[Registry]:
    """distribution with deleting allowed. settings: further YAML of its configuration. folder: made if need be."""
    folder.mkdir(exist_ok=True)
    host = f"127.0.0.1:{free_port()}"
    (folder / "config.yml").write_text(
        f"version: 0.1\nlog: {{level: error}}\nhttp: {{addr: '{host}'}}\n"
        f"storage: {{filesystem: {{rootdirectory: {folder / 'data'}}}, delete: {{enabled: true}}}}\n{settings}"
    )
    with (folder / "log").open("wb") as log:
        command = [str(program or DEBIANS or DISTRIBUTION), "serve", str(folder / "config.yml")]
        process = subprocess.Popen(command, stdout=log, stderr=log)
    with _running(Registry(host, folder, process)) as registry:
        yield registry


@contextmanager
def gitea(
    folder: Path, *, user: str, password: str, scopes: str = "write:package", settings: str = ""
) -> Iterator[tuple[Registry, str]]:
    """Gitea with one user, an administrator; it and a personal token of the user's. settings: further app.ini."""
    host = f"127.0.0.1:{free_port()}"
    account = "nobody" if os.geteuid() == 0 else ""  # it refuses to run as root
    folder.mkdir()
    static = TOOLS.parent / "share/gitea"
    (folder / "app.ini").write_text(
        f"WORK_PATH = {folder}\nRUN_USER = {account or os.environ.get('USER', 'nobody')}\n"
        f"[server]\nHTTP_ADDR = 127.0.0.1\nHTTP_PORT = {host.rpartition(':')[2]}\nROOT_URL = http://{host}/\n"
        f"DISABLE_SSH = true\nSTATIC_ROOT_PATH = {static}\n[database]\nDB_TYPE = sqlite3\nPATH = {folder}/gitea.db\n"
        "[security]\nINSTALL_LOCK = true\nSECRET_KEY = test\n[log]\nLEVEL = error\n"
        f"[service]\nDISABLE_REGISTRATION = true\n{settings}"
    )
    if account:
        shutil.chown(folder, account)
        shutil.chown(folder / "app.ini", account)
    demote = {"user": account, "group": "nogroup", "extra_groups": []} if account else {}
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "USER": account}
    base = [str(GITEA), "--config", str(folder / "app.ini"), "--work-path", str(folder)]

    def admin(*words: str) -> str:
        done = subprocess.run([*base, *words], env=env, text=True, capture_output=True, timeout=120, **demote)  # type: ignore[call-overload]
        assert done.returncode == 0, done.stdout + done.stderr
        return str(done.stdout).strip()

    admin("migrate")
    name = ["--username", user]
    admin(
        "admin",
        "user",
        "create",
        *name,
        "--password",
        password,
        "--email",
        "a@example.org",
        "--must-change-password=false",
        "--admin",
    )
    token = admin("admin", "user", "generate-access-token", *name, "--scopes", scopes, "--raw").split()[-1]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([*base, "web"], env=env, stdout=log, stderr=log, **demote)  # type: ignore[call-overload]
    with _running(Registry(host, folder, process)) as registry:
        yield registry, token


@contextmanager
def _running(registry: Registry) -> Iterator[Registry]:
    try:
        last = time.monotonic() + 60
        while not _answers(registry.host):
            assert registry.process.poll() is None, registry.log
            assert time.monotonic() < last, "the registry does not answer"
            time.sleep(0.05)
        yield registry
    finally:
        registry.process.terminate()
        registry.process.wait(20)


def _answers(host: str) -> bool:
    try:
        urllib.request.urlopen(f"http://{host}/v2/", timeout=5).close()
    except urllib.error.HTTPError:  # it wants a login
        return True
    except OSError:
        return False
    return True


Start = Callable[..., Registry]


def push_foundation(layout: Layout, host: str, empty: Path) -> str:
    """Push an image in Docker's own form, to stand on; `ref` and `digest` as a pin has them. empty: a folder."""
    ref = f"{host}/foundation:1"
    for options in (
        ("--dest-decompress", "oci:.", f"dir:{empty}"),  # Docker's form knows no zstd
        ("--format", "v2s2", "--dest-tls-verify=false", f"dir:{empty}", f"docker://{ref}"),
    ):
        subprocess.run(["skopeo", "copy", "--quiet", *options], cwd=layout.path, check=True)
    shown = ["skopeo", "inspect", "--tls-verify=false", "--format", "{{.Digest}}", f"docker://{ref}"]
    return f"ref: '{ref}', digest: '{subprocess.check_output(shown, text=True).strip()}'"
