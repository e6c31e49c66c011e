"""The log of served predictions: what was answered, by an id that the event with the label repeats.

    FOLDER/predictions/00000/…    an embedded log (ingest.log.embedded), one partition for each serving process

A record is MessagePack, a list of predictions. Nobody who predicts waits for the log: a thread writes what was handed
over, and what it cannot write, because the disk is full or too slow, is counted and told once. A process that is killed
loses the predictions of the last moments; their labels are then of unknown predictions.
"""

import threading
import time
import uuid
from collections import deque
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import msgspec
import structlog

from infra.base.telemetry import Meter
from ingest.errors import LogError
from ingest.log.embedded import LogWriter

TOPIC = "predictions"
SEGMENT_BYTES = 8 << 20
"""retention removes whole segments, so they are small"""
RECORD_PREDICTIONS = 4096
"""most of one record"""
MOST_UNWRITTEN = 65_536
"""predictions that may wait to be written; more are left out"""
WRITE_SECONDS = 0.05
"""between two writes: each makes what it wrote durable"""


class Prediction(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One answer."""

    id: str
    at_ms: int
    """unix milliseconds"""
    probability: float
    timeline: int = msgspec.field(name="line")
    step: int
    """the step of the snapshot that answered"""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Prediction])


def encode_predictions(predictions: Sequence[Prediction]) -> bytes:
    """One record; the counterpart of ``decode_predictions``."""
    return _encoder.encode(predictions)


def decode_predictions(payload: bytes) -> list[Prediction]:
    """The predictions of one record; raises msgspec.DecodeError for what is none."""
    return _decoder.decode(payload)


def new_id() -> str:
    """For a prediction whose client gave none."""
    return uuid.uuid4().hex


def now_ms() -> int:
    return int(1000 * time.time())


class PredictionLog:
    """Writes the predictions of one serving process, in a thread."""

    def __init__(self, folder: Path, process: int, keep_seconds: float, meter: Meter) -> None:
        """keep_seconds: how long predictions are kept at least, after which their segments may go."""
        self._writer = LogWriter(folder, TOPIC, [process], SEGMENT_BYTES, retention_seconds=keep_seconds)
        self.process = process
        self._meter = meter
        self._unwritten: deque[Prediction] = deque()
        self._changed = threading.Condition()
        self._is_closing = threading.Event()
        self._is_failing = False
        self._thread = threading.Thread(target=self._run, name="predictions", daemon=True)
        self._thread.start()

    def append(self, predictions: Sequence[Prediction]) -> None:
        """Hands predictions over; returns at once, whatever the disk does."""
        with self._changed:
            room = MOST_UNWRITTEN - len(self._unwritten)
            self._unwritten.extend(predictions[:room])
            self._changed.notify()
        if len(predictions) > room:
            self._lose(len(predictions) - room, f"{MOST_UNWRITTEN} wait to be written; the disk is too slow")

    def close(self) -> None:
        """Writes what waits, and ends."""
        with self._changed:
            self._is_closing.set()
            self._changed.notify()
        self._thread.join()
        self._writer.close()

    def _run(self) -> None:
        while batch := self._next_predictions():
            try:
                self._writer.append(self.process, [(None, encode_predictions(batch))])
            except LogError as error:
                self._lose(len(batch), str(error))
            else:
                self._is_failing = False
                self._meter.count("logged_predictions", len(batch))
            self._is_closing.wait(WRITE_SECONDS)

    def _next_predictions(self) -> list[Prediction]:
        """Waits for predictions, and takes as many as make a record; none when it is time to end."""
        with self._changed:
            self._changed.wait_for(lambda: self._unwritten or self._is_closing.is_set())
            batch = list(islice(self._unwritten, RECORD_PREDICTIONS))
            for _ in batch:
                self._unwritten.popleft()
        return batch

    def _lose(self, count: int, reason: str) -> None:
        """Counts predictions that are not logged; says so once, until one is written again."""
        self._meter.count("unlogged_predictions", count)
        if not self._is_failing:
            self._is_failing = True
            structlog.get_logger().warning("predictions are not logged; they are served all the same", reason=reason)
