"""Kubernetes manifests: strict schemas, command lines and settings that Freshet takes, and a run of their processes."""

import json
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import typer
import yaml

from infra.base.process import Stop
from infra.base.wire import write_curve
from infra.cli.main import app
from infra.run.settings import Settings, check_environment, load_settings
from ingest.config import StreamConfig
from ingest.kafka.config import KafkaConfig
from ingest.main import ProducerJob, run_producer
from tests.api.serving import Served
from tests.end_to_end.processes import WAIT_SECONDS, wait_until
from tests.infra.deploy.pods import KUBERNETES, PLAIN, Manifest, Node, Pod, pod_templates, pods_of, read_manifests

VERSION = "1.34"
CHART = KUBERNETES / "chart"
RAY = {name: read_manifests((KUBERNETES / "ray" / name).read_text()) for name in ("cluster.yaml", "job.yaml")}
MANIFESTS = read_manifests(PLAIN.read_text())
KUBERAY = json.loads((Path(__file__).parent / "kuberay.json").read_text())
TOML = MANIFESTS[[each["kind"] for each in MANIFESTS].index("ConfigMap")]["data"]["freshet.toml"]
WORKERS = ("worker-0", "worker-1")
SAMPLES = 64 * 20
PLACES = (("freshet-dispatcher-0", 8000), ("freshet-serve-0", 8100))
NEEDS_HELM = pytest.mark.skipif(shutil.which("helm") is None, reason="needs helm")


def check(manifest: Manifest) -> None:
    """Raises ValidationError for what Kubernetes or KubeRay would refuse, and for fields that they would drop."""
    if manifest["kind"] in KUBERAY:
        jsonschema.validate(manifest, KUBERAY[manifest["kind"]])
        for template in pod_templates(manifest):
            check({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "any"}, "template": template})
    else:
        kubernetes_validate.validate(manifest, VERSION, strict=True)


def secrets(keys: Path | None = None, database: str = "postgresql://freshet@postgres/freshet") -> Any:
    files = {} if keys is None else {file.name: file.read_text() for file in keys.iterdir()}
    storage = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}
    names = ("freshet-server-keys", "freshet-worker-keys")
    return {**dict.fromkeys(names, files), "freshet-database": {"url": database}, "freshet-storage": storage}


PODS = pods_of(MANIFESTS, secrets())
CONTAINERS = [(pod, container) for pod in PODS for container in pod.spec["containers"]]
NAMES = [f"{pod.name}/{container['name']}" for pod, container in CONTAINERS]


# ── what the files say ────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    "manifest", [*MANIFESTS, *RAY["cluster.yaml"], *RAY["job.yaml"]], ids=lambda each: each["kind"]
)
def test_every_manifest_fits_its_schema(manifest: Manifest) -> None:
    check(manifest)


FIRST = ("template", "spec", "containers", 0)
MISSPELT = [
    ("StatefulSet", ("spec", "servicename")),
    ("StatefulSet", ("spec", *FIRST, "livenessProbe", "httpGet", "paths")),
    ("Deployment", ("spec", *FIRST, "securityContext", "readOnlyRootFileSystem")),
    ("PodDisruptionBudget", ("spec", "maxUnavailble")),
    ("RayCluster", ("spec", "headGroupSpec", "rayStartParam")),
    ("RayCluster", ("spec", "workerGroupSpecs", 1, *FIRST, "resource")),
    ("RayJob", ("spec", "rayClusterSpec", "workerGroupSpecs", 0, "maxReplica")),
    ("RayJob", ("spec", "backoffLimits")),
]


@pytest.mark.parametrize(("kind", "path"), MISSPELT)
def test_a_misspelt_field_is_refused_wherever_it_is(kind: str, path: tuple[Any, ...]) -> None:
    everything = [*MANIFESTS, *RAY["cluster.yaml"], *RAY["job.yaml"]]
    manifest = deepcopy(next(each for each in everything if each["kind"] == kind))
    place: Any = manifest
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = {}
    with pytest.raises(jsonschema.ValidationError, match="unexpected"):
        check(manifest)


def parsed(words: list[str]) -> dict[str, Any]:
    """The arguments of a command line, as the command would get them; fails if it would refuse them."""
    assert words[0] == "freshet"
    command: Any = typer.main.get_command(app).commands[words[1]]  # type: ignore[attr-defined]
    values: dict[str, Any] = command.make_context(words[1], words[2:]).params
    return values


def settings_of(variables: dict[str, str], toml: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    given = {name: value for name, value in variables.items() if name.startswith("FRESHET_")}
    check_environment(given)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    (folder / "freshet.toml").write_text(toml)
    return load_settings(folder / "freshet.toml")


@pytest.mark.parametrize(("pod", "container"), CONTAINERS, ids=NAMES)
def test_a_container_s_command_and_settings_are_those_of_freshet(
    pod: Pod, container: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = pod.words(container)
    assert not any("$(" in word for word in words), words
    assert str(parsed(words)["config"]) == "/etc/freshet/settings/freshet.toml"
    settings = settings_of(pod.variables(container), TOML, tmp_path, monkeypatch)
    assert (settings.ps.shards, settings.dispatch.workers) == (2, 2)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert settings.telemetry.metrics_port in ports.values()


def test_ports_and_volumes_that_are_used_are_declared() -> None:
    for pod, container in CONTAINERS:
        ports = {port["name"] for port in container["ports"]}
        probes = [container[name]["httpGet"]["port"] for name in container if name.endswith("Probe")]
        assert probes
        assert set(probes) <= ports
        claims = {claim["metadata"]["name"] for claim in pod.workload["spec"].get("volumeClaimTemplates", ())}
        volumes = {volume["name"] for volume in pod.spec["volumes"]} | claims
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes


def test_every_service_and_budget_selects_pods_that_there_are() -> None:
    labels = [pod.workload["spec"]["template"]["metadata"]["labels"] for pod in PODS]
    chosen = [each["spec"]["selector"] for each in MANIFESTS if each["kind"] in ("Service", "PodDisruptionBudget")]
    assert len(chosen) == 8
    for selector in chosen:
        wanted = selector.get("matchLabels", selector)
        assert any(wanted.items() <= each.items() for each in labels), selector


def test_a_worker_sees_its_own_key_and_no_credentials() -> None:
    workers = [(pod, container) for pod, container in CONTAINERS if container["name"] == "worker"]
    for pod, container in workers:
        assert not any("secretKeyRef" in each.get("valueFrom", {}) for each in container["env"])
        assert "envFrom" not in container
        (mount,) = (each for each in container["volumeMounts"] if each["name"] == "keys")
        assert mount["subPathExpr"] == "worker-$(NUMBER)"
        assert f"worker-{pod.number}" == pod.words(container)[pod.words(container).index("--name") + 1]


@pytest.mark.parametrize("kind", ["RayCluster", "RayJob"])
def test_the_command_and_settings_of_a_run_on_ray_are_those_of_freshet(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, job = RAY["cluster.yaml"][-1], RAY["job.yaml"][-1]
    supervisor = cluster["spec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]
    script = supervisor["args"][0].partition("exec ")[2] if kind == "RayCluster" else job["spec"]["entrypoint"]
    arguments = parsed(shlex.split(script))
    assert (arguments["run"], arguments["ray"]) == ("/data/runs/main", "$RAY_ADDRESS")
    variables = {each["name"]: each.get("value", "postgresql://any") for each in supervisor["env"]}
    toml = RAY["cluster.yaml"][1]["data"]["freshet.toml"]
    assert settings_of(variables, toml, tmp_path, monkeypatch).checkpoints.url == "s3://models/main"


def test_prometheus_finds_pods_by_labels_and_ports_that_they_have() -> None:
    (scrape,) = yaml.safe_load((KUBERNETES.parent / "prometheus" / "kubernetes.yml").read_text())["scrape_configs"]
    rules = {
        rule["source_labels"][0].removeprefix("__meta_kubernetes_pod_"): rule for rule in scrape["relabel_configs"]
    }
    wanted = rules["container_port_name"]["regex"].split("|")
    for pod, container in CONTAINERS:
        labels = pod.workload["spec"]["template"]["metadata"]["labels"]
        assert labels["app.kubernetes.io/name"] == rules["label_app_kubernetes_io_name"]["regex"]
        assert labels["freshet-run"] == "main"
        assert len({port["name"] for port in container["ports"]} & set(wanted)) == 1


# ── the chart ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def identity(manifest: Manifest) -> tuple[str, str]:
    return manifest["kind"], manifest["metadata"]["name"]


def template(*arguments: str) -> str:
    """What helm makes of the chart."""
    done = subprocess.run(["helm", "template", "freshet", CHART, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@NEEDS_HELM
def test_the_plain_manifests_are_the_chart_with_its_default_values() -> None:
    made = read_manifests(template())
    assert sorted(made, key=identity) == sorted(MANIFESTS, key=identity)


OTHER_VALUES = """
shards: {replicas: 5}
dispatcher: {storageClass: fast}
workers:
  - {name: edge, replicas: 2, linkGbit: 0.05, nodeSelector: {place: edge}, resources: {limits: {nvidia.com/gpu: 1}}}
  - {name: core, replicas: 3}
"""


@NEEDS_HELM
def test_the_chart_with_other_values_fits_the_schemas_and_has_every_worker(tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text(OTHER_VALUES)
    manifests = read_manifests(template("--values", str(tmp_path / "other.yaml")))
    for manifest in manifests:
        check(manifest)
    containers = [(pod, container) for pod in pods_of(manifests, secrets()) for container in pod.spec["containers"]]
    commands = [parsed(pod.words(container)) for pod, container in containers if container["name"] == "worker"]
    links = {each["name"]: each["link"] for each in commands}
    assert links == {"edge-0": 0.05, "edge-1": 0.05, "core-0": None, "core-1": None, "core-2": None}
    assert {pod.variables(container)["FRESHET_DISPATCH__WORKERS"] for pod, container in containers} == {"5"}


@NEEDS_HELM
def test_a_misspelt_value_is_refused_by_the_chart() -> None:
    done = subprocess.run(
        ["helm", "template", "freshet", CHART, "--set", "shard.replicas=3"], capture_output=True, text=True
    )
    assert done.returncode != 0
    assert "shard" in done.stderr


# ── its processes, without a cluster ──────────────────────────────────────────────────────────────────────────────────
SMALLER = {"FRESHET_STREAM__BATCH": "64", "FRESHET_STREAM__LINGER_SECONDS": "0.1", "FRESHET_MODEL__MLP": "8"}


@contextmanager
def node_at(place: Path) -> Iterator[Node]:
    """The pods of the plain manifests, with folders for the bucket and the topic, and a file for the database."""
    write_curve(place / "keys", ["server", *WORKERS])
    manifests = deepcopy(MANIFESTS)
    (config,) = (each for each in manifests if each["kind"] == "ConfigMap")
    toml = config["data"]["freshet.toml"]
    for written, here in {'"kafka"': f'"log"\nfolder = "{place}/log"', "s3://models/main": f"{place}/model"}.items():
        assert written in toml
        toml = toml.replace(written, here)
    config["data"]["freshet.toml"] = toml
    node = Node(place / "node", manifests, secrets(place / "keys", f"sqlite:///{place}/tokens.db"))
    try:
        yield node
    finally:
        for process in node.running.values():
            process.send_signal(signal.SIGTERM)
            process.wait(WAIT_SECONDS)


@pytest.mark.timeout(600)
def test_the_processes_of_the_plain_manifests_train_and_serve_and_answer_every_probe(tmp_path: Path) -> None:
    run_producer(ProducerJob(StreamConfig(folder=tmp_path / "log"), KafkaConfig(), limit=SAMPLES), Stop())
    with node_at(tmp_path) as node:
        asked = ("freshet", "token", "create", "--name", "ann", "--scope", "read", "--scope", "predict")
        token = node.run("freshet-dispatcher-0", "dispatcher", *asked)
        for pod, container in CONTAINERS:
            if pod.name != "freshet-serve-1":  # shows nothing that the first server does not show
                node.start(pod.name, container["name"], **SMALLER)
        api, server = (Served(f"http://{node.pods[pod].address}:{port}", token, "") for pod, port in PLACES)
        wait_until(lambda: node.answers(f"{api.address}/readyz"))
        wait_until(lambda: (api.get("/v1/runs").json.get("items") or [{"samples": 0}])[0]["samples"] == SAMPLES)
        wait_until(lambda: node.answers(f"{server.address}/readyz"))
        assert server.ask("POST", "/v1/predict", {"fields": {"user": "u17"}}).status == 200
        probes = node.probes()
        assert len({container for container, _ in probes}) == len(CONTAINERS) - 1
        assert [probe for probe in probes if not node.answers(probe[1])] == []
