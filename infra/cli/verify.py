"""``freshet verify``: checks everything that a run guarantees, from what it left behind."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from infra.base.errors import FreshetError, MissingProgram, ProcessFailed
from infra.base.faults import FAULT
from infra.base.process import Stop, check_output, stop_on_signals, write_whole
from infra.cli.options import RunOrArgument, grouped
from infra.cli.replay import Replayed, digest_file, replay_run

if TYPE_CHECKING:
    from infra.verify.finding import Finding

STYLES = {True: ("ok", "green"), False: ("violated", "bold red"), None: ("-", "dim")}


class RunViolated(FreshetError):
    """A run violates one of its guarantees."""


@grouped
def verify(
    where: RunOrArgument,
    replay: Annotated[bool, typer.Option(help="Train the run again from its journal, and compare.")] = True,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the findings here.", show_default=False)
    ] = None,
) -> None:
    """Check what a run left behind: its journal, events, dead letters, model, checkpoints, files and processes.

    A replay of the journal in a temporary folder must give the same rows, dense weights and predictions, bit for bit.
    The run must have ended, or have been interrupted. Its folder is only read; its own Kafka broker, if it has one, is
    started meanwhile. Exits with 1 if anything is violated; what cannot be checked is listed with the reason.

    Example: freshet verify --run up-20261115-021100
    """
    stop = stop_on_signals()
    check_output(json_file)
    from dispatch.journal.occupied import is_under_way
    from infra.verify.run import holding_run_idle, verify_folder

    folder = where.find(lambda folder: not is_under_way(folder))
    with holding_run_idle(folder), own_broker_of(folder) as failure:
        findings = verify_folder(folder)
        findings += replay_findings(folder, stop, failure) if replay else []
    show_findings(findings, Console())
    if json_file is not None:
        write_whole(json_file, msgspec.json.format(msgspec.json.encode(findings)).decode() + "\n")
    if violated := [finding.name for finding in findings if finding.ok is False]:
        raise RunViolated(f"the run in {folder} is not what it promises: {', '.join(violated)}; see the table above")


@contextmanager
def own_broker_of(folder: Path) -> Iterator[str]:
    """Runs the run's own broker, if it has one; yields the reason if it cannot be started, or an empty string."""
    from infra.run.own_broker import answering

    with ExitStack() as resources:
        try:
            resources.enter_context(answering(folder))
        except (MissingProgram, ProcessFailed) as error:
            yield f"the run's own broker cannot be started: {error}"
            return
        yield ""


def show_findings(findings: "list[Finding]", console: Console) -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("check", "", "found"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        word, style = STYLES[finding.ok]
        table.add_row(finding.name, Text(word, style=style), Text(finding.found))
    console.print(table)


def replay_findings(folder: Path, stop: Stop, failure: str = "") -> "list[Finding]":
    """Trains the run again, and compares predictions, rows and dense weights.

    failure: why its events cannot be read, if they cannot.
    """
    from infra.verify.finding import REPLAY, Finding

    if failure:
        return [Finding(REPLAY, None, f"not checked: {failure}")]
    os.environ.pop(FAULT, None)  # faults injected into the run do not apply to the replay
    with TemporaryDirectory(prefix="freshet-verify-") as into:
        try:
            done = replay_run(folder, Path(into) / "replay", None, stop, Console(quiet=True))
        except FreshetError as error:
            return [Finding(REPLAY, None, f"not checked: the run could not be trained again: {error}")]
    return [compare_steps(done), compare_rows(done), compare_dense(done, folder)]


def compare_steps(done: Replayed) -> "Finding":
    from infra.verify.finding import Finding

    compared = f"{done.compared_steps:,} of {done.step:,} steps compared"
    differs = "" if done.differs_at is None else f"; step {done.differs_at} is the first that differs"
    return Finding("replay: predictions", not differs, compared + differs)


def compare_rows(done: Replayed) -> "Finding":
    from infra.verify.finding import Finding

    if done.equals_end is None:
        why = "the run has neither ended nor been stopped after its last step, so there are no rows to compare with"
        return Finding("replay: rows", None, f"not checked: {why}")
    return Finding("replay: rows", done.equals_end, f"digest {done.rows_digest} of {done.rows:,} rows")


def compare_dense(done: Replayed, folder: Path) -> "Finding":
    from safetensors import SafetensorError

    from infra.verify.finding import Finding
    from trainer.config import DENSE_FILE

    name = "replay: dense weights"
    path = folder / DENSE_FILE
    if not path.exists():
        return Finding(name, None, "not checked: the run was never stopped in order, so none are saved")
    try:
        digest = digest_file(path)
        step = saved_after(path)
    except SafetensorError as error:
        return Finding(name, False, f"{path} is damaged: {error}")
    if step not in ("", str(done.step)):
        return Finding(name, None, f"not checked: those of step {step} are saved, when the run was last stopped")
    expected = "" if digest == done.dense_digest else f"; expected {done.dense_digest}"
    return Finding(name, not expected, f"digest {digest}{expected}")


def saved_after(path: Path) -> str:
    """The step after which dense weights were saved; empty if their file does not say."""
    from safetensors import safe_open

    with safe_open(path, framework="np") as file:
        return str((file.metadata() or {}).get("step", ""))
