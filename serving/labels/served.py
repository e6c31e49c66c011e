"""What the application needs for labels: ids of samples, the log of answers, and the quality so far.

Processes that share a port share the folder: each uses the first free partition of the log, and the process with the
first partition runs the joiner. When that process ends, the next one to start replaces it.
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
"""Greatest length of an id, in characters."""
MOST_PROCESSES = 64
READ_SECONDS = 1.0
"""How often the other processes read what the joiner has saved."""


class _Identified(msgspec.Struct):
    prediction: Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_ID)] | None = None


_decoder = msgspec.json.Decoder(_Identified)


def ids_of(payloads: Sequence[bytes]) -> list[str]:
    """The id of each sample, from the client or new; raises BadPredictionId if the client's cannot be used."""
    return [_id_of(place, payload) for place, payload in enumerate(payloads)]


def _id_of(place: int, payload: bytes) -> str:
    if is_too_deep(payload):
        return new_id()  # not a sample: it will be rejected as one
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
    """The log of predictions of one process, and the joiner if it is the first process."""

    def __init__(
        self,
        folder: Path,
        label_seconds: float,
        open_source: Callable[[], Source],
        meter: Meter,
        negative_weight: float = 1.0,
        main_label: str = "",
    ) -> None:
        """negative_weight: what a label 0 counts, for those that are missing from the events. main_label: its name, if
        there are several labels.
        """
        self._log = _open_log(folder, label_seconds, meter)
        self._storage = Storage.at(folder)
        self._joiner: Joiner | None = None
        self._found = quality_of(JoinState(since_ms=0), "the joiner has saved nothing yet")
        self._read_at = 0.0
        if self._log.process == 0:
            try:
                self._joiner = Joiner(
                    folder,
                    open_source,
                    label_seconds,
                    meter,
                    negative_weight=negative_weight,
                    main_label=main_label,
                )
            except LabelsDamaged as error:  # serving predictions matters more than measuring their quality
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
        """What the joiner has found; what it has saved, in other processes and if it could not start."""
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
