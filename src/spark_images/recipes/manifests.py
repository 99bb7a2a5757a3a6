"""Servers as a Compose file and as Kubernetes manifests. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from spark_images.recipes.server import CACHE, HEALTHY, MODELS, PORT, SHM_GIB, START_S, STOP_S, Place, Server, Serving

_PROBE_S = 10
_MODELS_GIB = 200
_CACHE_GIB = 20
_GROUP = 10001  # of our images' user: what it may write to

# A lane waits for the one before it, but not for one that is scaled to nothing: a Service without a cluster address
# names the pods that there are, ready or not.
_WAIT = f"""\
import socket, sys, time, urllib.request
name, absent = sys.argv[1], 0
while absent < 6:
    try:
        addresses = {{entry[4][0] for entry in socket.getaddrinfo(name, {PORT}, type=socket.SOCK_STREAM)}}
        absent = 0
    except OSError:
        absent += 1
        print(f"{{name}}: no pod", flush=True)
        time.sleep({_PROBE_S})
        continue
    try:
        for address in addresses:
            host = f"[{{address}}]" if ":" in address else address
            urllib.request.urlopen(f"http://{{host}}:{PORT}/health", timeout=5)
    except OSError as error:
        print(f"{{name}}: {{error}}", flush=True)
        time.sleep({_PROBE_S})
    else:
        sys.exit(print(f"{{name}}: up"))
"""


def compose_file(serving: Serving, place: Place) -> str:
    """A file for `docker compose up`; a service starts when the one before it is healthy."""
    volumes = {f"{server.name}-cache": None for server in serving.servers}
    if not place.models.startswith("/"):
        volumes[place.models] = None
    services = {server.name: _service(server, place, serving.restart) for server in serving.servers}
    return _yaml({"name": serving.recipe, "services": services, "volumes": volumes})


def _service(server: Server, place: Place, restart: str) -> dict[str, Any]:
    gpu = {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
    return {
        "image": place.image,
        "command": list(server.command),
        **({"depends_on": {server.after: {"condition": "service_healthy"}}} if server.after else {}),
        "ports": [f"{place.listen}:{server.published}:{PORT}"],
        "environment": ["HF_TOKEN", *(f"{name}={value}" for name, value in server.env)],
        "volumes": [f"{place.models}:{MODELS}", f"{server.name}-cache:{CACHE}"],
        "shm_size": f"{SHM_GIB}gb",
        "deploy": {"resources": {"reservations": {"devices": [gpu]}}},
        "healthcheck": {
            "test": ["CMD", *HEALTHY],
            "interval": f"{_PROBE_S}s",
            "timeout": f"{_PROBE_S}s",
            "start_period": f"{START_S}s",
        },
        "stop_grace_period": f"{STOP_S}s",
        "restart": restart,
    }


def kubernetes_manifests(serving: Serving, place: Place) -> str:
    """Manifests for `kubectl apply`: a Deployment per lane, all behind one Service of the recipe's name."""
    texts = [_HEAD.format(lanes=len(serving.servers))] if len(serving.servers) > 1 else []
    return "".join([*texts, "---\n".join(_yaml(document) for document in _documents(serving, place))])


# The documents themselves hold no comments: they are written from values.
_HEAD = """\
# Lanes are Deployments: `kubectl scale deployment/NAME --replicas 0` takes one out, `1` brings it back, and the Service
# of the recipe's name leads to those that are up. A lane waits for the one before it while that one starts.
# {lanes} pods share one GPU: its device plugin has to offer it {lanes} times (timeSlicing, replicas: {lanes}).
"""


def _documents(serving: Serving, place: Place) -> Iterator[dict[str, Any]]:
    # Not `vllm`: Kubernetes would set VLLM_PORT=tcp://… in every pod, and vLLM reads that variable.
    waited_for = {server.after for server in serving.servers}
    everything = {"app.kubernetes.io/part-of": serving.recipe}
    if not place.models.startswith("/"):
        yield _claim(place.models, everything, _MODELS_GIB)
    yield _port_of(serving.recipe, everything, everything)
    for server in serving.servers:
        own = {**everything, "app.kubernetes.io/instance": server.name}
        yield _claim(f"{server.name}-cache", own, _CACHE_GIB)
        if len(serving.servers) > 1:
            yield _port_of(server.name, own, own)
        if server.name in waited_for:
            yield _port_of(f"{server.name}-pods", own, own, clusterIP="None", publishNotReadyAddresses=True)
        yield _deployment(server, place, own)


def _claim(name: str, labels: Mapping[str, str], size_gib: int) -> dict[str, Any]:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": f"{size_gib}Gi"}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": _metadata(name, labels), "spec": spec}


def _port_of(name: str, labels: Mapping[str, str], selector: Mapping[str, str], **more: Any) -> dict[str, Any]:
    ports = [{"name": "http", "port": PORT, "targetPort": "http"}]
    spec = {"selector": dict(selector), "ports": ports, **more}
    return {"apiVersion": "v1", "kind": "Service", "metadata": _metadata(name, labels), "spec": spec}


def _deployment(server: Server, place: Place, labels: Mapping[str, str]) -> dict[str, Any]:
    claim = {"persistentVolumeClaim": {"claimName": place.models}}
    folder = {"hostPath": {"path": place.models, "type": "Directory"}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(server.name, labels),
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},  # two of them would not fit into the memory
            "progressDeadlineSeconds": 2 * START_S,
            "selector": {"matchLabels": dict(labels)},
            "template": {
                "metadata": {"labels": dict(labels)},
                "spec": {
                    "nodeSelector": {"kubernetes.io/arch": "arm64"},
                    "enableServiceLinks": False,  # their variables could begin with VLLM_
                    "automountServiceAccountToken": False,
                    "terminationGracePeriodSeconds": STOP_S,
                    "securityContext": {"fsGroup": _GROUP, "fsGroupChangePolicy": "OnRootMismatch"},
                    **({"initContainers": [_waiting(server, place)]} if server.after else {}),
                    "containers": [_container(server, place)],
                    "volumes": [
                        {"name": "models", **(folder if place.models.startswith("/") else claim)},
                        {"name": "cache", "persistentVolumeClaim": {"claimName": f"{server.name}-cache"}},
                        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{SHM_GIB}Gi"}},
                    ],
                },
            },
        },
    }


def _waiting(server: Server, place: Place) -> dict[str, Any]:
    return {
        "name": "wait-for-the-lane-before",
        "image": place.image,
        "command": ["python3", "-c", _WAIT, f"{server.after}-pods"],
        "securityContext": _CONFINED,
    }


def _container(server: Server, place: Place) -> dict[str, Any]:
    token = {"secretKeyRef": {"name": "hf-token", "key": "token", "optional": True}}
    probe = {"httpGet": {"path": "/health", "port": "http"}, "timeoutSeconds": _PROBE_S}
    return {
        "name": "vllm",
        "image": place.image,
        "args": list(server.command),  # `command` would replace the image's entry point
        "env": [
            {"name": "HF_TOKEN", "valueFrom": token},
            *({"name": name, "value": value} for name, value in server.env),
        ],
        "ports": [{"name": "http", "containerPort": PORT}],
        "resources": {
            "requests": {"memory": f"{math.ceil(server.memory_gib)}Gi"},  # so that the node is not promised twice
            "limits": {"nvidia.com/gpu": 1},
        },
        "startupProbe": {**probe, "periodSeconds": _PROBE_S, "failureThreshold": START_S // _PROBE_S},
        "readinessProbe": {**probe, "periodSeconds": _PROBE_S},
        "livenessProbe": {**probe, "periodSeconds": 3 * _PROBE_S, "failureThreshold": 6},
        "securityContext": _CONFINED,
        "volumeMounts": [
            {"name": "models", "mountPath": MODELS},
            {"name": "cache", "mountPath": CACHE},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }


_CONFINED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


def _metadata(name: str, labels: Mapping[str, str]) -> dict[str, Any]:
    return {"name": name, "labels": dict(labels)}


class _Dumper(yaml.SafeDumper):
    """Without anchors, lists indented, texts of several lines as they are, and nothing for nothing."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, indentless=False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)
_Dumper.add_representer(type(None), lambda dumper, _: dumper.represent_scalar("tag:yaml.org,2002:null", ""))


def _yaml(document: Any) -> str:
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=1000, allow_unicode=True)
