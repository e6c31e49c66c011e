"""The log of served predictions, by an id that the event with the label repeats.

    FOLDER/predictions/00000/…    an embedded log (ingest.log.embedded), one partition for each serving process

A record is a list of predictions in MessagePack. Answers do not wait for the log: a thread writes it. Predictions that
it cannot write, because the disk is full or too slow, are counted, and a warning is logged once. A process that is
killed loses its last predictions; their labels then count as labels of unknown predictions.
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
"""Size of a segment; small, because retention removes whole segments."""
RECORD_PREDICTIONS = 4096
"""Most predictions of one record."""
MOST_UNWRITTEN = 65_536
"""Most predictions that may wait to be written; further ones are dropped."""
WRITE_SECONDS = 0.05
"""Time between two writes; each write is made durable."""


class Prediction(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One logged answer."""

    id: str
    at_ms: int
    """Time of the answer, in Unix milliseconds."""
    probability: float
    timeline: int = msgspec.field(name="line")
    step: int
    """Step of the snapshot that answered."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Prediction])


def encode_predictions(predictions: Sequence[Prediction]) -> bytes:
    """Encodes one record; the counterpart of ``decode_predictions``."""
    return _encoder.encode(predictions)


def decode_predictions(payload: bytes) -> list[Prediction]:
    """The predictions of one record; raises msgspec.DecodeError if it is not one."""
    return _decoder.decode(payload)


def new_id() -> str:
    """An id for a prediction whose client gave none."""
    return uuid.uuid4().hex


def now_ms() -> int:
    return int(1000 * time.time())


class PredictionLog:
    """Writes the predictions of one serving process, in a thread."""

    def __init__(self, folder: Path, process: int, keep_seconds: float, meter: Meter) -> None:
        """Predictions are kept for at least ``keep_seconds``; after that their segments may be removed."""
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
        """Queues predictions; returns at once, even if the disk is slow."""
        with self._changed:
            room = MOST_UNWRITTEN - len(self._unwritten)
            self._unwritten.extend(predictions[:room])
            self._changed.notify()
        if len(predictions) > room:
            self._lose(len(predictions) - room, f"{MOST_UNWRITTEN} wait to be written; the disk is too slow")

    def close(self) -> None:
        """Writes the queued predictions, and ends the thread."""
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
        """Waits for predictions, and returns those of the next record; empty when the thread should end."""
        with self._changed:
            self._changed.wait_for(lambda: self._unwritten or self._is_closing.is_set())
            batch = list(islice(self._unwritten, RECORD_PREDICTIONS))
            for _ in batch:
                self._unwritten.popleft()
        return batch

    def _lose(self, count: int, reason: str) -> None:
        """Counts predictions that are not logged; warns once, until one is written again."""
        self._meter.count("unlogged_predictions", count)
        if not self._is_failing:
            self._is_failing = True
            structlog.get_logger().warning("predictions are not logged; they are served all the same", reason=reason)
