"""Pods of Kubernetes manifests as processes of this machine, each with an address of its own and folders here."""

import os
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from tests.end_to_end.processes import ROOT, WAIT_SECONDS, environment

KUBERNETES = ROOT / "infra" / "deploy" / "kubernetes"
PLAIN = KUBERNETES / "plain.yaml"
Manifest = dict[str, Any]
VARIABLE = re.compile(r"\$\((\w+)\)")
INDEX = "metadata.labels['apps.kubernetes.io/pod-index']"


def read_manifests(text: str) -> list[Manifest]:
    return [manifest for manifest in yaml.safe_load_all(text) if manifest]


def pod_templates(manifest: Manifest) -> Iterator[Manifest]:
    """Every pod template of a manifest, however deep."""
    for name, value in manifest.items():
        if name == "template":
            yield value
        elif isinstance(value, dict):
            yield from pod_templates(value)
        elif isinstance(value, list):
            for each in value:
                if isinstance(each, dict):
                    yield from pod_templates(each)


def expand(text: str, variables: dict[str, str]) -> str:
    """$(NAME) as Kubernetes replaces it; what is not defined stays."""
    return VARIABLE.sub(lambda found: variables.get(found[1], found[0]), text)


@dataclass(frozen=True)
class Pod:
    """One pod of a workload."""

    workload: Manifest
    number: int
    address: str
    secrets: dict[str, dict[str, str]]
    """Contents of secrets by name and key."""

    @property
    def name(self) -> str:
        return f"{self.workload['metadata']['name']}-{self.number}"

    @cached_property
    def spec(self) -> Manifest:
        spec: Manifest = self.workload["spec"]["template"]["spec"]
        return spec

    def variables(self, container: Manifest) -> dict[str, str]:
        """The environment of a container, as Kubernetes makes it."""
        fields = {"status.podIP": self.address, "metadata.name": self.name, INDEX: str(self.number)}
        made: dict[str, str] = {}
        for source in container.get("envFrom", ()):
            made |= self.secrets[source["secretRef"]["name"]]
        for each in container.get("env", ()):
            origin = each.get("valueFrom", {})
            if "fieldRef" in origin:
                made[each["name"]] = fields[origin["fieldRef"]["fieldPath"]]
            elif "secretKeyRef" in origin:
                made[each["name"]] = self.secrets[origin["secretKeyRef"]["name"]][origin["secretKeyRef"]["key"]]
            else:
                made[each["name"]] = expand(each["value"], made)
        return made

    def words(self, container: Manifest) -> list[str]:
        """The command line of a container."""
        variables = self.variables(container)
        return [expand(word, variables) for word in (*container["command"], *container.get("args", ()))]


def pods_of(manifests: list[Manifest], secrets: dict[str, dict[str, str]]) -> list[Pod]:
    """Every pod of the manifests, numbered as in a StatefulSet; addresses are 127.7.0.1 and so on."""
    workloads = [each for each in manifests if each["kind"] in ("StatefulSet", "Deployment")]
    places = [(workload, number) for workload in workloads for number in range(workload["spec"]["replicas"])]
    return [
        Pod(workload, number, f"127.7.0.{place}", secrets) for place, (workload, number) in enumerate(places, start=1)
    ]


class Node:
    """Starts containers as processes. Folders of containers are folders below one place: a process is given their paths
    here in place of those in the container.
    """

    def __init__(self, place: Path, manifests: list[Manifest], secrets: dict[str, dict[str, str]]) -> None:
        self._place = place
        self._configs = {each["metadata"]["name"]: each["data"] for each in manifests if each["kind"] == "ConfigMap"}
        self._services = {each["metadata"]["name"]: each for each in manifests if each["kind"] == "Service"}
        self._secrets = secrets
        self.pods = {pod.name: pod for pod in pods_of(manifests, secrets)}
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, pod: str, container: str, **more: str) -> None:
        """Starts one container; more: variables that this test changes."""
        chosen = self._container(pod, container)
        log = self.log(pod, container).open("ab")
        with log:
            self.running[f"{pod}/{container}"] = subprocess.Popen(
                self.command(pod, chosen),
                cwd=self.folder(pod) / "data",
                env=self._environment(pod, chosen) | more,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def run(self, pod: str, container: str, *words: str, **more: str) -> str:
        """What 'kubectl exec' of a command in a container prints."""
        chosen = self._container(pod, container)
        done = subprocess.run(
            words,
            cwd=self.folder(pod) / "data",
            env=self._environment(pod, chosen) | more,
            capture_output=True,
            text=True,
            timeout=WAIT_SECONDS,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def probes(self) -> list[tuple[str, str]]:
        """(container, address) of every probe of the containers that run."""
        found = []
        for running in self.running:
            pod, _, name = running.partition("/")
            container = self._container(pod, name)
            ports = {port["name"]: port["containerPort"] for port in container["ports"]}
            asked = [container[kind]["httpGet"] for kind in container if kind.endswith("Probe")]
            address = self.pods[pod].address
            found += [(running, f"http://{address}:{ports[each['port']]}{each['path']}") for each in asked]
        return found

    def answers(self, address: str) -> bool:
        """Whether a probe of this address succeeds; fails with the output of a process that has ended."""
        ended = [name for name, process in self.running.items() if process.poll() is not None]
        assert ended == [], "\n".join(self.log(*name.split("/")).read_text() for name in ended)
        try:
            with urllib.request.urlopen(address, timeout=60) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def log(self, pod: str, container: str) -> Path:
        self.folder(pod)
        return self._place / pod / f"{container}.out"

    def folder(self, pod: str) -> Path:
        """The folder of a pod, with its volumes."""
        folder = self._place / pod
        if not folder.is_dir():
            (folder / "data").mkdir(parents=True)
            for volume in self.pods[pod].spec["volumes"]:
                self._fill(folder / "volumes" / volume["name"], volume)
        return folder

    def command(self, pod: str, container: Manifest) -> list[str]:
        return [self._here(pod, container, word) for word in self.pods[pod].words(container)]

    def _container(self, pod: str, name: str) -> Manifest:
        (found,) = (each for each in self.pods[pod].spec["containers"] if each["name"] == name)
        container: Manifest = found
        return container

    def _environment(self, pod: str, container: Manifest) -> dict[str, str]:
        path = f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
        cache = {"XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))}  # compiled kernels
        made = self.pods[pod].variables(container)
        return {**environment(), **{k: self._here(pod, container, v) for k, v in made.items()}, **cache, "PATH": path}

    def _here(self, pod: str, container: Manifest, text: str) -> str:
        """A path of the container as one of this machine, and a service's name as a pod's address."""
        folder = self.folder(pod)
        variables = self.pods[pod].variables(container)
        places = {"/data": folder / "data"}
        for mount in container["volumeMounts"]:
            if mount["mountPath"].startswith("/etc"):
                inside = expand(mount.get("subPathExpr", ""), variables)
                places[mount["mountPath"]] = folder / "volumes" / mount["name"] / inside
        known = rf"(?<![\w/])({'|'.join(places)})(?![\w-])"
        text = re.sub(known, lambda found: str(places[found[1]]), text)
        for name, service in self._services.items():
            if re.search(rf"\b{name}:", text):
                text = text.replace(f"{name}:", f"{self._selected(service)}:")
        return text

    def _selected(self, service: Manifest) -> str:
        """The address of the one pod that a service selects."""
        (pod,) = (
            pod
            for pod in self.pods.values()
            if service["spec"]["selector"].items() <= pod.workload["spec"]["template"]["metadata"]["labels"].items()
        )
        return pod.address

    def _fill(self, folder: Path, volume: Manifest) -> None:
        """Writes what a volume of a ConfigMap or a Secret holds."""
        if "configMap" in volume:
            contents = self._configs[volume["configMap"]["name"]]
            paths = {name: name for name in contents}
        elif "secret" in volume:
            wanted = volume["secret"]
            contents = self._secrets.get(wanted["secretName"])
            if contents is None:
                assert wanted.get("optional"), f"no secret {wanted['secretName']}"
                return
            paths = {each["path"]: each["key"] for each in wanted.get("items", ())} or {key: key for key in contents}
        else:
            return
        for path, key in paths.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(contents[key])
