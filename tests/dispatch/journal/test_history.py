from pathlib import Path

import pytest

from dispatch.errors import RunEnded, SettingsChanged
from dispatch.journal.history import check_settings, check_unfinished, history_of
from dispatch.journal.records import AnyRecord, Begun, Ended, GenerationStarted, StepDecided, StepDone
from ingest.batches.manifest import Manifest
from ingest.errors import LogCorrupt
from ingest.streams.position import Position, Range

FOLDER = Path("runs/r")
BEGUN = Begun("r", "log:clicks", {0: Position(5)}, {"rows.dim": "8"}, "d", ("torch",), samples=100)


def generation(number: int, workers: int = 2) -> GenerationStarted:
    return GenerationStarted(number, tuple(f"w-{w}" for w in range(workers)), True, 0, 0, "start")


def step(number: int, of: int, *ranges: tuple[int, int, int], skipped: tuple[Range, ...] = ()) -> StepDecided:
    taken = tuple(Range(partition, Position(first), Position(end)) for partition, first, end in ranges)
    return StepDecided(Manifest("r", of, number, taken, 3, 0, skipped), b"\0\1\1", 1.0, 9)


RECORDS: list[AnyRecord] = [
    BEGUN,
    generation(1),
    step(1, 1, (0, 5, 8)),
    StepDone(1, 77),
    generation(2, workers=3),
    step(2, 2, (0, 9, 10), (1, 0, 4), skipped=(Range(0, Position(8), Position(9)),)),
    generation(3),
]


def test_a_history_knows_what_a_resume_needs() -> None:
    history = history_of(RECORDS, FOLDER)
    assert [past.record.number for past in history.generations] == [1, 2]
    assert (history.step, history.samples, history.workers, history.last_generation) == (2, 6, 3, 3)
    assert history.positions == {0: Position(10), 1: Position(4)}
    assert history.digests == {1: 77}
    assert history.generations[0].most_samples == 2
    assert history.up_to(1).steps == history.steps[:1]


@pytest.mark.parametrize(
    ("records", "problem"),
    [
        ([generation(1)], "GenerationStarted is out of place"),
        ([BEGUN, BEGUN], "Begun is out of place"),
        ([BEGUN, generation(1), step(2, 1)], "step 2 follows step 0"),
        ([BEGUN, step(1, 1)], "step 1 follows step 0"),
        ([BEGUN, generation(1), step(1, 1, (0, 6, 7))], "partition 0 from 6:0 on, and the one before ended at 5:0"),
        ([BEGUN, generation(1), step(1, 1, (0, 4, 7))], "partition 0 from 4:0 on, and the one before ended at 5:0"),
        ([BEGUN, generation(1), step(1, 1, (2, 1, 7))], "partition 2 from 1:0 on, and the one before ended at 0:0"),
        ([BEGUN, Ended("x", 0, 0, "d"), generation(1)], "GenerationStarted is out of place"),
    ],
)
def test_a_journal_that_leaves_out_or_repeats_something_is_refused(records: list[AnyRecord], problem: str) -> None:
    with pytest.raises(LogCorrupt, match=f"the journal in runs/r is damaged: .*{problem}"):
        history_of(records, FOLDER)


def test_settings_that_changed_are_named_with_both_values() -> None:
    history = history_of(RECORDS, FOLDER)
    check_settings(history, "r", FOLDER, {"rows.dim": "8"}, {})
    with pytest.raises(SettingsChanged, match=r"rows\.dim was 8 and is 16, run was r and is s; .*set them back"):
        check_settings(history, "s", FOLDER, {"rows.dim": "16"}, {})


@pytest.mark.parametrize("now", [{"rows.dim": "8"}, {"rows.dim": "8", "rows.chunks": "0"}])
def test_a_setting_that_is_not_recorded_had_the_value_of_earlier_releases(now: dict[str, str]) -> None:
    history = history_of(RECORDS, FOLDER)
    check_settings(history, "r", FOLDER, now, {"rows.chunks": "0"})
    with pytest.raises(SettingsChanged, match=r"rows\.chunks was 0 and is 4"):
        check_settings(history, "r", FOLDER, now | {"rows.chunks": "4"}, {"rows.chunks": "0"})


def test_a_run_that_is_over_is_refused() -> None:
    check_unfinished(history_of(RECORDS, FOLDER), FOLDER)
    with pytest.raises(RunEnded, match=r"the run in runs/r is over: it ended after step 2 \(SIGTERM\)"):
        check_unfinished(history_of([*RECORDS, Ended("SIGTERM", 2, 9, "d")], FOLDER), FOLDER)
