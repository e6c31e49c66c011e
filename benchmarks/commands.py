"""``freshet bench``: every benchmark as a command. Results are printed and, with --json, written to a file."""

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from infra.errors import ConfigError
from infra.process import check_output, stop_on_signals, write_whole

app = typer.Typer(help="Measure. Figures are comparable only within one run: machines differ and are noisy.")


def _checked_output(file: Path | None) -> Path | None:
    """Looked at before anything is measured."""
    check_output(file)
    return file


Output = Annotated[
    Path | None, typer.Option("--json", help="Write the results here.", show_default=False, callback=_checked_output)
]
SIDE_BY_SIDE = 4
"""results that fit into columns of one table"""
Format = Literal["criteo", "avazu", "movielens"]


@app.command()
def step(
    batch: Annotated[int, typer.Option(help="Samples of a batch.", min=1)] = 1024,
    steps: Annotated[int, typer.Option(help="Steps of each run.", min=30)] = 90,
    file: Annotated[Path | None, typer.Option("--input", help="File to train on; made-up clicks by default.")] = None,
    form: Annotated[Format, typer.Option("--format", help="The data set the file belongs to.")] = "criteo",
    output: Output = None,
) -> None:
    """Phases of a step, and the pipeline's time per step against a plain single-process torch loop.

    Example: freshet bench step --json step.json
    """
    from benchmarks.step import run_step

    with tempfile.TemporaryDirectory(prefix="freshet-") as folder:
        report([run_step(Path(folder), batch, steps, form, _existing(file))], output)


@app.command()
def ps(
    repeat: Annotated[int, typer.Option(help="Pulls and pushes of each kind.", min=5)] = 50,
    output: Output = None,
) -> None:
    """Pull and push of 3,000 rows against raw TCP in the same run.

    Example: freshet bench ps --json ps.json
    """
    from benchmarks.ps import run_ps

    report(run_ps(repeat), output)


@app.command()
def ingest(
    samples: Annotated[int, typer.Option(help="Samples to encode, decode, append and read.", min=1000)] = 20_000,
    output: Output = None,
) -> None:
    """Rates of both codecs, the embedded log and the loader.

    Example: freshet bench ingest --json ingest.json
    """
    from benchmarks.ingest import run_ingest

    with tempfile.TemporaryDirectory(prefix="freshet-") as folder:
        report(run_ingest(Path(folder), samples), output)


@app.command()
def quality(
    file: Annotated[Path, typer.Option("--input", help="File to train on, once.")],
    form: Annotated[Format, typer.Option("--format", help="The data set the file belongs to.")],
    batch: Annotated[int, typer.Option(help="Samples of a batch.", min=1)] = 1024,
    workers: Annotated[int, typer.Option(help="Workers.", min=1, max=128)] = 4,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="One setting. Repeatable.")] = None,
    output: Output = None,
) -> None:
    """One pass over a file through the real pipeline: logloss and AUC, overall and of the second half.

    Example: freshet bench quality --input criteo.tsv.gz --format criteo --batch 1024 --workers 4 --json quality.json
    """
    stop = stop_on_signals()
    from benchmarks.quality import run_quality
    from infra.display import Display

    with tempfile.TemporaryDirectory(prefix="freshet-") as folder:
        display = Display(Console(stderr=True))
        chosen = list(overrides or ())
        result = run_quality(Path(folder), _existing(file), form, batch, workers, chosen, stop, display)  # type: ignore[arg-type]
        report([result], output)


def report(results: Sequence[Any], output: Path | None) -> None:
    """Prints results as a table and writes them as JSON: a few side by side, many one below the other."""
    rows = [_flat(result) for result in results]
    table = Table(show_header=len(rows) > SIDE_BY_SIDE)
    if len(rows) > SIDE_BY_SIDE:
        for name in rows[0]:
            table.add_column(name.replace("_", " "), justify="left" if name == "name" else "right")
        for row in rows:
            table.add_row(*(Text(_text(value)) for value in row.values()))
    else:
        for name in rows[0]:
            table.add_row(name, *(Text(_text(row[name])) for row in rows))
    Console().print(table)
    if output is not None:
        write_whole(output, msgspec.json.format(msgspec.json.encode(list(results))).decode() + "\n")


def _flat(result: Any) -> dict[str, Any]:
    fields = asdict(result) if is_dataclass(result) and not isinstance(result, type) else msgspec.structs.asdict(result)
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        inner = msgspec.structs.asdict(value) if isinstance(value, msgspec.Struct) else value
        if isinstance(inner, dict):
            flat.update({f"{name}.{key}": item for key, item in inner.items()})
        else:
            flat[name] = inner
    return flat


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _existing(file: Path | None) -> Path | None:
    if file is not None and not file.is_file():
        raise ConfigError(f"no file at {file}; expected a data set; check --input")
    return file
