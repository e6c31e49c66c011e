"""The learner against a run of real processes, against itself, and with wrong input."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import freshet
from freshet.equality import Equality, compare_with_run, described
from infra.base.errors import ConfigError
from infra.base.process import Stop
from ingest.convert import Event, Value
from ingest.producing.synthetic import World
from tests.end_to_end.processes import run

GROWING = {"stream.first_batch": 32, "model.mlp": [16]}


@pytest.fixture(scope="module")
def events() -> list[Event]:
    world = World(0)
    return [event for number in range(3) for event in world.events(world.chunk(number))]


def learn(learner: freshet.Learner, events: Sequence[Event], at_a_time: int = 10**6) -> np.ndarray:
    parts = [events[at : at + at_a_time] for at in range(0, len(events), at_a_time)]
    answers = [learner.learn_many([e.fields for e in part], [e.label for e in part]) for part in parts]
    return np.concatenate(answers)


def test_a_learner_predicts_what_a_run_with_one_worker_does(tmp_path: Path, events: list[Event]) -> None:
    found = compare_with_run(
        "synthetic", events[:3000], {**GROWING, "stream.batch": 256, "trainer.threads": 1}, tmp_path / "run", Stop()
    )
    assert (found.events, found.steps) == (3000, found.learner_steps)
    assert found.holds
    assert found.rows[0] > 1000
    with pytest.raises(ConfigError, match="belongs to a run"):
        freshet.Learner.load(tmp_path / "run").save(tmp_path / "run")


def test_predictions_that_differ_are_told_with_the_first_step() -> None:
    found = Equality(events=64, steps=2, learner_steps=2, differing=(2,), largest=2e-6, rows=(9, 9))
    assert not found.holds
    assert described(found).splitlines() == [
        "64 events: predictions before learning are equal to the bit in 1 of 2 steps; the first that differs is step 2",
        "predictions after learning differ by 2e-06 at most; 9 rows in the run, 9 in the learner",
    ]


def test_answers_do_not_depend_on_how_many_events_come_at_once(events: list[Event]) -> None:
    together, apart = (freshet.Learner("synthetic", batch=128, settings=GROWING) for _ in range(2))
    np.testing.assert_allclose(learn(together, events[:700]), learn(apart, events[:700], 37), rtol=0, atol=1e-6)
    assert together.learnt == apart.learnt > 500
    assert together.quality.samples == together.learnt


def test_with_batches_of_one_every_event_is_learnt_at_once(events: list[Event]) -> None:
    learner = freshet.Learner("synthetic", batch=1, settings={"model.mlp": [8]})
    fields = events[0].fields
    before = learner.predict_one(fields)
    answers = [learner.learn_one(fields, 1) for _ in range(20)]
    assert answers[0] == pytest.approx(before)
    assert learner.predict_one(fields) > answers[10] > before
    assert learner.learnt == 20


def test_a_loaded_learner_goes_on_as_the_saved_one_does(tmp_path: Path, events: list[Event]) -> None:
    learner = freshet.Learner("synthetic", batch=64, settings=GROWING)
    learn(learner, events[:640])
    learner.flush()
    assert [learner.save(tmp_path / "saved"), learner.save(tmp_path / "saved")] == [1, 2]
    loaded = freshet.Learner.load(tmp_path / "saved", 1)
    assert (loaded.learnt, loaded.rows) == (learner.learnt, learner.rows)
    assert learn(loaded, events[640:1280]).tolist() == learn(learner, events[640:1280]).tolist()


def test_a_saved_learner_can_be_exported_by_the_command(tmp_path: Path, events: list[Event]) -> None:
    learner = freshet.Learner("synthetic", batch=64, settings=GROWING)
    learn(learner, events[:200])
    learner.save(tmp_path / "saved")
    done = run("snapshots", "export", "1", tmp_path / "exported", "--run", tmp_path / "saved")
    assert done.returncode == 0, done.stderr
    assert f"{learner.rows} rows" in done.stdout


def test_a_table_is_learnt_as_its_rows_are(events: list[Event]) -> None:
    rows = [{"user": e.fields["user"], "item": e.fields["item"], "price": e.fields.get("price")} for e in events[:200]]
    labels = [event.label for event in events[:200]]
    whole, apart = (freshet.Learner("synthetic", batch=64, settings=GROWING) for _ in range(2))
    table = pa.Table.from_pylist(rows)
    assert table.num_columns == 3
    assert whole.learn_many(table, labels).tolist() == apart.learn_many(rows, labels).tolist()
    assert whole.predict_many(table).tolist() == apart.predict_many(rows).tolist()


@pytest.mark.parametrize(
    ("fields", "labels", "message"),
    [
        ([{"user": "u1"}, {"price": "dear"}], [0, 1], "event 1 of 2 is wrong: .*'price'"),
        ([{"user": "u1"}], [7], "event 0 of 1 is wrong: .*label"),
        ([{"user": "u1"}], [0, 1], "1 events, 2 labels"),
    ],
)
def test_wrong_events_are_refused_and_nothing_is_learnt(
    fields: list[dict[str, Value]], labels: list[int], message: str
) -> None:
    learner = freshet.Learner("synthetic", batch=1, settings={"model.mlp": [8]})
    with pytest.raises(ConfigError, match=message):
        learner.learn_many(fields, labels)
    assert (learner.learnt, learner.rows) == (0, 0)


def test_settings_that_need_a_dispatcher_are_refused() -> None:
    with pytest.raises(ConfigError, match="a learner neither prunes rows"):
        freshet.Learner("synthetic", settings={"memory.admit_after": 3})


def test_a_folder_with_another_model_is_refused(tmp_path: Path) -> None:
    freshet.Learner("synthetic", seed=1).save(tmp_path / "saved")
    with pytest.raises(ConfigError, match="other settings of seed"):
        freshet.Learner("synthetic", seed=2).save(tmp_path / "saved")
    with pytest.raises(ConfigError, match=r"has snapshots \[1\], and 7 was asked for"):
        freshet.Learner.load(tmp_path / "saved", 7)


def test_the_package_is_imported_without_torch() -> None:
    code = "import sys, freshet; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
