"""What the application does about labels: ids of samples, the log of answers, and what has been found so far.

Processes that share a port share the folder: each takes the first partition of the log that is free, and the one that
has the first partition runs the joiner. When it ends, whoever is started next takes its place.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import structlog
from numpy.typing import NDArray

from infra.base.errors import FileUnusable
from infra.base.storage import Storage
from infra.base.telemetry import Meter
from ingest.codec.nesting import is_too_deep
from ingest.errors import LogBusy
from ingest.streams.source import Source
from ps.checkpoints.manifest import CheckpointManifest
from serving.labels.errors import BadPredictionId, LabelsDamaged
from serving.labels.joiner import Joiner
from serving.labels.predictions import Prediction, PredictionLog, new_id, now_ms
from serving.labels.quality import ServedQuality, quality_of
from serving.labels.state import JoinState, load_state

LONGEST_ID = 200
"""characters"""
MOST_PROCESSES = 64
READ_SECONDS = 1.0
"""between two looks of the other processes at what the joiner has saved"""


class _Identified(msgspec.Struct):
    prediction: Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_ID)] | None = None


_decoder = msgspec.json.Decoder(_Identified)


def ids_of(payloads: Sequence[bytes]) -> list[str]:
    """The id of each sample, given or drawn; raises BadPredictionId for one that cannot be used."""
    return [_id_of(place, payload) for place, payload in enumerate(payloads)]


def _id_of(place: int, payload: bytes) -> str:
    if is_too_deep(payload):
        return new_id()  # no sample: it is refused as one
    try:
        return _decoder.decode(payload).prediction or new_id()
    except msgspec.ValidationError as error:
        raise BadPredictionId(
            f"the prediction id of sample {place} cannot be used: {error}; expected a text of 1 to {LONGEST_ID} "
            "characters; correct it, or leave it out"
        ) from error
    except (msgspec.DecodeError, ValueError):
        return new_id()


class ServedLabels:
    """One process's log of predictions, and the joiner if it is the first."""

    def __init__(self, folder: Path, label_seconds: float, open_source: Callable[[], Source], meter: Meter) -> None:
        self._log = _open_log(folder, label_seconds, meter)
        self._storage = Storage.at(folder)
        self._joiner: Joiner | None = None
        self._found = quality_of(JoinState(since_ms=0), "the joiner has saved nothing yet")
        self._read_at = 0.0
        if self._log.process == 0:
            try:
                self._joiner = Joiner(folder, open_source, label_seconds, meter)
            except LabelsDamaged as error:  # predictions are worth more than their quality
                structlog.get_logger().error("labels are not joined", reason=str(error))

    def start(self) -> None:
        if self._joiner is not None:
            self._joiner.start()

    def close(self) -> None:
        self._log.close()
        if self._joiner is not None:
            self._joiner.close()

    def log(self, ids: Sequence[str], probabilities_B: NDArray[np.float32], manifest: CheckpointManifest) -> None:
        """Logs the answers to some samples; returns at once."""
        at_ms = now_ms()
        answers = zip(ids, probabilities_B.tolist(), strict=True)
        self._log.append(
            [
                Prediction(
                    id=name, at_ms=at_ms, probability=probability, timeline=manifest.timeline, step=manifest.step
                )
                for name, probability in answers
            ]
        )

    def quality(self) -> ServedQuality:
        """What the joiner has found; in other processes, and where it could not start, what it has saved."""
        if self._joiner is not None:
            return self._joiner.quality
        if time.monotonic() >= self._read_at:
            self._found = self._saved()
            self._read_at = time.monotonic() + READ_SECONDS
        return self._found

    def _saved(self) -> ServedQuality:
        try:
            state = load_state(self._storage)
        except (LabelsDamaged, FileUnusable) as error:
            return msgspec.structs.replace(self._found, failure=str(error))
        return self._found if state is None else quality_of(state, "")


def _open_log(folder: Path, keep_seconds: float, meter: Meter) -> PredictionLog:
    for process in range(MOST_PROCESSES - 1):
        with suppress(LogBusy):
            return PredictionLog(folder, process, keep_seconds, meter)
    return PredictionLog(folder, MOST_PROCESSES - 1, keep_seconds, meter)
