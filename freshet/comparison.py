"""``python -m freshet.comparison``: the learner beside River and Vowpal Wabbit, in one process, on the same rows.

Each gets the events as dicts, in one pass, and predicts each of them before it learns from it. Making what the library
takes of a dict is part of its time, as it is part of yours. All use one thread, and the time is that of the processor,
so that other programs on the machine matter less. River and Vowpal Wabbit are left out where they are not installed.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from itertools import islice
from math import log2
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.others import logit_of
from benchmarks.river import learn_features, linear_model, pairs_model
from benchmarks.vowpal import USUAL, learn_line, open_workspace, vowpal_version
from dispatch.progress.prequential import Prequential
from freshet.learner import Learner
from infra.run.figures import number, ratio
from ingest.convert import Event
from ingest.producing.readers import read_dataset
from ingest.producing.synthetic import synthetic_events

MANY = 512
"""Events that ``learn_many`` gets at a time."""
Pass = Callable[[Sequence[Event]], Iterator[float]]
"""Learns events in their order; yields the logit of each before that."""


class Compared(NamedTuple):
    """One pass."""

    name: str
    events: int
    events_per_second: float
    """Of a core's time."""
    logloss: float | None
    auc: float | None


def main(
    events: Annotated[int, typer.Option(help="Events of the pass.", min=1)] = 20_000,
    ones: Annotated[int, typer.Option(help="Events that are learnt one at a time, with learn_one.", min=1)] = 1000,
    dataset: Annotated[str, typer.Option(help="synthetic, or the data set of --input.")] = "synthetic",
    file: Annotated[Path | None, typer.Option("--input", help="File of real clicks.", show_default=False)] = None,
) -> None:
    """Compare the learner with River and Vowpal Wabbit: events a second of a core, logloss and AUC of one pass."""
    torch.set_num_threads(1)
    stream = synthetic_events(0) if file is None else read_dataset(dataset, file)
    given = list(islice(stream, events))
    table = Table("one pass", "events", "events/s of a core", "logloss", "AUC")
    for name, learn, rows in passes(dataset, given, ones):
        found = compare(name, learn, rows)
        rate = number(found.events_per_second)
        table.add_row(name, f"{found.events:,}", rate, ratio(found.logloss), ratio(found.auc))
    Console().print(table)


def passes(dataset: str, events: Sequence[Event], ones: int) -> Iterator[tuple[str, Pass, Sequence[Event]]]:
    """What is compared, by name, with the events that it learns."""
    yield f"learn_many, {MANY} at a time", freshet_many(dataset), events
    yield "learn_one, batches of 512", freshet_one(dataset, MANY), events[:ones]
    yield "learn_one, batches of 1", freshet_one(dataset, 1), events[:ones]
    if find_spec("river") is not None:
        yield f"River {version('river')}, logistic regression", river(linear_model), events
        yield f"River {version('river')}, factorization machine", river(pairs_model), events
    if (installed := vowpal_version()) is not None:
        yield f"Vowpal Wabbit {installed}, linear", vowpal(USUAL), events
        yield f"Vowpal Wabbit {installed}, all pairs", vowpal(f"-q cc {USUAL}"), events


def compare(name: str, learn: Pass, events: Sequence[Event]) -> Compared:
    """Times one pass and measures its predictions. A short pass before loads the library and compiles kernels."""
    for _ in learn(events[: 2 * MANY]):
        pass
    began = time.process_time()
    logits_B = np.fromiter(learn(events), np.float32, len(events))
    seconds = time.process_time() - began
    quality = Prequential()
    quality.add(logits_B, np.array([event.label for event in events], np.float32))
    found = quality.overall()
    return Compared(name, len(events), len(events) / seconds, found.logloss, found.auc)


def features_of(event: Event) -> Iterator[str]:
    """A feature for each value, and of the large numbers for each power of 2, as the schema's buckets are."""
    for name, value in event.fields.items():
        if isinstance(value, list):
            yield from (f"{name}={each}" for each in value)
        elif isinstance(value, float) or (isinstance(value, int) and name.endswith("_seconds")):
            yield f"{name}={int(log2(value + 1)) if value > 0 else 0}"
        else:
            yield f"{name}={value}"


def freshet_many(dataset: str) -> Pass:
    def learn(events: Sequence[Event]) -> Iterator[float]:
        learner = Learner(dataset)
        for at in range(0, len(events), MANY):
            part = events[at : at + MANY]
            fields, labels, times = zip(*((e.fields, e.label, e.event_time) for e in part), strict=True)
            yield from map(logit_of, learner.learn_many(fields, labels, times).tolist())

    return learn


def freshet_one(dataset: str, batch: int) -> Pass:
    def learn(events: Sequence[Event]) -> Iterator[float]:
        learner = Learner(dataset, batch=batch)
        for event in events:
            yield logit_of(learner.learn_one(event.fields, event.label, event.event_time))

    return learn


def river(build: Callable[[], Any]) -> Pass:
    def learn(events: Sequence[Event]) -> Iterator[float]:
        model = build()
        for event in events:
            yield learn_features(model, dict.fromkeys(features_of(event), 1.0), bool(event.label))

    return learn


def vowpal(options: str) -> Pass:
    """Lines of text, as its documents show."""

    def learn(events: Sequence[Event]) -> Iterator[float]:
        workspace = open_workspace(options)
        for event in events:
            yield learn_line(workspace, f"{1 if event.label else -1} |c {' '.join(features_of(event))}")
        workspace.finish()

    return learn


if __name__ == "__main__":
    typer.run(main)
