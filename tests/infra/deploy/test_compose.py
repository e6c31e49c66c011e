"""The compose file cannot be run here, so what it says is held against what it means."""

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from infra.kafka.jars import POM
from infra.run.settings import check_environment, load_settings

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
