"""The checker finds every violation that is planted, and none in a good run."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from dispatch.journal.history import JOURNAL, read_history
from dispatch.journal.log import JournalWriter, read_records
from dispatch.journal.occupied import RUN_LOCK
from dispatch.journal.records import AnyRecord, CheckpointBegun, CheckpointTaken, Ended, GenerationStarted, StepDecided
from infra.base.errors import ConfigError
from infra.base.files import try_lock
from infra.base.process import Stop
from infra.base.storage import PART, Storage
from infra.run.settings import Settings, read_stored, store_settings
from infra.verify.finding import Violated
from infra.verify.journal import follow_numbers
from infra.verify.last_steps import last_steps_by
from infra.verify.run import holding_run_idle, verify_folder
from ingest.config import StreamConfig
from ingest.letters.embedded import DeadLetterLog, read_dead_letters
from ingest.log.embedded import LogReader, LogWriter
from ingest.main import ProducerJob, run_producer
from ps.checkpoints.files import Columns, new_name, write_columns
from tests.dispatch.checkpoints.checkpoints import take_checkpoint
from tests.end_to_end.interrupting import interrupt
from tests.end_to_end.processes import freshet, wait_until
from tests.end_to_end.threads import RUN, Plan
from tests.infra.verify.whole import train_whole

SAMPLES, BATCH = 640, 64
Plant = Callable[[Path], None]


def with_events(folder: Path, packed: int = 0) -> Path:
    stream = StreamConfig(folder=folder / "log", partitions=2)
    job = ProducerJob(stream, limit=SAMPLES, samples_per_record=packed, poison_share=0.1, seed=3)
    run_producer(job, Stop())
    return folder


def with_settings(folder: Path) -> Path:
    """Stores the settings of a run whose log is in its folder."""
    store_settings(Settings(run=RUN, folder=folder, stream=Plan(folder).stream))
    return folder


@pytest.fixture(scope="module")
def over(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that ended, with events left."""
    torch.set_num_threads(1)
    folder = with_events(tmp_path_factory.mktemp("over") / "run")
    train_whole(Plan(folder, samples=SAMPLES - 100))
    return folder


@pytest.fixture
def folder(over: Path, tmp_path: Path) -> Path:
    """A copy of it, to spoil."""
    return with_settings(Path(shutil.copytree(over, tmp_path / "run")))


def findings(folder: Path) -> dict[str, tuple[bool | None, str]]:
    return {finding.name: (finding.ok, finding.found) for finding in verify_folder(folder)}


def produced(folder: Path) -> list[int]:
    """Events of each partition, which has a JSON record for each."""
    log = LogReader(folder / "log", "clicks")
    return [log.span(partition)[1] for partition in log.partitions()]


def violated(folder: Path) -> dict[str, str]:
    return {name: found for name, (ok, found) in findings(folder).items() if ok is False}


def test_a_good_run_has_no_violation_and_its_events_are_counted(folder: Path) -> None:
    found, rejected = findings(folder), sum(step.manifest.rejected for step in read_history(folder / JOURNAL).steps)
    good = ("ranges tile", "numbers ascend", "events add up", "letters unique", "no process left", "no temporary file")
    assert [found[name][0] for name in good] == [True] * len(good), found
    assert rejected > 20
    total = sum(produced(folder))
    parts = f"540 trained + {rejected} dead + 0 skipped + {total - 540 - rejected} left"
    assert found["events add up"][1] == f"{total} produced from the beginning = {parts}"
    assert found["letters unique"][1] == f"{rejected} letters of {rejected} rejected events from the beginning"


def test_what_cannot_be_checked_is_not_called_good(folder: Path) -> None:
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    found = findings(folder)
    assert found["checkpoints whole"] == (None, "not checked: the run has no checkpoints")
    assert found["faults fired"] == (None, "not checked: no fault was set")


@pytest.mark.parametrize("packed", [0, 16])
def test_a_run_that_was_interrupted_has_no_violation(tmp_path: Path, packed: int) -> None:
    folder = with_events(tmp_path / "run", packed)
    interrupt(Plan(folder, silence_seconds=20.0), 4, after="record")
    assert violated(with_settings(folder)) == {}


# ── what the checker finds ────────────────────────────────────────────────────────────────────────────────────────────
def rewrite(
    folder: Path,
    *,
    without: int | None = None,
    instead: Mapping[type, list[AnyRecord]] | None = None,
    segment_bytes: int = 64 << 20,
) -> None:
    """Writes the journal again, without one of its steps, or with other records instead of some."""
    records = list(read_records(folder / JOURNAL))
    shutil.rmtree(folder / JOURNAL)
    writer = JournalWriter(folder / JOURNAL, segment_bytes)
    for record in records:
        if not (isinstance(record, StepDecided) and record.step == without):
            for written in (instead or {}).get(type(record), [record]):
                writer.append(written)
    writer.close()


def remove_a_segment(folder: Path) -> None:
    rewrite(folder, segment_bytes=1000)
    _, second, *_ = sorted((folder / JOURNAL).glob("*.log"))
    second.unlink()


def add_a_letter_again(folder: Path) -> None:
    first = next(read_dead_letters(folder / "log"))
    again = LogWriter(folder / "log", "dead-letters", 1)
    again.append(0, [(None, msgspec.msgpack.encode(first))])
    again.close()


def add_a_letter_of_no_step(folder: Path) -> None:
    last = list(read_dead_letters(folder / "log"))[-1]
    log = DeadLetterLog(folder / "log", origin=f"{RUN}/clicks")
    log.append([msgspec.structs.replace(last, offset=10_000)])
    log.close()


def lose_the_letters(folder: Path) -> None:
    shutil.rmtree(folder / "log" / "dead-letters")


def lose_events(folder: Path) -> None:
    shutil.rmtree(folder / "log" / "clicks" / "00001")


def leave_a_temporary_file(folder: Path) -> None:
    (folder / ".dense.safetensors.123").write_text("half of it")


@pytest.mark.parametrize(
    ("plant", "name", "told"),
    [
        (remove_a_segment, "ranges tile", "restore the missing segment"),
        (lambda folder: rewrite(folder, without=5), "ranges tile", "step 6 follows step 4"),
        (lambda folder: rewrite(folder, without=5), "numbers ascend", "step 6 was decided after step 4"),
        (add_a_letter_again, "letters unique", "are there more than once"),
        (add_a_letter_of_no_step, "letters unique", "of events that no step took"),
        (lose_the_letters, "letters unique", "0 dead letters are kept; expected"),
        (lose_events, "events add up", "events were produced from the beginning; expected 540 trained"),
        (leave_a_temporary_file, "no temporary file", "temporary files are left: .dense.safetensors.123"),
    ],
)
def test_a_planted_violation_is_found(folder: Path, plant: Plant, name: str, told: str) -> None:
    plant(folder)
    found = violated(folder)
    assert told in found[name], found


@pytest.mark.parametrize("option", ["--run", "--run-folder"])
@pytest.mark.parametrize("is_named", [True, False])
def test_a_process_of_the_run_that_is_still_there_is_found(
    folder: Path, tmp_path: Path, option: str, is_named: bool
) -> None:
    (tmp_path / "here" / "runs").mkdir(parents=True)
    (tmp_path / "here" / "runs" / "mine").symlink_to(folder)
    command = [*freshet("worker", option, "mine" if is_named else folder, "--name", "worker-7")[3:]]
    sleeper = subprocess.Popen(
        [sys.executable, "-c", "input()", *command], stdin=subprocess.PIPE, cwd=tmp_path / "here"
    )
    try:
        wait_until(lambda: "no process left" in violated(folder))
        assert f"worker-7 ({sleeper.pid})" in violated(folder)["no process left"]
    finally:
        sleeper.communicate()
    assert violated(folder) == {}


def test_a_generation_that_goes_back_is_found() -> None:
    first, second = (GenerationStarted(number, ("a",), True, 0, None, "start") for number in (2, 2))
    with pytest.raises(Violated, match="generation 2 was started after generation 2"):
        follow_numbers([first, second])


def test_a_run_under_way_is_refused(folder: Path) -> None:
    held = try_lock(folder / RUN_LOCK)
    assert held is not None
    with pytest.raises(ConfigError, match="is under way"), holding_run_idle(folder):
        pass


# ── checkpoints
# ──────────────────────────────────────────────────────────────────────────────────────────────────────────────
def record_checkpoint(folder: Path, number: int) -> None:
    """Puts a checkpoint after step 4 on record."""
    history = read_history(folder / JOURNAL)
    assert history.begun is not None
    assert history.newest is not None
    assert history.ended is not None
    at = (number, 4, dict(history.positions), history.samples)
    checkpoint = CheckpointBegun(*at, history.begun, history.newest, opens=False)
    rewrite(folder, instead={Ended: [checkpoint, CheckpointTaken(*at), history.ended]})


def write_checkpoint(folder: Path, wrong: int = 0) -> Path:
    """A checkpoint of one shard after step 4, with so many last steps that are wrong; returns the shard's file."""
    storage, history = Storage.at(folder / "checkpoints"), read_history(folder / JOURNAL)
    keys_K, steps_K = last_steps_by(read_stored(folder), history.steps[:4])
    steps_K[:wrong] -= 1
    rows_K1, nothing = np.zeros((keys_K.size, 1), np.float32), np.empty(0, np.float32)
    columns = Columns(np.arange(keys_K.size), keys_K, steps_K, rows_K1, rows_K1, nothing)
    part = write_columns(storage, new_name(history.last_checkpoint + 1, "shard", 0), columns)
    take_checkpoint(storage, history.last_checkpoint + 1, (part,), keys_K.size, step=4)
    record_checkpoint(folder, history.last_checkpoint + 1)
    return folder / "checkpoints" / part.name


def test_checkpoints_are_whole_and_have_no_other_files(folder: Path) -> None:
    file = write_checkpoint(folder)
    found = findings(folder)
    names = ("checkpoints whole", "newest checkpoint there", "no unreferenced file", "last steps of rows")
    assert [found[name][0] for name in names] == [True] * 4, found
    (file.parent / "shard-1-c.safetensors").write_bytes(b"of a checkpoint that failed")
    assert list(violated(folder)) == ["no unreferenced file"]


def test_a_file_of_a_checkpoint_that_broke_off_is_found(folder: Path) -> None:
    file = write_checkpoint(folder)
    file.with_name(f"{file.name}.1234{PART}").write_bytes(b"half of it")
    assert list(violated(folder)) == ["no temporary file", "no unreferenced file"]


@pytest.mark.parametrize("spoil", [lambda file: file.unlink(), lambda file: file.write_bytes(bytes(100))])
def test_a_file_of_a_checkpoint_that_changed_or_is_gone_is_found(folder: Path, spoil: Plant) -> None:
    file = write_checkpoint(folder)
    spoil(file)
    assert file.name in violated(folder)["checkpoints whole"]


def test_rows_of_another_step_than_the_last_that_used_them_are_found(folder: Path) -> None:
    write_checkpoint(folder, wrong=3)
    assert re.fullmatch(
        "3 rows of checkpoint . have another last step than the last .*", violated(folder)["last steps of rows"]
    )


def test_known_keys_are_not_followed_step_by_step_if_none_was_forgotten_or_rare(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(folder)
    monkeypatch.delattr("infra.verify.last_steps.KnownKeys")
    assert findings(folder)["last steps of rows"][0]


def test_a_checkpoint_of_the_journal_that_does_not_exist_is_found(folder: Path) -> None:
    write_checkpoint(folder)
    record_checkpoint(folder, 7)
    assert violated(folder) == {"newest checkpoint there": "checkpoint 7 is in the journal and has no manifest"}
