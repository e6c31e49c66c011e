"""``freshet predict``: scores a file with a snapshot of a run, or through a server.

Every row of the file has a row in the output, in the same order. One that cannot be predicted has a reason instead of
a probability.
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.text import Text

from infra.base.errors import ConfigError
from infra.base.process import check_output
from infra.cli.first.init import EventsFile, Label, Time
from infra.cli.options import RunOrFolder, grouped
from infra.run.figures import count, ratio
from infra.run.folder import checkpoint_place
from infra.run.settings import CA_FILE, TOKEN, read_stored

if TYPE_CHECKING:
    from infra.cli.first.scorers import Scored, Scorer
    from ingest.schema import FileColumns

TURN_EVENTS = 2048


@dataclass(frozen=True)
class ModelOptions(RunOrFolder):
    """The model that predicts."""

    checkpoint: Annotated[
        int | None, typer.Option(help="Snapshot of the run; by default the one that would be served.", min=1)
    ] = None
    url: Annotated[str, typer.Option(help=f"A server instead of a run; {TOKEN} is its token.")] = ""


@dataclass
class PredictionCount:
    """What was predicted so far."""

    rows: int = 0
    predicted: int = 0
    first_problem: str = ""


@grouped
def predict(
    file: EventsFile,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="What to write: .csv, .parquet or .jsonl; - for CSV on stdout.")
    ] = Path("-"),
    label: Label = None,
    time: Time = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    *,
    model: ModelOptions,
) -> None:
    """Predict clicks for the events of a file: JSON lines, CSV or Parquet, with or without labels.

    The output has a row for each event: its number, the probability, the label if there is one, and the reason if it
    could not be predicted. With labels, logloss and AUC are printed. Exits with 1 if no event could be predicted.

    Example: freshet predict clicks.csv --run clicks -o predictions.csv

    Example: freshet predict clicks.csv --label clicked --url http://127.0.0.1:8100 -o predictions.parquet
    """
    from dispatch.progress.prequential import Prequential
    from infra.cli.first.scored_rows import open_rows

    check_file(file)
    if output.exists() and not force:
        raise ConfigError(f"{output} exists; expected a new file; choose another with -o, or overwrite it with --force")
    if output != Path("-"):
        check_output(output)
    quality = Prequential()
    tally = PredictionCount()
    with scorer_of(model) as scorer, open_rows(output) as rows:
        for scored in score(file, scorer, label, time):
            rows.write(tally.rows, scored)
            add(tally, quality, scored)
    console = Console(stderr=True)
    for line in _summary(tally, quality.overall(), output):
        console.print(Text(line), soft_wrap=True)
    raise typer.Exit(0 if tally.predicted else 1)


def check_file(file: Path) -> None:
    if not file.is_file():
        raise ConfigError(f"no file at {file}; expected JSON lines, CSV or Parquet; correct the path")


def scorer_of(model: ModelOptions) -> "AbstractContextManager[Scorer]":
    """What predicts: a server, or a snapshot that is read from the folder of its run."""
    if not model.url:
        from infra.cli.first.scorers import SnapshotScorer

        folder = model.find()
        settings = read_stored(folder)
        return nullcontext(
            SnapshotScorer(settings, checkpoint_place(folder, settings.checkpoints.url), model.checkpoint)
        )
    if model.named or model.checkpoint is not None:
        raise ConfigError("--url is given, and --run or --checkpoint with it; expected one model; leave one out")
    from infra.cli.first.scorers import ServerScorer
    from infra.cli.steer.client import ApiClient, check_address

    authority = os.environ.get(CA_FILE)
    client = ApiClient(
        check_address(model.url, "--url"), os.environ.get(TOKEN, ""), Path(authority) if authority else None
    )
    return closing(ServerScorer(client))


def score(file: Path, scorer: "Scorer", label: str | None, time: str | None) -> "Iterator[Scored]":
    """The predictions of all events of a file, in turns."""
    from ingest.producing.tables import read_events

    events = (event for event in read_events(file, columns_for(file, scorer.columns, label, time)) if event is not None)
    while turn := list(islice(events, TURN_EVENTS)):
        yield scorer.score(turn)


def columns_for(file: Path, known: "FileColumns | None", label: str | None, time: str | None) -> "FileColumns | None":
    """The columns of the file that are not fields: those of the schema, or others that are given."""
    from ingest.producing.tables import columns_of, is_table, no_column
    from ingest.schema import FileColumns

    usual = known or FileColumns()
    there = columns_of(file) if is_table(file) else None
    for given, option in ((label, "--label"), (time, "--time")):
        if given is not None and there is not None and given not in there:
            raise no_column(file, given, there, option)
    if label is None and time is None and (known is None or there is None):
        return known
    # predictions need no time, so a file without that column can be predicted
    found = time or (usual.time if there is None or usual.time in there else "")
    return FileColumns(label or usual.label, found, usual.time_unit)


def add(tally: PredictionCount, quality: Any, scored: "Scored") -> None:
    """Counts rows, and adds those with a label and a prediction to the quality."""
    known = np.isfinite(scored.probabilities_B)
    tally.rows += len(known)
    tally.predicted += int(known.sum())
    tally.first_problem = tally.first_problem or next(filter(None, scored.problems), "")
    usable = known & (scored.labels_B >= 0)
    if usable.any():
        chances_B = np.clip(scored.probabilities_B[usable], 1e-12, 1 - 1e-12)
        quality.add(np.log(chances_B) - np.log1p(-chances_B), scored.labels_B[usable].astype(np.float64))


def _summary(tally: PredictionCount, quality: Any, output: Path) -> Iterator[str]:
    where = "" if output == Path("-") else f", written to {output}"
    yield f"{count(tally.predicted, 'prediction')} for {count(tally.rows, 'event')}{where}"
    if tally.predicted < tally.rows:
        yield f"{count(tally.rows - tally.predicted, 'event')} without one; the first: {tally.first_problem}"
    if quality.samples:
        yield (
            f"logloss {ratio(quality.logloss)}, AUC {ratio(quality.auc)}, calibration {ratio(quality.calibration)} on "
            f"{count(quality.samples, 'labelled event')}"
        )
