"""The joiner: a thread of the first serving process that reads the log of predictions and the stream of the run.

Every turn:

1. read new predictions
2. read new events of the stream that carry an id
3. give up predictions whose window has passed
4. save the state now and then: positions, sums and waiting predictions, in one record

Nothing outside memory changes before 4, and 4 replaces one file. A crash at any point costs the turns since the last
record; they are repeated from its positions, so no label is counted twice and none is lost. The state is first saved
before the first prediction is served, so that the stream is read from that time on.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog

from infra.base.errors import FreshetError
from infra.base.storage import Storage
from infra.base.telemetry import Meter
from ingest.codec.nesting import is_too_deep
from ingest.codec.packed import is_packed
from ingest.errors import OffsetOutOfRange
from ingest.log.embedded import LogReader
from ingest.log.floor import write_floor
from ingest.streams.position import Position
from ingest.streams.source import Record, Source
from serving.labels.join import MOST_WAITING, LabelJoin
from serving.labels.predictions import TOPIC, decode_predictions, now_ms
from serving.labels.quality import ServedQuality, quality_of
from serving.labels.state import JoinState, load_state, save_state

READ_BYTES = 1 << 20
"""Bytes of a partition that are read in one turn."""
IDLE_SECONDS = 0.2
"""Pause after a turn that found nothing."""
RETRY_SECONDS = 2.0
"""Pause after a turn that failed."""
SAVE_SECONDS = 1.0
SAVE_SHARE = 0.05
"""The largest share of the time that saving may take: a large state is saved less often."""
SKEW_MS = 60_000
"""How far a broker's clock may be behind this machine's."""
FLOOR = "joiner"
ID_NAME = b'"prediction"'


class _Labelled(msgspec.Struct):
    prediction: str | None = None
    label: int | None = None
    labels: dict[str, int | None] = {}


_decoder = msgspec.json.Decoder(_Labelled)


def label_of(payload: bytes, main_label: str = "") -> tuple[str, int] | None:
    """(id, label) of an event that has both; None for every other record. main_label: its name, if there are several
    labels.
    """
    if ID_NAME not in payload or is_packed(payload) or is_too_deep(payload):
        return None
    try:
        found = _decoder.decode(payload)
    except (msgspec.DecodeError, ValueError):
        return None  # not an event: training rejects it
    label = found.label if found.label is not None else found.labels.get(main_label)
    return (found.prediction, int(label or 0)) if found.prediction and label in (0, 1) else None


class Joiner:
    """Reads both logs and updates the state."""

    def __init__(
        self,
        folder: Path,
        open_source: Callable[[], Source],
        label_seconds: float,
        meter: Meter,
        most_waiting: int = MOST_WAITING,
        clock_ms: Callable[[], int] = now_ms,
        negative_weight: float = 1.0,
        main_label: str = "",
    ) -> None:
        """Raises LabelsDamaged if the saved state cannot be read. negative_weight: see LabelJoin. main_label: its name,
        if there are several labels.
        """
        self._main_label = main_label
        self._folder = folder
        self._meter = meter
        self._clock_ms = clock_ms
        self._storage = Storage.at(folder)
        self._predictions = LogReader(folder, TOPIC)
        self._open_source = open_source
        self._source: Source | None = None
        state = load_state(self._storage)
        if state is None:
            state = JoinState(since_ms=clock_ms() - SKEW_MS)
            save_state(self._storage, state)
        self._join = LabelJoin(state, int(1000 * label_seconds), most_waiting, negative_weight)
        self._save_at = time.monotonic() + SAVE_SECONDS
        self.quality: ServedQuality = quality_of(state, "")
        """The quality as of the last turn; replaced as a whole."""
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="labels", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Saves the state and ends the thread; only for a joiner that was started."""
        self._is_closing.set()
        self._thread.join()

    # ── a turn ────────────────────────────────────────────────────────────────────────────────────────────────────────
    def turn(self) -> bool:
        """Reads everything new; returns whether there was anything."""
        state = self._join.state
        found = self._read_predictions(state)
        more, read_ms = self._read_events(state)
        self._join.pass_time(read_ms, self._clock_ms())
        if time.monotonic() >= self._save_at:
            self.save()
        self._show("")
        return found or more

    def save(self) -> None:
        """Makes the state durable, and allows the log of predictions to be removed up to its position."""
        begun = time.monotonic()
        state = self._join.state
        save_state(self._storage, state)
        positions = {partition: Position(offset) for partition, offset in state.predictions.items()}
        write_floor(self._folder, TOPIC, FLOOR, positions)
        took = time.monotonic() - begun
        self._save_at = time.monotonic() + max(SAVE_SECONDS, took / SAVE_SHARE)

    def _read_predictions(self, state: JoinState) -> bool:
        found = False
        for partition in self._predictions.partitions():
            offset = state.predictions.setdefault(partition, 0)
            while records := self._records(self._predictions, state.predictions, partition, offset):
                for made in [each for record in records for each in decode_predictions(record.payload)]:
                    self._join.add_prediction(made)
                offset = state.predictions[partition] = records[-1].offset + 1
                found = True
        return found

    def _read_events(self, state: JoinState) -> tuple[bool, int]:
        """(whether there were any, the time up to which all events have been read)."""
        source = self._source = self._source or self._open_source()
        found = False
        read_ms = self._clock_ms()
        for partition in source.partitions():
            if partition not in state.events:
                state.events[partition] = source.offset_at(partition, state.since_ms)
            records = self._records(source, state.events, partition, state.events[partition])
            for record in records:
                if (labelled := label_of(record.payload, self._main_label)) is not None:
                    self._join.add_label(*labelled, record.time_ms, self._clock_ms())
            if records:
                state.events[partition] = records[-1].offset + 1
                found, read_ms = True, min(read_ms, records[-1].time_ms)
        return found, read_ms

    def _records(self, source: Source, positions: dict[int, int], partition: int, offset: int) -> list[Record]:
        """The next records; if retention has removed some, skips and counts them."""
        try:
            return source.read(partition, offset, READ_BYTES)
        except OffsetOutOfRange:
            first, _ = source.span(partition)
            self._join.state.counts.skipped += max(0, first - offset)
            positions[partition] = first
            return source.read(partition, first, READ_BYTES)

    # ── the thread ────────────────────────────────────────────────────────────────────────────────────────────────────
    def _run(self) -> None:
        while not self._is_closing.is_set():
            try:
                wait = 0.0 if self.turn() else IDLE_SECONDS
            except (FreshetError, msgspec.DecodeError) as error:
                self._fail(error)
                wait = RETRY_SECONDS
            self._is_closing.wait(wait)
        try:
            self.save()
        except FreshetError as error:
            self._fail(error)
        self._predictions.close()
        if self._source is not None:
            self._source.close()

    def _fail(self, error: Exception) -> None:
        """Reports the failure; serving continues without labels."""
        if str(error) != self.quality.failure:
            structlog.get_logger().warning("labels are not joined; trying again", reason=str(error))
        self._show(str(error))

    def _show(self, failure: str) -> None:
        self.quality = quality = quality_of(self._join.state, failure)
        counts = quality.counts
        total = quality.total
        outcomes = {"joined": total.labels, "unknown": counts.unknown, "duplicate": counts.duplicates}
        for outcome, value in (outcomes | {"missing": total.missing, "forgotten": counts.forgotten}).items():
            self._meter.total("served_labels", value, outcome=outcome)
        self._meter.gauge("served_waiting", quality.waiting)
        if total.logloss is not None:
            self._meter.gauge("served_logloss", total.logloss)
        if total.calibration is not None:
            self._meter.gauge("served_calibration", total.calibration)
