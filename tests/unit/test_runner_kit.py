"""ci/runner: every file is what its reader accepts, and says the same as the others and as the pipeline."""

from __future__ import annotations

import configparser
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from spark_images.cli import _parser
from spark_images.jobs import parse_size
from spark_images.memory import FLOOR_PART, reserve_bytes
from spark_images.project import Project
from spark_images.smoke_commands import FIRST
from spark_images.units import GIB

ROOT = Path(__file__).parents[2]
KIT = ROOT / "ci/runner"
MANIFESTS = sorted(KIT.glob("kubernetes/**/*.yaml"))
SPARK_BYTES = 119 * GIB  # MemTotal of a DGX Spark
KUBERNETES = ("1.30.0", "1.37.0")  # the oldest and newest of those that people run, and that the package has
PATH = f"{os.environ.get('PATH', '')}:{os.environ.get('GO_TOOLS_DIR', '/opt/go-tools')}/bin"
# What Gitea Runner 3.5 knows, of that which this file may use (`gitea-runner config generate`).
RUNNER_OPTIONS = {
    "log": {"level"},
    "runner": {"file", "capacity", "envs", "env_file", "timeout", "shutdown_timeout", "labels"},
    "cache": {"enabled"},
    "container": {"valid_volumes", "docker_host"},
    "host": {"workdir_parent"},
}


def documents(path: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def of_kind(path: Path, kind: str) -> dict[str, Any]:
    return next(document for document in documents(path) if document["kind"] == kind)


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in MANIFESTS:
        for document in documents(path):
            if "template" in document.get("spec", {}) and document["kind"] != "ExternalSecret":
                yield f"{path.name}: {document['kind']}", document["spec"]["template"]["spec"]


def program(name: str) -> str:
    found = shutil.which(name, path=PATH)
    if found is None:
        pytest.skip(f"no `{name}` here")
    return found


def unit() -> configparser.ConfigParser:
    read = configparser.ConfigParser(strict=True, interpolation=None)
    read.optionxform = str  # type: ignore[assignment,method-assign]
    read.read_string((KIT / "systemd/gitea-runner.service").read_text())
    return read


@pytest.fixture(scope="module")
def config() -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((KIT / "config.yaml").read_text())
    return read


@pytest.fixture(scope="module")
def schemas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package's strict schemas of the kinds that we use, in the form that kubeconform follows: by file name."""
    folder = tmp_path_factory.mktemp("schemas")
    kinds = {
        (document["kind"].lower(), document["apiVersion"].replace(".k8s.io", "").replace(".authorization", ""))
        for path in MANIFESTS
        for document in documents(path)
    }
    names = {f"{kind}-{version.replace('/', '-')}" for kind, version in kinds if "external" not in version}
    for version in KUBERNETES:
        (folder / f"v{version}").mkdir()
        source = files(kubernetes_validate) / "kubernetes-json-schema" / f"v{version}-local-strict"
        for name in ("_definitions", *sorted(names)):
            schema = json.loads(
                (source / f"{name}.json").read_text().replace("/api/_definitions.json", "_definitions.json")
            )
            schema.pop("$id", None)  # an address on the web, from which the definitions would be looked for
            (folder / f"v{version}" / f"{name}.json").write_text(json.dumps(schema))
    return folder


def kubeconform(schemas: Path, version: str, *paths: Path) -> subprocess.CompletedProcess[str]:
    location = f"{schemas}/{{{{.NormalizedKubernetesVersion}}}}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"
    command = [program("kubeconform"), "-strict", "-summary", "-skip", "ExternalSecret", "-kubernetes-version", version]
    return subprocess.run([*command, "-schema-location", location, *paths], text=True, capture_output=True)


@pytest.mark.parametrize("version", KUBERNETES)
def test_kubeconform_finds_every_manifest_valid(schemas: Path, version: str) -> None:
    checked = kubeconform(schemas, version, *MANIFESTS)
    assert checked.returncode == 0, checked.stdout
    assert "Invalid: 0, Errors: 0" in checked.stdout


def test_kubeconform_refuses_a_manifest_with_a_key_that_kubernetes_does_not_know(tmp_path: Path, schemas: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text((KIT / "kubernetes/runner.yaml").read_text().replace("nodeSelector:", "nodeSelektor:"))
    checked = kubeconform(schemas, KUBERNETES[-1], wrong)
    assert checked.returncode == 1
    assert "'nodeSelektor' not allowed" in checked.stdout


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_every_manifest_fits_the_schema_of_its_kind(path: Path) -> None:
    for document in documents(path):
        if document["kind"] != "ExternalSecret":
            kubernetes_validate.validate(document, "1.37", strict=True)


def test_external_secrets_hold_the_keys_of_their_api() -> None:
    """A check of our own in place of that API's schema, which the tests do not have; the keys are those of v1."""
    for document in documents(KIT / "kubernetes/external-secrets/secrets.yaml"):
        assert (document["apiVersion"], document["kind"]) == ("external-secrets.io/v1", "ExternalSecret")
        spec = document["spec"]
        assert set(spec) == {"refreshInterval", "secretStoreRef", "target", "data"}
        assert set(spec["secretStoreRef"]) == {"kind", "name"}
        assert set(spec["target"]) <= {"name", "creationPolicy", "template"}
        assert all(set(entry) == {"secretKey", "remoteRef"} for entry in spec["data"])
        assert all(set(entry["remoteRef"]) == {"key", "property"} for entry in spec["data"])


def test_external_secrets_make_the_secrets_that_the_pod_mounts() -> None:
    made = {
        document["spec"]["target"]["name"] for document in documents(KIT / "kubernetes/external-secrets/secrets.yaml")
    }
    spec = of_kind(KIT / "kubernetes/runner.yaml", "Deployment")["spec"]["template"]["spec"]
    mounted = {volume["secret"]["secretName"] for volume in spec["volumes"] if "secret" in volume}
    assert made == mounted - {"buildkit-client"}  # which ../buildkit-certs makes


@pytest.mark.parametrize("name", ["gitea", "gitea-runner"])
def test_systemd_accepts_the_unit(tmp_path: Path, name: str) -> None:
    text = (KIT / f"systemd/{name}.service").read_text()
    there = tmp_path / f"{name}.service"
    there.write_text(text.replace(f"/usr/local/bin/{name}", "/bin/true"))  # not installed where tests run
    command = [program("systemd-analyze"), "verify", "--recursive-errors=no", "--man=no", str(there)]
    checked = subprocess.run(
        command, text=True, capture_output=True, env={**os.environ, "SYSTEMD_LOG_LEVEL": "warning"}
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_systemd_says_what_it_does_not_know_in_a_unit(tmp_path: Path) -> None:
    there = tmp_path / "gitea-runner.service"
    there.write_text("[Service]\nExecStart=/bin/true\nMemoryMaximum=1G\n")
    command = [program("systemd-analyze"), "verify", "--recursive-errors=no", "--man=no", str(there)]
    assert "MemoryMaximum" in subprocess.run(command, text=True, capture_output=True).stderr


def test_the_unit_leaves_the_pipelines_reserve_to_a_spark() -> None:
    service = unit()["Service"]
    high, most = (parse_size(service[key], option=key) for key in ("MemoryHigh", "MemoryMax"))
    reserve = reserve_bytes(SPARK_BYTES, unified=True)
    assert high < most <= SPARK_BYTES - reserve - 3 * GIB
    text = (KIT / "systemd/gitea-runner.service").read_text()
    assert f"reserve of {reserve // GIB} GiB" in text.replace("\n# ", " ")
    assert f"less than {reserve // FLOOR_PART // GIB} GiB" in text


def test_every_way_to_run_has_the_units_ceilings() -> None:
    service = unit()["Service"]
    compose = yaml.safe_load((KIT / "docker/compose.yaml").read_text())["services"]["runner"]
    spec = of_kind(KIT / "kubernetes/runner.yaml", "Deployment")["spec"]["template"]["spec"]
    limit = {
        one["name"]: one["resources"]["limits"]["memory"] for one in (*spec["initContainers"], *spec["containers"])
    }
    high, most = (parse_size(service[key], option=key) for key in ("MemoryHigh", "MemoryMax"))
    assert parse_size(compose["mem_limit"], option="mem_limit") == high
    assert compose["memswap_limit"] == compose["mem_limit"]  # no swap
    assert parse_size(f"{limit['runner']}b".lower(), option="limits") == high
    assert parse_size(f"{limit['docker']}b".lower(), option="limits") == most
    assert str(compose["oom_score_adj"]) == service["OOMScoreAdjust"]


def test_the_runner_knows_every_option_of_its_configuration(config: dict[str, Any]) -> None:
    assert {section: set(values) - RUNNER_OPTIONS[section] for section, values in config.items()} == {
        section: set() for section in config
    }


def minutes(text: str) -> int:
    """Of "15m", "21h", "20min"."""
    number = int("".join(letter for letter in text if letter.isdigit()))
    return number * 60 if text.rstrip("our").endswith("h") else number


def test_whoever_stops_a_runner_waits_longer_than_the_runner_does(config: dict[str, Any]) -> None:
    waits = minutes(config["runner"]["shutdown_timeout"])
    compose = yaml.safe_load((KIT / "docker/compose.yaml").read_text())["services"]["runner"]
    spec = of_kind(KIT / "kubernetes/runner.yaml", "Deployment")["spec"]["template"]["spec"]
    assert minutes(unit()["Service"]["TimeoutStopSec"]) > waits
    assert minutes(compose["stop_grace_period"]) > waits
    assert spec["terminationGracePeriodSeconds"] > waits * 60


def test_one_job_at_a_time_and_no_time_limit_that_a_cold_build_meets(config: dict[str, Any]) -> None:
    assert config["runner"]["capacity"] == 1
    limit = minutes(config["runner"]["timeout"])
    assert (
        3 * 60 < minutes(_parser().parse_args(["ci-job", "checks"]).timeout) < limit
    )  # whoever can say why it ended, ends first
    for text in (ROOT / "docs/runner.md", KIT / "gitea.ini"):
        assert f"ENDLESS_TASK_TIMEOUT = {limit // 60 + 1}h" in text.read_text()


def test_every_kind_keeps_its_state_at_one_path(config: dict[str, Any]) -> None:
    state = "/var/lib/gitea-runner"
    paths = [config["runner"]["file"], config["host"]["workdir_parent"], *config["runner"]["envs"].values()]
    assert all(path.startswith(state) for path in paths)
    assert unit()["Service"]["WorkingDirectory"] == state
    compose = yaml.safe_load((KIT / "docker/compose.yaml").read_text())["services"]["runner"]
    assert f"{state}:{state}" in compose["volumes"]
    spec = of_kind(KIT / "kubernetes/runner.yaml", "Deployment")["spec"]["template"]["spec"]
    for container in (*spec["initContainers"], *spec["containers"]):
        assert state in [mount["mountPath"] for mount in container["volumeMounts"]], container["name"]


def test_no_pod_has_a_token_for_kubernetes_and_each_container_has_a_memory_limit() -> None:
    found = dict(pods())
    assert len(found) == 3
    for name, spec in found.items():
        assert spec["automountServiceAccountToken"] is False, name
        assert spec["nodeSelector"]["kubernetes.io/arch"] == "arm64", name
        assert "fsGroup" not in spec.get("securityContext", {}), name  # image layers would get another group and mode
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            assert "memory" in container["resources"]["limits"], (name, container["name"])


def test_only_the_daemons_are_privileged_and_only_registering_sees_the_token() -> None:
    privileged, sees = set(), set()
    for _, spec in pods():
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            if container.get("securityContext", {}).get("privileged"):
                privileged.add(container["name"])
            if "token" in [mount["name"] for mount in container["volumeMounts"]]:
                sees.add(container["name"])
    assert privileged == {"docker", "buildkitd"}
    assert sees == {"register"}


def test_buildkit_in_a_cluster_is_the_pinned_one() -> None:
    spec = of_kind(KIT / "kubernetes/buildkit/buildkitd.yaml", "StatefulSet")["spec"]["template"]["spec"]
    assert spec["containers"][0]["image"] == Project(ROOT).buildkit_image({})


def test_buildkit_in_a_cluster_keeps_the_compile_cache_as_ours_does() -> None:
    from tomllib import loads

    from spark_images.engine import builder

    there = of_kind(KIT / "kubernetes/buildkit/buildkitd.yaml", "ConfigMap")["data"]["buildkitd.toml"]
    assert loads(there)["worker"]["oci"] == loads(builder._CONFIG)["worker"]["oci"]


def test_the_smoke_job_runs_every_check_of_the_image_after_the_device() -> None:
    container = of_kind(KIT / "kubernetes/smoke/job.yaml", "Job")["spec"]["template"]["spec"]["containers"][0]
    words = container["args"][0].partition(" in ")[2].partition(";")[0].split()
    target = Project(ROOT).target("gb10")
    assert words[0] == FIRST
    assert set(words[1:]) == set(Project(ROOT).image("vllm").smoke)
    assert f"--compute-capability {target.compute_capability}" in container["args"][0]


def test_every_image_has_a_version() -> None:
    named = [
        line.split()[1] for line in (KIT / "docker/Dockerfile").read_text().splitlines() if line.startswith("FROM ")
    ]
    named += [one["image"] for _, spec in pods() for one in (*spec.get("initContainers", ()), *spec["containers"])]
    named.append(yaml.safe_load((KIT / "docker/compose.yaml").read_text())["services"]["runner"]["image"])
    for image in named:
        tag = image.partition("@")[0].rpartition("/")[2].partition(":")[2]
        assert tag not in ("", "latest"), image


def test_docker_compose_accepts_its_file_and_asks_for_what_it_lacks() -> None:
    docker = program("docker")
    command = [docker, "compose", "-f", str(KIT / "docker/compose.yaml"), "config", "--quiet"]
    if subprocess.run([docker, "compose", "version"], capture_output=True).returncode != 0:
        pytest.skip("this docker has no compose")
    env = {**os.environ, "GITEA_INSTANCE_URL": "https://gitea.example.org", "DOCKER_GID": "999"}
    checked = subprocess.run(command, env=env, text=True, capture_output=True)
    assert (checked.returncode, checked.stderr) == (0, "")
    del env["DOCKER_GID"]
    assert "getent group docker" in subprocess.run(command, env=env, text=True, capture_output=True).stderr


STAND_IN = """\
#!/bin/sh
echo "$@" >>"$STATE/calls"
case " $* " in *" register "*) echo registered >.runner ;; esac
"""


@pytest.fixture
def entry(tmp_path: Path) -> Any:
    """Runs ci/runner/docker/entry with a stand-in of the runner, below a folder; its calls."""
    (tmp_path / "bin").mkdir()
    runner = tmp_path / "bin/gitea-runner"
    runner.write_text(STAND_IN)
    runner.chmod(0o755)
    (tmp_path / "token").write_text("a-token\n")
    script = (KIT / "docker/entry").read_text().replace("/var/lib/gitea-runner", str(tmp_path / "state"))
    env = {
        "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin",
        "STATE": str(tmp_path),
        "GITEA_INSTANCE_URL": "https://gitea.example.org",
        "GITEA_RUNNER_NAME": "spark",
        "GITEA_RUNNER_TOKEN_FILE": str(tmp_path / "token"),
    }

    def run(*arguments: str) -> list[str]:
        subprocess.run(["/bin/sh", "-c", script, "entry", *arguments], env=env, check=True)
        calls = (tmp_path / "calls").read_text().splitlines()
        (tmp_path / "calls").unlink()
        return calls

    return run


REGISTER = (
    "--config /etc/gitea-runner/config.yaml register --no-interactive "
    "--instance https://gitea.example.org --name spark --token a-token"
)
DAEMON = "--config /etc/gitea-runner/config.yaml daemon"


def test_a_container_registers_once(entry: Any) -> None:
    assert entry() == [REGISTER, DAEMON]
    assert entry() == [DAEMON]


def test_a_pod_registers_in_a_container_of_its_own(entry: Any) -> None:
    assert entry("register") == [REGISTER]
    assert entry() == [DAEMON]
