"""The compute of a step is measured on samples as a run has them."""

from pathlib import Path

from infra.plan.compute import measure_compute
from infra.run.settings import load_settings
from ingest.convert import Converter, Event, Value

SCHEMA = """
name = "lists"
labels = ["click", "purchase"]
weight = "worth"
tables = [{name = "item"}, {name = "past", values = 3, pool = "attention", query = "item"},
          {name = "t", values = 2, pool = "sum"}]
"""


def test_lists_weights_and_further_labels_are_part_of_what_is_measured(tmp_path: Path) -> None:
    (tmp_path / "lists.toml").write_text(SCHEMA)
    settings = load_settings(None, [f"stream.schema_name={tmp_path / 'lists.toml'}"], run="r", folder=tmp_path)
    fields: dict[str, Value] = {"item": 7, "past": [1, 2], "t": {"a": 0.5}, "worth": 2}
    samples, faults = Converter(settings.event_schema).convert_events([Event(1.0, 1, fields, {"purchase": 0})] * 8)
    assert not faults
    curve = measure_compute(settings, [samples], [4, 8])
    assert curve.samples == (0, 4, 8)
    assert min(curve.seconds[1:]) > 0
