"""The catalogue of metrics against the code that makes them, the page that lists them, and Prometheus's rules."""

import ast
import re
from pathlib import Path

from infra.base.metrics.catalogue import METRICS, PREFIX
from infra.base.metrics.reference import metrics_page
from tests.test_structure import trees

ENDINGS = {"count": "_total", "total": "_total", "observe": "_seconds", "gauge": ""}
OTHER_UNITS = re.compile(r"_(ms|milliseconds|us|minutes|hours|kb|mb|gb|gbit|mbit|percent)(_|$)")


def used_by_the_code() -> set[str]:
    """Metrics whose name stands in a call of a Meter."""
    calls = [node for tree in trees().values() for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return {
        f"{PREFIX}{call.args[0].value!s}{ENDINGS[call.func.attr]}"
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr in ENDINGS
        if "meter" in ast.unparse(call.func.value).lower()
        if call.args and isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, str)
    }


def words_of_the_publisher() -> set[str]:
    """Gauges that it sets in a loop."""
    constants = [node for node in ast.walk(trees()["dispatch.progress.publisher"]) if isinstance(node, ast.Constant)]
    return {f"{PREFIX}{constant.value!s}" for constant in constants if isinstance(constant.value, str)}


def test_the_code_makes_every_metric_of_the_catalogue_and_no_other() -> None:
    names = {metric.name for metric in METRICS}
    assert used_by_the_code() <= names
    assert names <= used_by_the_code() | words_of_the_publisher()


def test_the_page_of_metrics_is_current() -> None:
    assert Path("docs/metrics.md").read_text() == metrics_page(), "run: python -m infra.base.metrics.reference"


def test_names_have_base_units_and_only_counters_are_totals() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert re.fullmatch(r"freshet_[a-z][a-z_]*", metric.name)
        assert not OTHER_UNITS.search(metric.name), metric.name
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert metric.kind != "histogram" or metric.name.endswith("_seconds"), metric.name


def test_every_metric_has_a_text_that_is_more_than_its_name() -> None:
    for metric in METRICS:
        assert metric.text.endswith("."), metric.name
        assert len(metric.text) > 20
