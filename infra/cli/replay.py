"""``freshet replay``: trains the steps of a run again from its journal, and compares the results."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from infra.base.errors import FreshetError
from infra.base.process import Stop, write_whole


class ReplayDiffers(FreshetError):
    """A replay gave other results than the run."""


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a replay. Two replays with equal digests have the same model, bit for bit."""

    run: str
    folder: str
    """Folder with the dense weights of the replay."""
    step: int
    rows: int
    rows_digest: str
    """Digest of the key, value, state and last step of every row."""
    dense_digest: str
    """Digest of every dense weight and its state."""
    compared_steps: int
    """Number of steps whose logits were on record."""
    differs_at: int | None
    """First of these steps whose logits differ."""
    equals_end: bool | None
    """Whether the rows equal those at the end or stop of the run; None: it neither ended nor stopped after this step.
    """


@dataclass(frozen=True)
class ReplayPlace:
    """Where a replay is stored."""

    into: Annotated[
        Path | None, typer.Option("--into", help="Folder of the replay; a new one by default.", show_default=False)
    ] = None
    old_into: Annotated[Path | None, typer.Option("--folder", hidden=True)] = None

    @property
    def folder(self) -> Path | None:
        if self.old_into is not None:
            typer.echo("freshet: --folder is now --into", err=True)
        return self.into or self.old_into


def replay_run(folder: Path, into: Path, last_step: int | None, stop: Stop, console: Console) -> Replayed:
    """Runs all processes of a replay until they end."""
    from dispatch.journal.history import JOURNAL, read_history
    from infra.base.telemetry import configure_logging
    from infra.run.cluster import Extras, run_cluster
    from infra.run.display import Display
    from infra.run.folder import claim
    from infra.run.resume import replayed
    from trainer.config import DENSE_FILE

    settings, history = replayed(folder, into, last_step)
    whole = read_history(folder / JOURNAL)
    with claim(into):
        configure_logging("supervisor", settings.run, path=into / "supervisor.log")
        run_cluster(settings, Extras(api=False, golden=folder, last_step=last_step), stop, Display(console))
    ended = read_history(into / JOURNAL).ended
    if ended is None:
        raise FreshetError(f"the replay of {folder} was stopped: {stop.reason}; expected its end; start it again")
    known = [end.rows_digest for end in (whole.stopped, whole.ended) if end is not None and end.step == ended.step]
    return Replayed(
        run=settings.run,
        folder=str(into),
        step=ended.step,
        rows=ended.rows,
        rows_digest=ended.rows_digest,
        dense_digest=digest_file(into / DENSE_FILE),
        compared_steps=sum(step.step in history.digests for step in history.steps),
        differs_at=ended.differs_at,
        equals_end=set(known) == {ended.rows_digest} if known else None,
    )


@contextmanager
def readable_stream(folder: Path) -> Iterator[None]:
    """Inside, the events of a run can be read, even on its own broker; nobody can resume such a run meanwhile."""
    from dispatch.journal.occupied import is_under_way
    from infra.run.own_broker import answering
    from infra.run.settings import read_stored
    from infra.verify.run import holding_run_idle

    if not read_stored(folder).kafka.own_broker or is_under_way(folder):
        yield
        return
    with holding_run_idle(folder), answering(folder):
        yield


def digest_file(path: Path) -> str:
    """32 hex digits that depend on the tensors of a safetensors file only, not on its metadata."""
    import xxhash
    from safetensors.numpy import load_file

    digest = xxhash.xxh3_128()
    for name, tensor in sorted(load_file(path).items()):
        digest.update(f"{name} {tensor.dtype} {tensor.shape}".encode())
        digest.update(tensor.tobytes())
    return digest.hexdigest()


def show(done: Replayed, console: Console, json_file: Path | None) -> None:
    """Prints the results; raises ReplayDiffers if they differ from the run's."""
    table = Table(show_header=False, box=None)
    values: dict[str, Any] = msgspec.structs.asdict(done)
    for name, value in values.items():
        table.add_row(name.replace("_", " "), "-" if value is None else str(value))
    console.print(table)
    if json_file is not None:
        write_whole(json_file, msgspec.json.format(msgspec.json.encode(done)).decode() + "\n")
    if done.differs_at is not None or done.equals_end is False:
        where = f"first at step {done.differs_at}" if done.differs_at is not None else "in its last rows"
        raise ReplayDiffers(
            f"the replay of run {done.run!r} differs from it, {where}; expected the same bits; compare versions and "
            f"machines: those of the run are in its journal, those of the replay in {done.folder}"
        )


LastStep = Annotated[int | None, typer.Option("--to", help="End with this step.", min=1, show_default=False)]
