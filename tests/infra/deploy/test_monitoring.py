"""What Prometheus and Grafana are given fits the metrics that there are, and what they need to read it."""

import json
import re
from pathlib import Path
from typing import Any

import yaml

from api.app import create_app
from infra.base.metrics.catalogue import BY_NAME

DEPLOY = Path(__file__).parents[3] / "infra" / "deploy"
BOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "freshet.json").read_text())
METRIC = re.compile(r"\bfreshet_[a-z_]+")
LABELS_OF_TARGETS = {"run", "process", "instance", "job"}


def queries() -> list[str]:
    return [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]


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


def test_prometheus_finds_the_processes_where_the_api_tells_them_and_brings_a_token() -> None:
    (scrape,) = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    (found,) = scrape["http_sd_configs"]
    assert found["url"].endswith("/v1/targets")
    assert "/v1/targets" in create_app().openapi()["paths"]
    assert found["authorization"]["credentials_file"]
