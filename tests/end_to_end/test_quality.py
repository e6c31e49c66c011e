"""Quality in windows and slices is the same for any number of workers and after crashes; it is shown from a folder."""

import csv
import io
from pathlib import Path

import pytest

from dispatch.config import QualityConfig
from dispatch.progress.quality import QualityOverTime, QualityWindow
from infra.run.settings import load_settings, store_settings
from ps.config import CheckpointConfig, RowConfig
from tests.end_to_end.conftest import WriteTopic
from tests.end_to_end.crashing import Strike, train_struck
from tests.end_to_end.interrupting import golden
from tests.end_to_end.test_exactness import rows_of
from tests.end_to_end.threads import Plan, train
from tests.infra.cli.conftest import Invoke, invoke

EVENTS, BATCH = 1000, 64
SLICED = QualityConfig(slices=("category", "device"), slice_values=3, window_samples=256)

__all__ = ["invoke"]


def figures(found: QualityOverTime) -> list[float]:
    """Every figure of all windows and of the run."""
    assert found.run is not None
    return [value for window in (*found.windows, found.run) for value in _of_window(window)]


def _of_window(window: QualityWindow) -> list[float]:
    slices = (window.quality, *window.slices)
    values = [(each.samples, each.clicks, each.logloss, each.auc, each.mean_prediction) for each in slices]
    curve = [(each.samples, each.mean_prediction, each.click_rate) for each in window.curve]
    return [float(value) for row in (*values, *curve) for value in row if value is not None]


def test_any_number_of_workers_has_the_same_quality_by_slice(write_topic: WriteTopic) -> None:
    folders = [write_topic(EVENTS, f"workers-{workers}") for workers in (1, 3)]
    plans = [
        Plan(folder, workers, batch=BATCH, rows=rows_of("adagrad", "float64"), quality=SLICED)
        for folder, workers in zip(folders, (1, 3), strict=True)
    ]
    one, three = (train(plan).status.over_time for plan in plans)
    assert [window.last_step for window in one.windows] == [4, 8, 12]
    assert one.run is not None
    assert [each.field for each in one.run.slices] == ["category"] * 3 + ["device"] * 3
    assert figures(three) == pytest.approx(figures(one), rel=1e-6)


def test_crashes_change_no_figure_and_the_folder_shows_them(
    write_topic: WriteTopic, tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infra.base.rest.SMALLEST", 0)  # figures are added by the other thread
    often = CheckpointConfig(seconds=0.02, kept=1000)
    plan = Plan(write_topic(EVENTS), batch=BATCH, rows=RowConfig(dim=4), checkpoints=often, quality=SLICED)
    struck = train_struck(plan, Strike("backward", 4), Strike("journalled", 9)).status
    monkeypatch.undo()
    replayed = train(golden(plan)).status
    found = struck.over_time
    assert (found, struck.drift) == (replayed.over_time, replayed.drift)
    assert struck.drift.fields.keys() == {table.name for table in plan.schema.tables}
    store_settings(load_settings(None, [f"stream.folder={plan.folder / 'log'}"], run="test", folder=plan.folder))
    shown = invoke("quality", "--run", plan.folder, "--csv", tmp_path / "quality.csv")
    assert "1,000 samples" in shown.stdout, shown.stderr
    assert 'device = "phone"' in shown.stdout
    rows = list(csv.DictReader(io.StringIO((tmp_path / "quality.csv").read_text())))
    assert found.run is not None
    auc = [float(row["auc"]) for row in rows if row["what"] in ("window", "run")]
    assert auc == [window.quality.auc for window in (*found.windows, found.run)]
    assert {row["what"] for row in rows} == {"window", "window slice", "window curve", "run", "run slice", "run curve"}
