"""The printed forms, each taken by what takes it for real: a shell, a YAML reader, systemd, a running server."""

from __future__ import annotations

import http.server
import json
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from recipe_values import DOCKER, IMAGE, PODMAN, lanes, single

from spark_images.errors import UsageError
from spark_images.recipe import render
from spark_images.recipes.commands import shell_script, systemd_units
from spark_images.recipes.manifests import compose_file, kubernetes_manifests
from spark_images.recipes.server import HEALTHY, PORT, Place, Serving

LOG = '#!/bin/sh\npython3 -c "import json, sys; print(json.dumps(sys.argv[1:]))" "$@" >> "$LOG"\n'


def ran(tmp_path: Path, script: str, engine: str) -> list[list[str]]:
    """What a shell runs of a script: the words of each call of the engine."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / engine).write_text(LOG)
    (tmp_path / "bin" / engine).chmod(0o755)
    log = tmp_path / "log"
    env = {"PATH": f"{tmp_path}/bin:{Path(sys.executable).parent}:/usr/bin:/bin", "LOG": str(log)}
    subprocess.run(["/bin/sh", "-c", script], env=env, check=True, timeout=30)
    return [json.loads(line) for line in log.read_text().splitlines()]


def unfolded(script: str) -> str:
    """With each command on one line; shlex does not know folded ones."""
    return script.replace("\\\n", "")


def documents(serving: Serving, place: Place = DOCKER) -> dict[tuple[str, str], dict[str, Any]]:
    """Every manifest by kind and name."""
    found = list(yaml.safe_load_all(kubernetes_manifests(serving, place)))
    assert len({(one["kind"], one["metadata"]["name"]) for one in found}) == len(found)
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


def container(document: dict[str, Any]) -> dict[str, Any]:
    (only,) = document["spec"]["template"]["spec"]["containers"]
    assert isinstance(only, dict)
    return only


def test_docker_command_reaches_the_engine_word_by_word(tmp_path: Path) -> None:
    script = shell_script(single(), DOCKER)

    (call,) = ran(tmp_path, script, "docker")

    (server,) = single().servers
    assert ["docker", *call] == shlex.split(unfolded(script))
    assert call[call.index(IMAGE) + 1 :] == list(server.command)
    options = call[: call.index(IMAGE)]
    assert {options[at + 1] for at, word in enumerate(options) if word == "--env"} == {
        "HF_TOKEN",
        *(f"{name}={value}" for name, value in server.env),
    }
    assert options[options.index("--gpus") + 1] == "all"
    assert options[options.index("--publish") + 1] == "127.0.0.1:8000:8000"


def test_podman_gets_the_gpu_and_the_folder_of_models_in_its_own_way(tmp_path: Path) -> None:
    (call,) = ran(tmp_path, shell_script(single(), PODMAN), "podman")

    assert "--gpus" not in call
    assert call[call.index("--device") + 1] == "nvidia.com/gpu=all"
    assert call[call.index("--volume") + 1] == "/srv/models:/models"
    assert call[call.index("--publish") + 1] == "0.0.0.0:8000:8000"


def test_second_lane_is_run_when_the_first_answers(tmp_path: Path) -> None:
    calls = ran(tmp_path, shell_script(lanes(), DOCKER), "docker")

    assert [call[0] for call in calls] == ["run", "exec", "run"]
    assert calls[1] == ["exec", "both-one", *HEALTHY]


def test_compose_file_has_a_service_per_lane_that_waits_for_the_one_before() -> None:
    data = yaml.safe_load(compose_file(lanes(), DOCKER))

    one, two = data["services"]["both-one"], data["services"]["both-two"]
    assert "depends_on" not in one
    assert two["depends_on"] == {"both-one": {"condition": "service_healthy"}}
    assert one["healthcheck"]["test"] == ["CMD", *HEALTHY]
    assert tuple(one["command"]) == lanes().servers[0].command
    assert one["image"] == IMAGE
    assert data["volumes"] == {"both-one-cache": None, "both-two-cache": None, "huggingface": None}
    assert one["deploy"]["resources"]["reservations"]["devices"][0]["capabilities"] == ["gpu"]


def test_folder_of_models_is_no_volume_of_compose() -> None:
    data = yaml.safe_load(compose_file(single(), PODMAN))

    assert list(data["volumes"]) == ["large-cache"]
    assert data["services"]["large"]["volumes"][0] == "/srv/models:/models"


def test_one_service_leads_to_all_lanes_and_one_to_each() -> None:
    found = documents(lanes())
    pods = {
        name: one["spec"]["template"]["metadata"]["labels"]
        for (kind, name), one in found.items()
        if kind == "Deployment"
    }

    def leads_to(service: str) -> set[str]:
        selector = found["Service", service]["spec"]["selector"]
        return {name for name, labels in pods.items() if selector.items() <= labels.items()}

    assert leads_to("both") == {"both-one", "both-two"}
    assert leads_to("both-one") == leads_to("both-one-pods") == {"both-one"}
    assert leads_to("both-two") == {"both-two"}


def test_deployment_has_a_gpu_volumes_and_an_hour_to_start() -> None:
    deployment = documents(single())["Deployment", "large"]
    spec, only = deployment["spec"]["template"]["spec"], container(deployment)

    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    assert only["resources"]["limits"] == {"nvidia.com/gpu": 1}
    assert only["startupProbe"]["periodSeconds"] * only["startupProbe"]["failureThreshold"] == 3600
    mounts = {one["name"]: one["mountPath"] for one in only["volumeMounts"]}
    assert mounts == {"models": "/models", "cache": "/cache", "shm": "/dev/shm"}
    assert [one["name"] for one in spec["volumes"]] == list(mounts)
    assert {"name": "CUDA_CACHE_PATH", "value": "/cache/cuda"} in only["env"]
    assert all(isinstance(one.get("value", ""), str) for one in only["env"])


def test_entry_point_of_the_image_stays() -> None:
    only = container(documents(single())["Deployment", "large"])

    assert "command" not in only
    assert tuple(only["args"]) == single().servers[0].command


def test_selectors_names_and_claims_belong_together() -> None:
    found = documents(lanes())
    for (kind, name), one in found.items():
        assert len(name) <= 63
        if kind != "Deployment":
            continue
        spec = one["spec"]["template"]["spec"]
        assert one["spec"]["selector"]["matchLabels"] == one["spec"]["template"]["metadata"]["labels"]
        claims = [volume["persistentVolumeClaim"] for volume in spec["volumes"] if "persistentVolumeClaim" in volume]
        assert all(("PersistentVolumeClaim", claim["claimName"]) in found for claim in claims)


def test_folder_of_models_is_that_of_the_host() -> None:
    found = documents(single(), PODMAN)

    volumes = found["Deployment", "large"]["spec"]["template"]["spec"]["volumes"]
    assert volumes[0] == {"name": "models", "hostPath": {"path": "/srv/models", "type": "Directory"}}
    assert ("PersistentVolumeClaim", "/srv/models") not in found


def test_no_service_is_called_as_a_variable_of_vllm_would_be() -> None:
    """Kubernetes sets VLLM_PORT=tcp://… in every pod beside a Service `vllm`, and vLLM reads VLLM_PORT."""
    for deployment in (one for (kind, _), one in documents(lanes()).items() if kind == "Deployment"):
        assert deployment["spec"]["template"]["spec"]["enableServiceLinks"] is False


def waiting() -> list[str]:
    """The command of the container in which the second lane waits, on names and at a pace of this machine."""
    spec = documents(lanes())["Deployment", "both-two"]["spec"]["template"]["spec"]
    (init,) = spec["initContainers"]
    assert init["image"] == IMAGE
    *command, name = init["command"]
    assert name == "both-one-pods"
    return [sys.executable, *command[1:-1], command[-1].replace("sleep(10)", "sleep(0.05)")]


@pytest.fixture
def health() -> Iterator[tuple[int, list[int]]]:
    """A server that answers with each status once, and with the last for good."""
    statuses = [503, 503, 200]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(statuses.pop(0) if len(statuses) > 1 else statuses[0])
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port, statuses
        server.shutdown()


def test_lane_waits_until_the_one_before_is_up(health: tuple[int, list[int]]) -> None:
    port, statuses = health
    command = [word.replace(str(PORT), str(port)) for word in waiting()]

    ended = subprocess.run([*command, "127.0.0.1"], capture_output=True, text=True, timeout=20, check=True)

    assert statuses == [200]
    assert ended.stdout.splitlines()[-1] == "127.0.0.1: up"
    assert "503" in ended.stdout


def test_lane_does_not_wait_for_one_that_is_scaled_to_nothing() -> None:
    ended = subprocess.run([*waiting(), "absent.invalid"], capture_output=True, text=True, timeout=30, check=True)

    assert ended.stdout.splitlines() == ["absent.invalid: no pod"] * 6


def test_unit_runs_the_same_words_as_the_shell() -> None:
    ((name, text),) = systemd_units(single(), DOCKER)

    (line,) = (line for line in text.splitlines() if line.startswith("ExecStart="))
    words = shlex.split(line.removeprefix("ExecStart=").replace("%%", "%").replace("$$", "$"))
    run = shlex.split(unfolded(shell_script(single(), DOCKER)))
    detached = ("--detach", "--restart", "unless-stopped")
    assert name == "large.service"
    assert words[0] == "/usr/bin/docker"
    assert [word for word in words[1:] if word != "--rm"] == [word for word in run[1:] if word not in detached]


def test_unit_follows_the_lane_before() -> None:
    (_, one), (_, two) = systemd_units(lanes(), DOCKER)

    assert "both-one.service" not in one
    assert "After=network-online.target docker.service both-one.service" in two.splitlines()
    assert "TimeoutStartSec=3600" in one.splitlines()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    paths = []
    for name, text in systemd_units(lanes(), PODMAN):
        paths.append(tmp_path / name)
        paths[-1].write_text(text.replace("/usr/bin/podman", "/bin/true"))  # it looks whether the program is there

    ended = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, paths)], capture_output=True, text=True, timeout=60
    )

    said = [line for line in ended.stderr.splitlines() if str(tmp_path) in line or "both-" in line]
    assert said == []


def test_form_that_there_is_not_is_refused() -> None:
    with pytest.raises(UsageError, match="`helm` is no form"):
        render(single(), DOCKER, "helm")
