from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from time import time

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from dispatch.config import DispatchConfig
from dispatch.errors import OtherEvents
from dispatch.intake import Intake
from dispatch.job import DispatchJob
from dispatch.journal.history import read_history, read_manifests
from dispatch.journal.run import RunJournal
from dispatch.journal.terms import GenerationTerms
from dispatch.placement.policies.spec import Needs
from dispatch.progress.status import EventCounts, FieldsStatus, KeyCounts
from dispatch.progress.times import DecisionTimesState
from infra.base.process import Stop
from infra.base.telemetry import Meter
from ingest.batches.batch import Batch
from ingest.codec.json_events import encode_json
from ingest.config import StreamConfig
from ingest.errors import AbsentField, SinkUnavailable, SourceUnavailable
from ingest.letters.embedded import DeadLetterLog, read_dead_letters
from ingest.log.embedded import LogReader, LogWriter
from ingest.schema import Schema, load_schema
from ingest.streams.position import Position
from ingest.streams.source import Record
from ps.config import RowConfig
from ps.protocol import EMPTY_MODEL
from tests.ingest.topics import SYNTHETIC, events

PATIENCE_SECONDS = 60.0


@contextmanager
def opened(folder: Path, schema: Schema = SYNTHETIC, **settings: object) -> Iterator[Intake]:
    """The intake of a topic of two good events and a bad one."""
    with closing(LogWriter(folder / "log", "clicks", 1)) as writer:
        writer.append(0, [(None, payload) for payload in (*map(encode_json, events(2)), b"bad")])
    stream = StreamConfig(folder=folder / "log", batch=4, linger_seconds=0, **settings)
    job = DispatchJob("r", 0, folder, stream, DispatchConfig(), schema, RowConfig(), shards=1, stop_at_end=True)
    source = LogReader(folder / "log", "clicks")
    letters, meter = DeadLetterLog(folder / "log"), Meter(CollectorRegistry())
    journal = RunJournal(job)
    if journal.history.begun is None:
        journal.start_generation([], {}, GenerationTerms(1, True, 0, 16, Needs(), "test"), EMPTY_MODEL)
    intake = Intake(job, journal, source, letters, meter)
    with closing(source), closing(letters), closing(journal), closing(intake):
        yield intake


def first_batch(intake: Intake) -> Batch:
    batch = intake.next_batch(PATIENCE_SECONDS)
    assert batch is not None
    return batch


def test_a_batch_gets_its_step_and_its_dead_letters_are_counted(tmp_path: Path) -> None:
    with opened(tmp_path) as intake:
        batch = first_batch(intake)
        intake.record(batch, 1, None, alpha=1.0, rows=0)
        assert intake.step == 1
        assert intake.write_dead_letters(batch, Stop())
        assert intake.events() == EventCounts(lag=0, dead_letters=1)
        assert intake.next_batch(PATIENCE_SECONDS) is None
        assert intake.has_ended
    (manifest,) = read_manifests(tmp_path / "journal")
    assert (manifest.generation, manifest.step, manifest.samples, manifest.rejected) == (1, 1, 2, 1)
    assert len(list(read_dead_letters(tmp_path / "log"))) == 1


def test_an_event_dated_ahead_does_not_make_a_checkpoint_young_for_ever(tmp_path: Path) -> None:
    dated_ahead = msgspec.structs.replace(events(1)[0], event_time=time() + 1e6)
    with closing(LogWriter(tmp_path / "log", "clicks", 1)) as writer:
        writer.append(0, [(None, encode_json(dated_ahead))])
    with opened(tmp_path) as intake:
        batch = first_batch(intake)
        intake.record(batch, 1, None, alpha=1.0, rows=0)
        decided = intake.decided(1, 0, KeyCounts(), DecisionTimesState(0, 0, (), None))
    times_B = batch.samples.times_B
    assert times_B.max() > time()
    assert decided.newest_event_seconds == times_B[times_B <= time()].max()


def test_the_fields_of_events_handed_out_are_counted(tmp_path: Path) -> None:
    with opened(tmp_path) as intake:
        assert intake.fields() == FieldsStatus()
        first_batch(intake)
        assert intake.fields().present["user"] == intake.fields().present["price"] == 1.0
        assert intake.fields().absent == ()


@pytest.mark.parametrize("on_absent_field", ["warn", "stop"])
def test_events_of_another_schema_are_told_or_end_the_run(tmp_path: Path, on_absent_field: str) -> None:
    settings = {"absent_window": 2, "on_absent_field": on_absent_field}
    with opened(tmp_path, load_schema("criteo"), **settings) as intake:
        if on_absent_field == "stop":
            with pytest.raises(AbsentField, match="are absent from all of the first 2 events; they hold user"):
                first_batch(intake)
            return
        first_batch(intake)
        fields = intake.fields()
        assert len(fields.absent) == 39
        assert set(fields.present.values()) == {0.0}
        assert any(name.startswith("price (") for name in fields.unknown)


def test_letters_wait_for_a_broker_that_is_away_until_a_stop_is_requested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise SinkUnavailable("the broker is away")

    monkeypatch.setattr(DeadLetterLog, "append", fail)
    stop = Stop()
    with opened(tmp_path) as intake:
        batch = first_batch(intake)
        assert not intake.write_dead_letters(batch, stop)
        stop.request("test")
        with pytest.raises(SinkUnavailable):
            intake.write_dead_letters(batch, stop)
        assert intake.events().dead_letters == 0


def test_after_a_restart_a_batch_is_formed_again_its_letter_written_once_and_reading_goes_on_behind_it(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as intake:
        batch = first_batch(intake)
        intake.record(batch, 1, None, alpha=1.0, rows=0)
    for _ in range(2):
        with opened(tmp_path) as intake:
            assert intake.start is None
            (recorded,) = read_history(tmp_path / "journal").steps
            again = intake.form_again(recorded, lambda: False)
            assert again.samples.keys_BF.tobytes() == batch.samples.keys_BF.tobytes()
            assert intake.write_last_letters(Stop())
            assert (intake.step, intake.events().dead_letters) == (1, 1)
            intake.go_live()
            later = first_batch(intake)
            assert later.ranges[0].start == batch.ranges[-1].end
        assert len(list(read_dead_letters(tmp_path / "log"))) == 1


def test_a_void_step_whose_events_cannot_be_read_is_waited_for_as_new_events_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> list[Record]:
        raise SourceUnavailable("the broker is away")

    with opened(tmp_path) as intake:
        intake.record(first_batch(intake), 1, None, alpha=1.0, rows=0)
    void, waited = read_history(tmp_path / "journal"), list[float]()
    monkeypatch.setattr("dispatch.intake.sleep", waited.append)
    with opened(tmp_path) as intake:
        intake.go_back(replace(void, generations=(), to_redecide=(void.steps[0].manifest,)), None)
        intake.go_live()
        with monkeypatch.context() as away:
            away.setattr(LogReader, "read", fail)
            assert intake.next_batch(7.0) is None
        assert waited == [7.0]
        assert len(first_batch(intake).samples) == 2


def test_a_stream_that_holds_other_events_than_the_journal_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as intake:
        batch = first_batch(intake)
        intake.record(replace(batch, dead_letters=()), 1, None, alpha=1.0, rows=0)
    with (
        opened(tmp_path) as intake,
        pytest.raises(OtherEvents, match="2 samples, 1 rejected events and 0 omitted negatives; expected 2, 0 and 0"),
    ):
        intake.form_again(read_history(tmp_path / "journal").steps[0], lambda: False)


def test_a_batch_that_was_handed_out_and_not_recorded_comes_after_the_void_steps_before_it(tmp_path: Path) -> None:
    with opened(tmp_path) as intake:
        void = first_batch(intake)
        intake.record(void, 1, None, alpha=1.0, rows=0)
    history = read_history(tmp_path / "journal")
    base = replace(history.base, positions={0: Position(0)})
    to_redecide = replace(history, base=base, generations=(), to_redecide=(history.steps[0].manifest,))
    with opened(tmp_path) as intake:
        intake.go_back(history, None)
        intake.go_live()
        taken = first_batch(intake)
        for _ in range(2):  # another fault before the void step is recorded
            intake.go_back(to_redecide, None)
            again = first_batch(intake)
            assert again.ranges == void.ranges != taken.ranges
        intake.record(again, 1, None, alpha=1.0, rows=0)
        assert first_batch(intake) is taken
