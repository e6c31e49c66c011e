"""The compose file: its containers cannot be run here, but its commands can; the rest is held against what it means."""

import json
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from infra.kafka.jars import POM
from infra.run.settings import check_environment, load_settings
from tests.brokers import TestBroker
from tests.databases import PostgresServer
from tests.end_to_end.processes import ROOT, WAIT_SECONDS, environment, wait_until

FILE = Path(__file__).parents[3] / "infra" / "deploy" / "compose.yaml"
COMPOSE: dict[str, Any] = yaml.safe_load(FILE.read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]


def test_it_has_the_five_services_each_from_a_pinned_image_or_a_build() -> None:
    assert SERVICES.keys() == {"kafka", "postgres", "freshet", "prometheus", "grafana"}
    for name, service in SERVICES.items():
        if name == "freshet":
            assert (FILE.parent / service["build"]["context"] / "pyproject.toml").is_file()
        else:
            assert re.fullmatch(r"[a-z/]+:v?\d[\d.]*", service["image"]), name


def test_kafka_is_the_version_that_the_tests_run() -> None:
    found = ElementTree.parse(POM).findtext(".//{*}dependency[{*}artifactId='kafka_2.13']/{*}version")
    assert SERVICES["kafka"]["image"] == f"apache/kafka:{found}"


def test_a_service_waits_only_for_services_that_tell_their_health() -> None:
    waits = [(name, needed) for name, service in SERVICES.items() for needed in service.get("depends_on", ())]
    assert ("freshet", "kafka") in waits
    for name, needed in waits:
        assert needed in SERVICES
        conditions = SERVICES[name]["depends_on"]
        if isinstance(conditions, dict) and conditions[needed]["condition"] == "service_healthy":
            assert SERVICES[needed]["healthcheck"]["test"][0] == "CMD-SHELL"


def test_what_is_used_is_declared_and_what_is_declared_is_used() -> None:
    volumes = {text.split(":")[0] for service in SERVICES.values() for text in service.get("volumes", ())}
    configs = {entry["source"] for service in SERVICES.values() for entry in service.get("configs", ())}
    assert volumes == COMPOSE["volumes"].keys()
    assert configs == COMPOSE["configs"].keys()


def test_ports_are_open_on_this_machine_alone() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert len(ports) >= 4
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_no_password_is_written_down() -> None:
    variables = [pair for service in SERVICES.values() for pair in service.get("environment", {}).items()]
    secret = [(name, value) for name, value in variables if "PASSWORD" in name or "PASSWORD" in value]
    assert len(secret) == 3
    assert all(re.search(r"\$\{FRESHET_\w+_PASSWORD:\?", value) for _, value in secret)


def test_freshet_s_variables_are_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = SERVICES["freshet"]["environment"]
    check_environment(environment)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    settings = load_settings()
    assert settings.kafka.servers == ("kafka:9094",)
    assert f"freshet:{settings.api.port}" in COMPOSE["configs"]["prometheus"]["content"]


def test_kafka_s_listeners_are_advertised_and_mapped() -> None:
    environment = SERVICES["kafka"]["environment"]
    names = set(re.findall(r"(\w+)://", environment["KAFKA_LISTENERS"]))
    assert set(re.findall(r"(\w+):PLAINTEXT", environment["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"])) == names
    assert set(re.findall(r"(\w+)://", environment["KAFKA_ADVERTISED_LISTENERS"])) == names - {"CONTROLLER"}
    assert "INSIDE://kafka:9094" in environment["KAFKA_ADVERTISED_LISTENERS"]


def test_the_files_inside_are_yaml_of_their_own() -> None:
    prometheus = yaml.safe_load(COMPOSE["configs"]["prometheus"]["content"])
    grafana = yaml.safe_load(COMPOSE["configs"]["grafana"]["content"])
    assert prometheus["scrape_configs"][0]["job_name"] == "freshet"
    assert grafana["datasources"][0]["url"] == "http://prometheus:9090"


# ── its commands, without containers ──────────────────────────────────────────────────────────────────────────────────
def inside(kafka: TestBroker, postgres: PostgresServer) -> dict[str, str]:
    """What the file sets for Freshet, with the addresses of this test for those of the other services."""
    given = {**SERVICES["freshet"]["environment"], "FRESHET_STREAM__TOPIC": kafka.new_name()}
    assert "@postgres:5432/freshet" in given["FRESHET_API__DATABASE"]
    assert given["FRESHET_KAFKA"] == "kafka:9094"
    given |= {"FRESHET_API__DATABASE": postgres.new_database(), "FRESHET_KAFKA": ",".join(kafka.servers)}
    given |= {"FRESHET_API__PORT": "0", "FRESHET_SERVING__PORT": "0"}
    smaller = {"FRESHET_DISPATCH__WORKERS": "1", "FRESHET_MODEL__MLP": "8"}
    return {**environment(), "PYTHONPATH": str(ROOT), **given, **smaller}


def as_process(command: list[str], place: Path) -> list[str]:
    """A command of the container, with a folder of this test for its volume."""
    assert command[0] == "freshet"
    return [sys.executable, "-m", "infra.cli.entry", *(part.replace("/data", str(place)) for part in command[1:])]


def test_its_token_opens_the_api_that_its_command_starts(
    kafka: TestBroker, postgres: PostgresServer, tmp_path: Path
) -> None:
    env = inside(kafka, postgres)
    comment = FILE.read_text().replace("\\\n#", " ")
    (create,) = re.findall(r"run --rm --build freshet +(freshet token create .*)", comment)
    made = subprocess.run(
        as_process(shlex.split(create), tmp_path),
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
    )
    assert made.returncode == 0, made.stderr
    up = subprocess.Popen(
        as_process(SERVICES["freshet"]["command"], tmp_path),
        cwd=tmp_path,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    endpoint = tmp_path / "runs" / "main" / "endpoints" / "api"
    wait_until(endpoint.exists, up)
    port = endpoint.read_text().rpartition(":")[2]
    asked = urllib.request.Request(f"http://127.0.0.1:{port}/v1/targets")
    asked.add_header("Authorization", f"Bearer {made.stdout.strip()}")
    with urllib.request.urlopen(asked, timeout=60) as answer:
        assert isinstance(json.load(answer), list), "what Prometheus asks for"
    up.send_signal(signal.SIGTERM)
    told, _ = up.communicate(timeout=WAIT_SECONDS)
    assert up.returncode == 0, told
    assert list(tmp_path.rglob("*.db")) == [], "the API and the token use PostgreSQL, and no file"
