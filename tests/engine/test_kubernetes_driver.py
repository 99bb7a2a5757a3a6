"""What buildx's kubernetes driver asks of a cluster, against the Role in ci/runner; the cluster is a stand-in.

The stand-in writes down every request and lets the pod be ready, but refuses to exec: BuildKit is not reached.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

ROLE = Path(__file__).parents[2] / "ci/runner/kubernetes/buildkit/kubernetes-driver.yaml"
VERBS = {"POST": "create", "PUT": "update", "DELETE": "delete", "GET": "get"}


@dataclass
class Cluster:
    """made: kind of workload -> the body that made it, as protobuf. asked: (group, resource, verb) of every request."""

    kubeconfig: Path
    made: dict[str, bytes] = field(default_factory=dict)
    asked: set[tuple[str, str, str]] = field(default_factory=set)

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        group, _, rest = path.partition("?")[0].partition("/namespaces/spark-images/")
        resource, *more = rest.split("/")
        verb = "list" if method == "GET" and not more else VERBS[method]
        if more[1:]:
            resource += f"/{more[1]}"
        self.asked.add(("apps" if "/apis/apps" in group else "", resource, verb))
        if resource == "pods":
            pod = {
                "metadata": {"name": "one", "namespace": "spark-images"},
                "spec": {"containers": [{"name": "buildkitd"}]},
            }
            return 200, {"kind": "PodList", "apiVersion": "v1", "items": [pod | {"status": {"phase": "Running"}}]}
        if resource == "pods/exec":
            return 403, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403}
        if method == "POST":
            self.made[resource] = body
        if method == "DELETE":
            return 200, {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        if resource not in self.made:
            return 404, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
        kind = {"deployments": "Deployment", "statefulsets": "StatefulSet", "configmaps": "ConfigMap"}[resource]
        version = "v1" if kind == "ConfigMap" else "apps/v1"
        workload = {"spec": {"selector": {"matchLabels": {"app": "x"}}}, "status": {"readyReplicas": 1}}
        return 200, {"kind": kind, "apiVersion": version, "metadata": {"name": "x"}, **workload}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path / "kubeconfig")

    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, answer = made.answer(self.command, self.path, body)
            text = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PUT = do_DELETE = handle_any

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        context = {"cluster": "stand-in", "user": "nobody", "namespace": "spark-images"}
        there = {"server": f"http://127.0.0.1:{server.server_address[1]}"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "stand-in",
            "clusters": [{"name": "stand-in", "cluster": there}],
            "users": [{"name": "nobody", "user": {}}],
            "contexts": [{"name": "stand-in", "context": context}],
        }
        made.kubeconfig.write_text(yaml.safe_dump(config))
        yield made
        server.shutdown()


def make_and_remove(cluster: Cluster, folder: Path, *options: str) -> None:
    version = shutil.which("docker") and subprocess.run(["docker", "buildx", "version"], text=True, capture_output=True)
    if not version or "v0.36." not in version.stdout:
        pytest.skip("what is said of the driver was said of buildx 0.36")
    env = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "BUILDX_CONFIG": str(folder / "buildx")}
    (folder / "buildkitd.toml").write_text("[worker.oci]\n  gc = true\n")
    words = [
        word for option in ("namespace=spark-images", "timeout=20s", *options) for word in ("--driver-opt", option)
    ]
    create = ["docker", "buildx", "create", "--name", "there", "--driver", "kubernetes", *words, "--bootstrap"]
    create += ["--buildkitd-config", str(folder / "buildkitd.toml")]
    made = subprocess.run(create, env=env, text=True, capture_output=True, timeout=120)
    assert cluster.made, made.stderr
    for words in (["inspect", "there"], ["rm", "--force", "there"]):
        subprocess.run(["docker", "buildx", *words], env=env, capture_output=True, timeout=120)


def test_the_role_allows_what_the_driver_asks_for_and_nothing_else(cluster: Cluster, tmp_path: Path) -> None:
    make_and_remove(cluster, tmp_path)
    role = next(yaml.safe_load_all(ROLE.read_text()))
    allowed = {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    unused = allowed - cluster.asked
    assert cluster.asked <= allowed
    assert unused == {("", "configmaps", "update")}  # where one is left from before


def test_with_a_volume_the_driver_leaves_the_configuration_out(cluster: Cluster, tmp_path: Path) -> None:
    """Why docs/runner.md warns of it. Where this fails, buildx mounts it: take the warning back."""
    make_and_remove(cluster, tmp_path, "persistent-volume-claim.requests.storage=1Gi")
    assert b"/var/lib/buildkit" in cluster.made["statefulsets"]
    assert b"/etc/buildkit" not in cluster.made["statefulsets"]


def test_without_a_volume_the_driver_mounts_the_configuration(cluster: Cluster, tmp_path: Path) -> None:
    make_and_remove(cluster, tmp_path)
    assert b"/etc/buildkit" in cluster.made["deployments"]
