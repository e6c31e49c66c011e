"""What Prometheus and Grafana are given fits the metrics that there are, and what they need to read it."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from api.app import create_app
from infra.base.metrics.catalogue import BY_NAME
from infra.cli.main import app

DEPLOY = Path(__file__).parents[3] / "infra" / "deploy"
BOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "freshet.json").read_text())
(GROUP,) = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"]
ALERTS: list[dict[str, Any]] = GROUP["rules"]
METRIC = re.compile(r"\bfreshet_[a-z_]+")
LABELS_OF_TARGETS = {"run", "process", "instance", "job"}


def queries() -> list[str]:
    marks = [mark["expr"] for mark in BOARD["annotations"]["list"]]
    return [*marks, *(target["expr"] for panel in BOARD["panels"] for target in panel["targets"])]


def described(name: str) -> str:
    """The metric that a series belongs to."""
    base = re.sub(r"_(bucket|sum|count)$", "", name)
    return base if base in BY_NAME and BY_NAME[base].kind == "histogram" else name


def test_every_metric_that_the_board_queries_exists() -> None:
    texts = [*queries(), BOARD["templating"]["list"][1]["query"]["query"]]
    named = [name for text in texts for name in METRIC.findall(text)]
    assert len(named) > 15
    assert {described(name) for name in named} <= BY_NAME.keys()


def test_every_label_that_the_board_uses_exists() -> None:
    for panel in BOARD["panels"]:
        for target in panel["targets"]:
            known = {label for name in METRIC.findall(target["expr"]) for label in BY_NAME[described(name)].labels}
            used = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            used |= set(re.findall(r"[{,]\s*(\w+)\s*=", target["expr"]))
            used |= {each for by in re.findall(r"by \(([^)]*)\)", target["expr"]) for each in by.split(", ")} - {"le"}
            assert used <= known | LABELS_OF_TARGETS, target


def test_the_board_has_what_grafana_needs() -> None:
    assert (BOARD["uid"], BOARD["title"], BOARD["schemaVersion"]) == ("freshet", "Freshet", 39)
    variables = {variable["name"]: variable for variable in BOARD["templating"]["list"]}
    assert variables["datasource"]["query"] == "prometheus"
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(ids)) == len(ids) > 10
    for panel in BOARD["panels"]:
        assert panel["title"]
        assert panel["gridPos"].keys() == {"h", "w", "x", "y"}
        assert panel["targets"]
        assert all(part["datasource"]["uid"] == "${datasource}" for part in (panel, *panel["targets"]))


def test_the_board_answers_what_the_dashboard_answers() -> None:
    asked = {
        *("samples_total", "logloss", "auc", "alpha", "worker_parked", "link_bytes_per_second", "worker_phase_seconds"),
        *("worker_bytes_total", "lag_events", "freshness_seconds", "decide_seconds", "faults_total", "version_held"),
        *("field_present_ratio", "dead_letters_total"),
    }
    named = {described(name) for text in queries() for name in METRIC.findall(text)}
    assert {f"freshet_{name}" for name in asked} <= named
    assert any(text.startswith("process_resident_memory_bytes") for text in queries())


def test_panels_of_the_board_do_not_overlap() -> None:
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in BOARD["panels"]]
    assert len(set(places)) == len(places)


def test_every_metric_and_label_of_the_alerts_exists() -> None:
    assert len({rule["alert"] for rule in ALERTS}) == len(ALERTS) > 10
    for rule in ALERTS:
        named = METRIC.findall(rule["expr"])
        assert {described(name) for name in named} <= BY_NAME.keys(), rule
        known = {label for name in named for label in BY_NAME[described(name)].labels}
        told = " ".join(rule["annotations"].values())
        used = {*re.findall(r"\$labels\.(\w+)", told), *re.findall(r"[{,]\s*(\w+)\s*=", rule["expr"])}
        used |= {each for by in re.findall(r"by \(([^)]*)\)", rule["expr"]) for each in by.split(", ")} - {"le"}
        assert used <= known | LABELS_OF_TARGETS, rule
        assert {described(name) for name in METRIC.findall(told)} <= BY_NAME.keys(), rule


def test_alerts_name_commands_that_exist() -> None:
    named = {
        command
        for rule in ALERTS
        for command in re.findall(r"'freshet ([a-z -]+)'", rule["annotations"]["description"])
    }
    assert {"status", "plan", "snapshots list", "dead-letters"} <= named
    for command in named:
        there: Any = typer.main.get_command(app)
        for word in command.split():
            there = there.commands[word]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (the package prometheus)")
def test_prometheus_accepts_its_files() -> None:
    for kind, name in (("rules", "alerts.yml"), ("config", "prometheus.yml"), ("config", "kubernetes.yml")):
        checked = subprocess.run(
            ["promtool", "check", kind, *(["--syntax-only"] if kind == "config" else []), DEPLOY / "prometheus" / name],
            capture_output=True,
            text=True,
        )
        assert checked.returncode == 0, checked.stdout + checked.stderr


def test_prometheus_loads_the_alerts_in_both_places() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    contained = yaml.safe_load(compose["configs"]["prometheus"]["content"])
    alone = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    assert contained["rule_files"] == alone["rule_files"] == ["alerts.yml"]
    assert (DEPLOY / compose["configs"]["alerts"]["file"]).is_file()


def test_grafana_finds_the_board_in_its_container() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    (provider,) = yaml.safe_load(compose["configs"]["boards"]["content"])["providers"]
    placed = {each["source"]: Path(each["target"]) for each in compose["services"]["grafana"]["configs"]}
    assert placed["board"].parent == Path(provider["options"]["path"])
    assert json.loads((DEPLOY / compose["configs"]["board"]["file"]).read_text()) == BOARD


def test_prometheus_finds_the_processes_where_the_api_tells_them_and_brings_a_token() -> None:
    (scrape,) = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    (found,) = scrape["http_sd_configs"]
    assert found["url"].endswith("/v1/targets")
    assert "/v1/targets" in create_app().openapi()["paths"]
    assert found["authorization"]["credentials_file"]
