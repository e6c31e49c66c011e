"""A click model in this process: for notebooks, for tests, and to compare with other libraries.

It predicts and learns as a run with one worker does, in the same batches, and its snapshots are those of a run: a
server serves them, and a learner goes on with the model of a run.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from time import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dispatch.progress.prequential import Prequential
from dispatch.progress.quality import Quality
from freshet.overrides import as_overrides, schema_setting
from freshet.saving import BegunModel, read_saved, write_snapshot
from freshet.sole import SoleWorker, model_settings_of
from infra.base.errors import ConfigError
from infra.run.settings import Settings, load_settings
from ingest.batches.job import LoaderJob
from ingest.convert import Converter, Event, Value
from ingest.samples import Samples, join_samples, no_samples
from ps.checkpoints.restore import restore

Fields = Mapping[str, Value]
"""Raw values of an event by the names of the schema's fields; a field may be absent."""
Rows = Any
"""The fields of events: dicts, or a table of pandas, polars or Arrow, in which NaN and null are absent values."""
RUN = "learner"


class Learner:
    """Learns clicks one by one or many at a time; predicts at any moment.

    Events are learnt in batches, which grow as those of a run: an event waits until its batch is full, or until
    ``flush``. With ``batch=1`` every event is learnt at once.
    """

    def __init__(
        self, schema: str | Path, *, batch: int = 512, seed: int = 0, settings: Mapping[str, Any] | None = None
    ) -> None:
        """schema: name of a built-in schema, or path of a TOML file. settings: others of docs/settings.md by name, such
        as ``{"model.name": "deepfm"}``.
        """
        given = as_overrides(settings or {})
        chosen = [schema_setting(schema), f"stream.batch={batch}", f"seed={seed}", *given]
        self._begin(BegunModel(load_settings(None, chosen, run=RUN, folder=Path(RUN))))

    @classmethod
    def load(cls, folder: str | Path, checkpoint: int | None = None) -> "Learner":
        """Goes on with a snapshot that ``save`` wrote, or with one of a run.

        folder: the learner's or the run's. checkpoint: its number; None: the newest.
        """
        learner = cls.__new__(cls)
        learner._begin(read_saved(Path(folder), checkpoint))
        return learner

    def _begin(self, saved: BegunModel) -> None:
        settings = saved.settings
        _check_plain(settings)
        self._settings = settings
        self._schema = settings.event_schema
        self._converter = Converter(self._schema)
        begun = restore(saved.storage, saved.checkpoint, model_settings_of(settings), settings.run, 0, 1)
        self._worker = SoleWorker(settings, begun, saved.step)
        stream = settings.stream
        self._batches = LoaderJob(
            self._schema, stream.batch, first_batch=stream.first_batch, batch_growth=stream.batch_growth
        )
        self._learnt = saved.samples
        self._waiting = no_samples(self._schema.fields, self._schema.dense)
        self._quality = Prequential()

    # ── predicting ────────────────────────────────────────────────────────────────────────────────────────────────────
    def predict_one(self, fields: Fields) -> float:
        """The click probability of an event."""
        return float(self.predict_many([fields])[0])

    def predict_many(self, events: Rows) -> NDArray[np.float32]:
        """The click probabilities of events. Raises ConfigError for a field of a wrong type."""
        rows = _fields_of(events)
        return _probabilities(self._worker.score(self._samples(rows, [0] * len(rows), None)))

    # ── learning ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def learn_one(self, fields: Fields, label: int, time_seconds: float | None = None) -> float:
        """Learns one event; returns its click probability before that. time_seconds: since 1970; None: now."""
        return float(self.learn_many([fields], [label], None if time_seconds is None else [time_seconds])[0])

    def learn_many(
        self, events: Rows, labels: Sequence[int], times_seconds: Sequence[float] | None = None
    ) -> NDArray[np.float32]:
        """Learns events in their order; returns the click probability of each before it was learnt.

        Raises ConfigError if an event or a label is wrong; then none of them has been learnt.
        """
        given = self._samples(_fields_of(events), labels, times_seconds)
        joined = join_samples([self._waiting, given])
        before = len(self._waiting)
        logits: list[NDArray[np.float32]] = []
        start = 0
        while start + (size := self._batches.batch_after(self._learnt)) <= len(joined):
            logits.append(self._learn(joined.slice(start, start + size)))
            start += size
        self._waiting = joined.slice(start, len(joined))
        if (unanswered := max(start, before)) < len(joined):
            logits.append(self._worker.score(joined.slice(unanswered, len(joined))))
        answered = before if start else 0  # in the batches; those that wait on were answered when they came
        return _probabilities(np.concatenate(logits)[answered:]) if logits else np.empty(0, np.float32)

    def flush(self) -> None:
        """Learns the events that wait for their batch to be full, as a smaller batch."""
        if len(self._waiting):
            self._learn(self._waiting)
            self._waiting = no_samples(self._schema.fields, self._schema.dense)

    # ── reading and saving ────────────────────────────────────────────────────────────────────────────────────────────
    @property
    def learnt(self) -> int:
        """Events learnt so far, without those that wait."""
        return self._learnt

    @property
    def rows(self) -> int:
        """Keys that have a row of the model."""
        return self._worker.known

    @property
    def quality(self) -> Quality:
        """Logloss, AUC and calibration of the predictions before learning, since this learner began or was loaded."""
        return self._quality.overall()

    def save(self, folder: str | Path) -> int:
        """Writes the model as the next snapshot of a folder, durably; returns its number. It lacks events that wait."""
        return write_snapshot(Path(folder), self._settings, self._worker, self._learnt)

    def _learn(self, batch: Samples) -> NDArray[np.float32]:
        logits_B = self._worker.learn(batch)
        self._quality.add(logits_B, batch.labels_B, batch.weights_B)
        self._learnt += len(batch)
        return logits_B

    def _samples(self, events: Sequence[Fields], labels: Sequence[int], times: Sequence[float] | None) -> Samples:
        if times is None:
            times = [time()] * len(events)
        if not len(events) == len(labels) == len(times):
            raise ConfigError(
                f"{len(events)} events, {len(labels)} labels and {len(times)} times were given; expected as many of "
                "each; give every event a label"
            )
        given = zip(events, labels, times, strict=True)
        samples, faults = self._converter.convert_events([Event(at, label, dict(each)) for each, label, at in given])
        if faults:
            first = min(faults)
            raise ConfigError(
                f"event {first} of {len(events)} is wrong: {faults[first]}; {len(faults)} are; expected the fields of "
                f"schema {self._schema.name}; correct or leave them out, nothing was learnt"
            )
        return samples


def _fields_of(events: Rows) -> Sequence[Fields]:
    if isinstance(events, list | tuple):
        return events
    from freshet_client.rows import plain_fields, rows_of

    return [plain_fields(row) for row in rows_of(events)]


def _probabilities(logits_B: NDArray[np.float32]) -> NDArray[np.float32]:
    return (1 / (1 + np.exp(-logits_B))).astype(np.float32)


def _check_plain(settings: Settings) -> None:
    """Raises ConfigError for settings of which only a dispatcher knows what they mean."""
    if settings.rows.chunks or settings.memory.admit_after > 1:
        raise ConfigError(
            f"rows.chunks is {settings.rows.chunks} and memory.admit_after {settings.memory.admit_after}; expected 0 "
            "and 1, since a learner neither prunes rows nor waits for keys to come again; use a run for that"
        )
    schema = settings.event_schema
    if schema.keep_negatives < 1 or schema.labels:
        raise ConfigError(
            f"the schema keeps a share {schema.keep_negatives:g} of the negatives and has {len(schema.labels)} labels "
            "of its own; expected all and none, since a learner learns every event it is given, and one label; leave "
            "events out yourself and set negatives_kept, or use a run"
        )
