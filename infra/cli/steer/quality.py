"""``freshet quality``: AUC, logloss and calibration of a run over time and by slice."""

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from infra.base.process import check_output, write_whole
from infra.cli.options import grouped
from infra.cli.steer.connection import ApiOptions, AsJson, CommandOptions
from infra.run.figures import sparkline
from infra.run.folder import checkpoint_place
from infra.run.settings import read_stored

if TYPE_CHECKING:
    from dispatch.checkpoints.survey import MeasuredQuality
    from dispatch.progress.quality import DriftStatus, QualityOverTime, QualityWindow, SliceQuality

WIDTH = 120
"""Width of the tables if the output is not a terminal."""
CHART_COLUMNS = 60
BAR_COLUMNS = 30
EVENTS_FOR_NAMES = 20_000
"""Events of the stream that are read to find the names of values."""
NameOf = Callable[[str, str], str]
"""The name of a value by field and key."""
CSV_COLUMNS = (
    *("what", "first_step", "last_step", "samples_before", "field", "value"),
    *("samples", "clicks", "weight", "logloss", "auc", "mean_prediction", "click_rate"),
)


@grouped
def quality(
    csv_file: Annotated[
        Path | None, typer.Option("--csv", help="Write all figures here; - for stdout.", show_default=False)
    ] = None,
    as_json: AsJson = False,
    *,
    where: ApiOptions,
) -> None:
    """Show AUC, logloss and calibration of a run: over time, by slice (quality.slices), as a curve; and alarms.

    A run on this machine is read from its newest checkpoint, during the run or afterwards, with the slices of every
    window. With --api or a token it is asked over REST, up to now: slices are then those of the whole run and of the
    newest window. Values that none of the newest events has are named by their keys.

    Example: freshet quality --run up-20261115-021100 --csv figures.csv
    """
    is_stdout = csv_file == Path("-")
    if csv_file is not None and not is_stdout:
        check_output(csv_file)
    folder = where.socket_folder(CommandOptions())
    found, name_of = _read_folder(folder) if folder is not None else _read_api(where)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(found)).decode())
    elif not is_stdout:
        print_quality(found, name_of, Console(width=None if Console().is_terminal else WIDTH))
    if csv_file is not None:
        text = as_csv(found.over_time, name_of)
        typer.echo(text, nl=False) if is_stdout else write_whole(csv_file, text)


def _read_folder(folder: Path) -> "tuple[MeasuredQuality, NameOf]":
    from dispatch.checkpoints.survey import read_quality
    from infra.base.storage import Storage
    from ingest.names import find_names, newest_payloads

    settings = read_stored(folder)
    found = read_quality(Storage.at(checkpoint_place(folder, settings.checkpoints.url)))
    keys = {
        int(each.key, 16) for window in _all_windows(found.over_time) for each in window.slices if _is_key(each.key)
    }
    if not keys:
        return found, lambda _, key: key
    events = newest_payloads(settings.stream, settings.kafka, EVENTS_FOR_NAMES)
    names = find_names(keys, settings.event_schema, events)

    def name_of(_: str, key: str) -> str:
        known = names.get(int(key, 16)) if _is_key(key) else None
        return key if known is None or known.value is None else known.value

    return found, name_of


def _read_api(where: ApiOptions) -> "tuple[MeasuredQuality, NameOf]":
    from dispatch.checkpoints.survey import MeasuredQuality

    with where.connect() as api:
        read = {"over_time": api.client.get(api.of_run("/quality")), "drift": api.client.get(api.of_run("/drift"))}
    windows = [window for window in (*read["over_time"]["windows"], read["over_time"]["run"]) if window is not None]
    values = {each["key"]: each.get("value") for window in windows for each in window["slices"]}
    return msgspec.convert(read, MeasuredQuality), lambda _, key: values.get(key) or key


def _is_key(key: str) -> bool:
    """Whether it is the key of one value, not the word for all others."""
    return len(key) == 16


def _all_windows(found: "QualityOverTime") -> "tuple[QualityWindow, ...]":
    return (*found.windows, *(() if found.run is None else (found.run,)))


# ── printed ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def print_quality(measured: "MeasuredQuality", name_of: NameOf, console: Console) -> None:
    """Prints lines over the windows, a table of the run's slices, the calibration curve, and alarms."""
    found = measured.over_time
    if found.run is None:
        console.print("no sample has been predicted yet, or no checkpoint has been taken since")
        return
    run = found.run
    console.print(Text(f"{run.quality.samples:,} samples, steps {run.first_step:,} to {run.last_step:,}", style="bold"))
    if found.windows:
        console.print(f"{len(found.windows)} windows of at least {found.window_samples:,} samples, oldest first")
        console.print(_lines(found.windows))
    console.print(_slice_table([run.quality, *run.slices], name_of))
    console.print(_curve_table(run))
    for line in _alarms(measured.drift):
        console.print(Text(line, style="yellow"), soft_wrap=True)


def _alarms(drift: "DriftStatus") -> Iterator[str]:
    for alarm in drift.alarms:
        at = f"step {alarm.step:,}, sample {alarm.sample:,}"
        if alarm.what == "label":
            yield f"{at}: the click rate changed from {alarm.before:.4f} to {alarm.after:.4f}"
        else:
            yield f"{at}: values of {alarm.what} differ from the window before by {alarm.after:.2f}"


def _lines(windows: "Sequence[QualityWindow]") -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    for name in ("auc", "logloss", "calibration", "click_rate"):
        values = [value for each in windows if (value := getattr(each.quality, name)) is not None]
        if values:
            line = Text(sparkline(values, CHART_COLUMNS), style="green")
            table.add_row(name.replace("_", " "), f"{values[0]:.4f}", line, f"{values[-1]:.4f}")
    return table


def _slice_table(slices: "Sequence[SliceQuality]", name_of: NameOf) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("slice", no_wrap=True)
    for name in ("samples", "AUC", "logloss", "predicted", "click rate", "calibration"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in slices:
        name = f"{each.field} = {name_of(each.field, each.key)}" if each.field else "all"
        figures = (each.auc, each.logloss, each.mean_prediction, each.click_rate, each.calibration)
        table.add_row(Text(name), f"{each.samples:,}", *("" if value is None else f"{value:.4f}" for value in figures))
    return table


def _curve_table(run: "QualityWindow") -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("predicted", "click rate", "samples"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("click rate │ where predicted ·", no_wrap=True)
    for each in run.curve:
        rate = int(each.click_rate * (BAR_COLUMNS - 1))
        predicted = int(each.mean_prediction * (BAR_COLUMNS - 1))
        bar = "".join("│" if at == rate else "·" if at == predicted else " " for at in range(BAR_COLUMNS))
        table.add_row(f"{each.mean_prediction:.4f}", f"{each.click_rate:.4f}", f"{each.samples:,}", Text(bar))
    return table


# ── written ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def as_csv(found: "QualityOverTime", name_of: NameOf) -> str:
    """All figures: a line for each window and for the run, for each of their slices, and each bin of their curves."""
    text = io.StringIO()
    writer = csv.DictWriter(text, CSV_COLUMNS, restval="")
    writer.writeheader()
    for window in _all_windows(found):
        writer.writerows(_csv_rows(window, "run" if window is found.run else "window", name_of))
    return text.getvalue()


def _csv_rows(window: "QualityWindow", what: str, name_of: NameOf) -> Iterator[dict[str, Any]]:
    at = {name: getattr(window, name) for name in ("first_step", "last_step", "samples_before")}
    for each in (window.quality, *window.slices):
        figures = msgspec.structs.asdict(each)
        key = figures.pop("key")
        value = name_of(each.field, key) if each.field else ""
        yield {"what": f"{what} slice" if each.field else what, **at, **figures, "value": value}
    for bin_ in window.curve:
        yield {"what": f"{what} curve", **at, **msgspec.structs.asdict(bin_)}
