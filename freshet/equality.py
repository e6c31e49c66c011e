"""``python -m freshet.equality``: the learner beside a run with one worker, on the same events.

The run trains them in real processes, and its journal has a digest of the predictions of each step, which are made
before the step learns. The learner gets the events as dicts. A step with equal digests has predictions that are equal
to the bit; the models that both end with then predict all events once more, which says how far apart they are if some
step differs. Both use one thread, because with another number of threads sums are rounded differently.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.text import Text

from dispatch.journal.digest import digest_of_logits
from dispatch.journal.history import JOURNAL, read_history
from freshet.learner import Learner
from freshet.overrides import as_overrides, schema_setting
from infra.base.process import Stop, stop_on_signals
from infra.base.telemetry import configure_logging
from infra.run.cluster import Extras, run_cluster
from infra.run.display import Display
from infra.run.figures import count
from infra.run.settings import load_settings
from ingest.codec.json_events import encode_json
from ingest.convert import Event
from ingest.log.embedded import LogWriter
from ingest.producing.readers import read_dataset
from ingest.producing.synthetic import synthetic_events
from ingest.samples import Samples

RUN = "equality"
AT_A_TIME = 1000
"""Events that the learner gets in a call."""
ALLOWED = 1e-6
"""Largest difference between two predictions."""


class Equality(NamedTuple):
    """How far a learner and a run agree."""

    events: int
    steps: int
    """Of the run."""
    learner_steps: int
    differing: tuple[int, ...]
    """Steps in which some prediction before learning differs in some bit."""
    largest: float
    """Largest difference between two predictions of one event, after all of them have been learnt."""
    rows: tuple[int, int]
    """Of the run and of the learner."""

    @property
    def holds(self) -> bool:
        return self.steps == self.learner_steps and self.rows[0] == self.rows[1] and self.largest <= ALLOWED


def main(
    events: Annotated[int, typer.Option(help="How many events.", min=1)] = 20_000,
    dataset: Annotated[str, typer.Option(help="synthetic, or the data set of --input.")] = "synthetic",
    file: Annotated[Path | None, typer.Option("--input", help="File of real clicks.", show_default=False)] = None,
) -> None:
    """Train events with a learner and in a run with one worker: are their predictions equal?"""
    torch.set_num_threads(1)
    stop = stop_on_signals()
    stream = synthetic_events(0) if file is None else read_dataset(dataset, file)
    with TemporaryDirectory(prefix="freshet-") as folder:
        configure_logging("supervisor", RUN, path=Path(folder) / "supervisor.log")
        found = compare_with_run(dataset, list(islice(stream, events)), {"trainer.threads": 1}, Path(folder), stop)
    Console().print(Text(described(found)), soft_wrap=True)
    raise typer.Exit(not found.holds)


def compare_with_run(
    schema: str, events: Sequence[Event], settings: Mapping[str, Any], folder: Path, stop: Stop
) -> Equality:
    """folder: of the run, which stays there. settings: of both."""
    train_run(schema, events, settings, folder, stop)
    digests = read_history(folder / JOURNAL).digests
    learner = WatchedLearner(schema, settings=settings)
    for part in (events[at : at + AT_A_TIME] for at in range(0, len(events), AT_A_TIME)):
        learner.learn_many([e.fields for e in part], [e.label for e in part], [e.event_time for e in part])
    learner.flush()
    trained = Learner.load(folder)
    fields = [event.fields for event in events]
    return Equality(
        events=len(events),
        steps=len(digests),
        learner_steps=len(learner.digests),
        differing=tuple(step for step, digest in digests.items() if learner.digests.get(step) != digest),
        largest=float(np.abs(trained.predict_many(fields) - learner.predict_many(fields)).max()),
        rows=(trained.rows, learner.rows),
    )


def train_run(schema: str, events: Sequence[Event], settings: Mapping[str, Any], folder: Path, stop: Stop) -> None:
    """Trains events in their order, in the processes of a run with one worker."""
    one = ["dispatch.workers=1", "dispatch.links_gbit=", "stream.partitions=1", f"stream.folder={folder / 'log'}"]
    chosen = [schema_setting(schema), *as_overrides(settings), *one]
    used = load_settings(None, chosen, run=RUN, folder=folder)
    with closing(LogWriter(used.stream.folder, used.stream.topic, 1, used.stream.segment_bytes)) as writer:
        writer.append(0, [(None, encode_json(event)) for event in events])
    run_cluster(used, Extras(api=False, stop_at_end=True), stop, Display(Console(stderr=True)))


class WatchedLearner(Learner):
    """Keeps the digest of the predictions of each step."""

    def _begin(self, *begun: Any) -> None:
        super()._begin(*begun)
        self.digests: dict[int, int] = {}

    def _learn(self, batch: Samples) -> NDArray[np.float32]:
        logits_B = super()._learn(batch)
        self.digests[len(self.digests) + 1] = digest_of_logits(logits_B)
        return logits_B


def described(found: Equality) -> str:
    same = found.steps - len(found.differing)
    first = f"; the first that differs is step {found.differing[0]}" if found.differing else ""
    return (
        f"{count(found.events, 'event')}: predictions before learning are equal to the bit in {same:,} of "
        f"{count(found.steps, 'step')}{first}\n"
        f"predictions after learning differ by {found.largest:.3g} at most; {found.rows[0]:,} rows in the run, "
        f"{found.rows[1]:,} in the learner"
    )


if __name__ == "__main__":
    typer.run(main)
