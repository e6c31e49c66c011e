"""Which snapshots the gate holds back when labels or fields go wrong, and when the stream really changes.

One plain process trains a stream with the formulas of a run (``trainer/reference.py``) and takes a snapshot at regular
numbers of samples. Each is judged by the gate itself (``dispatch/checkpoints/gate.py``): the last good snapshot is
served, and scores the newest samples as a server would. For a third of the stream everything is as usual, then
something goes wrong or changes, in the middle of a snapshot, and for the last third it is as before.
"""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.clicks import read_samples
from dispatch.checkpoints.evidence import scored
from dispatch.checkpoints.gate import CheckpointReadings, GateState, PresentCounts, ReferenceScores, judge
from dispatch.job import GateRule
from dispatch.progress.newest import MOST_ASKED
from dispatch.progress.prequential import Prequential, recent_quality
from infra.base.errors import ConfigError
from ingest.batches.counting import count_present
from ingest.convert import Converter
from ingest.presence import witnesses_of
from ingest.producing.synthetic import CHUNK, World
from ingest.samples import Samples, join_samples
from ingest.schema import Schema, load_schema
from ps.config import RowConfig
from ps.start import start_rows
from trainer.config import ModelConfig
from trainer.reference import Reference

BATCH = 256
SEED = 0
CASES = (
    "nothing",
    "all zeros",
    "all ones",
    "inverted",
    "random",
    "field gone",
    "tenfold rate",
    "slow drift",
)
RARE = 10.0
"""Factor by which clicks are rarer than usual before a change of the click rate."""
Fault = Callable[[Samples, float, np.random.Generator], Samples]
"""Changes the samples of the middle third; the number is the progress, from 0 to 1."""


@dataclass(frozen=True)
class GateLoad:
    """What is tried."""

    dataset: str
    """synthetic, or the data set of the file."""
    file: Path | None
    samples: int
    """Most samples of the whole stream."""
    snapshot_samples: int
    field: str
    """Field that is missing in one of the cases."""
    has_server: bool = True
    """Whether the served snapshot scores the newest samples."""


@dataclass(frozen=True)
class GateResult:
    """One case; snapshots are counted from the beginning of the middle third, or of the last."""

    name: str
    snapshots: int
    false_holds: int
    """Held back in the first third; if nothing is wrong, in the whole stream."""
    held_after: int | None
    """Snapshots that were still published; None: none was held back in the middle third."""
    held: int
    """Held back in the middle third."""
    passed_after: int | None
    """The first snapshot from which on all were good, in the middle third; None: the last was held back."""
    back_after: int | None
    """Snapshots of the last third that were held back before the first good one; None: there was none."""
    mean_before: float
    """Mean prediction of the served snapshot, for the newest samples."""
    least_mean: float
    """Least mean from the beginning of the middle third on."""
    largest_mean: float
    reason: str
    """Reason of the first that was held back."""


def run_gate(load: GateLoad, cases: Sequence[str], tell: Callable[[str], None]) -> list[GateResult]:
    """Makes one pass over the stream for each case."""
    schema = load_schema(load.dataset)
    known = faults(schema, load.field)
    if unknown := set(cases) - known.keys():
        raise ConfigError(f"no cases {sorted(unknown)}; expected some of {', '.join(CASES)}; choose among these")
    results = []
    for name in cases:
        results.append(_try_case(load, schema, name, known[name]))
        tell(f"{name}: {results[-1].held} held of {results[-1].snapshots}, {results[-1].reason or 'none'}")
    return results


# ── cases ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
def faults(schema: Schema, field: str) -> dict[str, Fault]:
    """The faults by name."""

    def labelled(make: Callable[[NDArray[np.float32], np.random.Generator], NDArray[np.float32]]) -> Fault:
        return lambda samples, _, draw: replace(samples, labels_B=make(samples.labels_B, draw))

    return {
        "nothing": lambda samples, _, draw: samples,
        "all zeros": labelled(lambda labels_B, _: np.zeros_like(labels_B)),
        "all ones": labelled(lambda labels_B, _: np.ones_like(labels_B)),
        "inverted": labelled(lambda labels_B, _: 1 - labels_B),
        "random": labelled(lambda labels_B, draw: draw.permutation(labels_B)),
        "field gone": lambda samples, _, draw: without(samples, schema, field),
        "tenfold rate": lambda samples, _, draw: samples,  # it was thinned before, and no longer is
        "slow drift": lambda samples, at, draw: thinned(samples, RARE ** -min(2 * at, 2 - 2 * at), draw),
    }


def thinned(samples: Samples, share: float, draw: np.random.Generator) -> Samples:
    """The same events with this share of the click rate: the other clicks are removed, as if they
    had never happened.
    """
    rate = float(samples.labels_B.mean())
    kept = share * (1 - rate) / max(1e-9, 1 - share * rate)
    return samples.where((samples.labels_B < 0.5) | (draw.random(len(samples)) < kept))


def without(samples: Samples, schema: Schema, field: str) -> Samples:
    """The same events without one of their fields."""
    if field not in schema.sources:
        known = ", ".join(schema.sources)
        raise ConfigError(
            f"no field {field!r} in schema {schema.name}; expected one of {known}; choose one with --field"
        )
    at, (key_S, absent_S, dense_S) = schema.sources.index(field), witnesses_of(schema)
    keys_BF = samples.keys_BF.copy()
    dense_BN = samples.dense_BN.copy()
    if key_S[at] >= 0:
        keys_BF[:, key_S[at]] = absent_S[at]
    else:
        dense_BN[:, dense_S[at]] = -0.0
    return replace(samples, keys_BF=keys_BF, dense_BN=dense_BN)


# ── the stream ────────────────────────────────────────────────────────────────────────────────────────────────────────
def read_stream(load: GateLoad, schema: Schema) -> Iterator[Samples]:
    """Parts of the stream, in order."""
    parts = _synthetic(schema) if load.file is None else read_samples(load.dataset, load.file, schema)
    left = load.samples
    for part in parts:
        if left <= 0:
            return
        yield part.slice(0, left)
        left -= len(part)


def _synthetic(schema: Schema) -> Iterator[Samples]:
    world = World(SEED)
    converter = Converter(schema)
    for number in count():
        samples, _ = converter.convert_events(list(world.events(world.chunk(number))))
        assert len(samples) == CHUNK
        yield samples


def snapshots_of(load: GateLoad, schema: Schema) -> Iterator[Samples]:
    """The stream, split where snapshots are taken."""
    waiting: list[Samples] = []
    for part in read_stream(load, schema):
        waiting.append(part)
        joined = join_samples(waiting)
        first = 0
        while first + load.snapshot_samples <= len(joined):
            yield joined.slice(first, first + load.snapshot_samples)
            first += load.snapshot_samples
        waiting = [joined.slice(first, len(joined))]


# ── training and judging ──────────────────────────────────────────────────────────────────────────────────────────────
class ServedModel:
    """A snapshot as a server holds it."""

    def __init__(self, trained: Reference, rows: RowConfig, step: int, checkpoint: int) -> None:
        self._config = rows
        self._trained = trained
        self._values_RW = torch.from_numpy(trained.rows()[:, : rows.shape().value])
        self._module = deepcopy(trained.model).requires_grad_(False).eval()
        self.step = step
        self.checkpoint = checkpoint

    def predict(self, samples: Samples) -> NDArray[np.float32]:
        """Predictions for keys that training has numbered; those that this snapshot does not know have their start
        values.
        """
        width = self._config.shape().value
        dim = self._config.dim
        rows_BF, _, _ = self._trained.numbering.number(samples.keys_BF)
        is_known_BF = rows_BF < len(self._values_RW)
        values_BFW = self._values_RW[torch.from_numpy(np.where(is_known_BF, rows_BF, 0))]
        if not is_known_BF.all():
            start_KW = start_rows(self._config, SEED, samples.keys_BF[~is_known_BF])[:, :width]
            values_BFW[torch.from_numpy(~is_known_BF)] = torch.from_numpy(start_KW)
        dense_BN = torch.from_numpy(samples.dense_BN.copy())
        logits_B = self._module(values_BFW[..., :dim], values_BFW[..., dim], dense_BN)
        probabilities_B: NDArray[np.float32] = torch.sigmoid(logits_B).numpy()
        return probabilities_B


class JudgedSnapshot(NamedTuple):
    """The verdict on one snapshot."""

    reasons: tuple[str, ...]
    served_mean: float | None
    """Mean prediction of the snapshot that is served after it, for its newest samples."""


class JudgedRun:
    """Trains snapshots and has each judged."""

    def __init__(self, schema: Schema, has_server: bool) -> None:
        self._rows = RowConfig().of_run(BATCH, schema.fields)
        crosses = len(schema.crosses)
        self._model = Reference(self._rows, ModelConfig(), schema.singles, schema.dense, SEED, crosses=crosses)
        self._schema = schema
        self._has_server = has_server
        self._rule = GateRule()
        self._state = GateState()
        self._quality = Prequential()
        self._served: ServedModel | None = None
        self._step = self._checkpoint = self._trained = 0
        self._present_S = np.zeros(len(schema.sources), np.int64)

    def take(self, samples: Samples) -> JudgedSnapshot:
        """The snapshot after these samples."""
        logits_B = np.concatenate([self._train(samples.slice(at, at + BATCH)) for at in range(0, len(samples), BATCH)])
        first = max(0, len(samples) - MOST_ASKED)
        newest = samples.slice(first, len(samples))
        model_B = 1 / (1 + np.exp(-logits_B[first:]))
        self._checkpoint += 1
        self._trained += len(samples)
        self._present_S = self._present_S + count_present(samples, self._schema)
        reference = None
        if self._served is not None and self._has_server:
            scores = scored(newest.labels_B > 0.5, model_B, self._served.predict(newest))
            reference = ReferenceScores(scores, self._served.checkpoint, self._served.step)
        judged = judge(self._rule, self._state, self._readings(reference))
        self._state = judged.state
        if judged.verdict.is_good:
            self._served = ServedModel(self._model, self._rows, self._step, self._checkpoint)
        mean = None if self._served is None else float(self._served.predict(newest).mean())
        return JudgedSnapshot(judged.verdict.reasons, mean)

    def _train(self, batch: Samples) -> NDArray[np.float32]:
        self._step += 1
        logits_B = self._model.step(batch.keys_BF, batch.dense_BN.copy(), batch.labels_B.copy())
        self._quality.add(logits_B, batch.labels_B)
        return logits_B

    def _readings(self, reference: ReferenceScores | None) -> CheckpointReadings:
        return CheckpointReadings(
            recent_quality(self._quality.save(), self._rule.samples),
            trained=self._trained,
            rows=len(self._model.numbering),
            changed=None,
            non_finite=0,
            number=self._checkpoint,
            step=self._step,
            reference=reference,
            fields=PresentCounts(self._trained, self._present_S),
            field_names=self._schema.sources,
        )


def _try_case(load: GateLoad, schema: Schema, name: str, fault: Fault) -> GateResult:
    draw = np.random.default_rng(SEED)
    run = JudgedRun(schema, load.has_server)
    parts = list(snapshots_of(load, schema))
    third = len(parts) // 3
    judged = []
    for number, part in enumerate(parts):
        usual = thinned(part, 1 / RARE, draw) if name == "tenfold rate" else part
        changed = fault(part, max(0.0, (number - third) / third), draw)
        if number in (third, 2 * third):
            first, then = (usual, changed) if number == third else (changed, usual)
            run_part = join_samples([first.slice(0, len(first) // 2), then.slice(len(then) // 2, len(then))])
        else:
            run_part = changed if third < number < 2 * third else usual
        judged.append(run.take(run_part))
    return result_of(name, judged, third)


def result_of(name: str, judged: Sequence[JudgedSnapshot], third: int) -> GateResult:
    held = [bool(snapshot.reasons) for snapshot in judged]
    middle = held[third : 2 * third]
    last = held[2 * third :]
    means = [snapshot.served_mean for snapshot in judged if snapshot.served_mean is not None]
    later = [snapshot.served_mean for snapshot in judged[third:] if snapshot.served_mean is not None]
    is_wrong = name != "nothing"
    good_since = third - next((at for at, is_held in enumerate(reversed(middle)) if is_held), third)
    first = next((snapshot.reasons[0] for snapshot in judged if snapshot.reasons), "")
    return GateResult(
        name=name,
        snapshots=len(judged),
        false_holds=sum(held[:third] if is_wrong else held),
        held_after=middle.index(True) if True in middle else None,
        held=sum(middle),
        passed_after=good_since if good_since < third else None,
        back_after=last.index(False) if False in last else None,
        mean_before=means[max(0, third - 1 - (len(judged) - len(means)))],
        least_mean=min(later),
        largest_mean=max(later),
        reason=first,
    )
