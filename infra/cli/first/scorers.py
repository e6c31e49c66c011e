"""Predictions for the events of a file: from a snapshot on disk, or from a server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from dispatch.checkpoints.survey import find_checkpoints
from infra.base.errors import ConfigError
from infra.base.storage import Storage
from infra.cli.steer.client import ApiClient, ApiRefused
from infra.run.settings import Settings
from ingest.codec.decoder import OFFSET, Decoder
from ingest.filling import as_records
from ingest.schema import FileColumns
from ingest.streams.position import Position
from ps.checkpoints.choice import read_choice
from ps.checkpoints.manifest import CheckpointManifest
from serving.copies import ModelCopy
from serving.loading import load
from serving.snapshots.choosing import wanted_of
from serving.spec import spec_of

NO_LABEL = -1
PREDICT = "/v1/predict"


@dataclass(frozen=True)
class Scored:
    """Predictions of some events, in their order."""

    probabilities_B: NDArray[np.float64]
    """NaN where there is none."""
    labels_B: NDArray[np.int8]
    """-1 where there is none."""
    problems: Sequence[str]
    """Why there is no prediction; empty where there is one."""


class Scorer(Protocol):
    """What predicts."""

    @property
    def columns(self) -> FileColumns | None:
        """The columns of files that the schema names, if it is known and does."""

    def score(self, events: Sequence[bytes]) -> Scored:
        """Predicts events in JSON."""


class SnapshotScorer:
    """A snapshot in memory."""

    def __init__(self, settings: Settings, place: str, number: int | None) -> None:
        """number: of the checkpoint; None: the one that would be served. Raises ConfigError if there is none."""
        storage = Storage.at(place)
        manifest = _manifest(storage, number)
        schema = settings.event_schema
        self.columns = schema.file
        spec = spec_of(settings.serving, settings.run, settings.seed, settings.scaled_rows, settings.model, schema)
        self._copy = ModelCopy(spec)
        self._decoder = Decoder(schema, needs_label=False)
        self._most = settings.serving.batch_samples
        load(storage, manifest, self._copy)

    def score(self, events: Sequence[bytes]) -> Scored:
        from serving.engine import predict_in_slices

        decoded = self._decoder.decode(as_records(events), Position(0))
        probabilities_B = np.full(len(events), np.nan)
        if len(decoded):
            probabilities_BM = predict_in_slices(self._copy, decoded.samples, self._most)
            probabilities_B[decoded.at_B[:, OFFSET]] = probabilities_BM[:, 0]  # of the main label
        problems = [""] * len(events)
        for reject in decoded.rejects:
            problems[reject.position.offset] = reject.reason
        return Scored(probabilities_B, labels_of(events), problems)


class ServerScorer:
    """A prediction server; it answers a request as a whole, so events that do not fit are sent no second time."""

    columns: FileColumns | None = None

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    def close(self) -> None:
        self._client.__exit__(None, None, None)

    def score(self, events: Sequence[bytes]) -> Scored:
        problems = [""] * len(events)
        samples = {row: sample for row, event in enumerate(events) if (sample := _sample(event, row, problems))}
        probabilities_B = np.full(len(events), np.nan)
        self._ask(samples, probabilities_B, problems)
        return Scored(probabilities_B, labels_of(events), problems)

    def _ask(self, samples: dict[int, Any], probabilities_B: NDArray[np.float64], problems: list[str]) -> None:
        """Requests predictions of samples by row, in parts if they are too large together."""
        rows = list(samples)
        if not rows:
            return
        try:
            probabilities_B[rows] = self._client.ask(PREDICT, list(samples.values()))["probabilities"]
        except ApiRefused as refused:
            if refused.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
                if len(rows) == 1:
                    problems[rows[0]] = str(refused)
                    return
                for part in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
                    self._ask({row: samples[row] for row in part}, probabilities_B, problems)
                return
            reasons = _reasons(refused)
            for place, reason in reasons.items():
                problems[rows[place]] = reason
            fitting = {row: samples[row] for place, row in enumerate(rows) if place not in reasons}
            self._ask(fitting, probabilities_B, problems)


def _manifest(storage: Storage, number: int | None) -> CheckpointManifest:
    found = [each.manifest for each in find_checkpoints(storage) if each.manifest is not None]
    if number is None:
        wanted = wanted_of(found, read_choice(storage))
    else:
        wanted = next((each for each in found if each.number == number), None)
    if wanted is None:
        there = ", ".join(str(each.number) for each in found) or "none"
        raise ConfigError(
            f"there is no snapshot {'that may be served' if number is None else number}; there are {there}; expected "
            "one; name it with --checkpoint, or train first"
        )
    return wanted


def _sample(event: bytes, row: int, problems: list[str]) -> dict[str, Any]:
    """The fields of an event, for a request; empty, with a reason, if it is none."""
    try:
        value = msgspec.json.decode(event)
        return {"fields": value["fields"]}
    except (msgspec.DecodeError, ValueError) as error:
        problems[row] = f"not decodable: {error}"
    except (KeyError, TypeError):
        problems[row] = "missing: the event has no fields"
    return {}


def _reasons(refused: ApiRefused) -> Mapping[int, str]:
    """The reasons of samples that do not fit, by index; raises the refusal again if it is for something else."""
    reasons = {error["index"]: error["reason"] for error in refused.errors if {"index", "reason"} <= error.keys()}
    if refused.status != HTTPStatus.UNPROCESSABLE_ENTITY or not reasons:
        raise refused
    return reasons


class _LabelOnly(msgspec.Struct):
    label: Any = None


_decoder = msgspec.json.Decoder(_LabelOnly)


def labels_of(events: Sequence[bytes]) -> NDArray[np.int8]:
    """The labels that events have; -1 for any other."""
    return np.array([_label(event) for event in events], np.int8)


def _label(event: bytes) -> int:
    try:
        label = _decoder.decode(event).label
    except (msgspec.DecodeError, ValueError):
        return NO_LABEL
    return int(label) if label in (0, 1) else NO_LABEL
