"""The tables of the control plane: runs, as projected from their journals, and commands; no tokens and no audit trail.

Every constraint has a name, so that the migrations in ``alembic/`` can refer to it. Times are seconds since 1970. Rows
that come from a journal are removed with their run; commands are kept.
"""

from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from infra.web.store.tables import SqlTable

ALL_TABLES = SqlTable.metadata
"""The tables of this file and of ``infra/web/store/tables.py``, for migrations."""
LEVELS = (1, 16, 256, 4096, 65536)
"""Levels of aggregation: the most steps that one row covers."""
FANOUT = 16
"""Rows of one level in one row of the next."""


def of_run() -> Mapped[str]:
    """A column with the name of the run that the row belongs to and is removed with."""
    return mapped_column(ForeignKey("runs.name", ondelete="CASCADE"), primary_key=True)


class RunRow(SqlTable):
    """One run, as far as its journal has been projected."""

    __tablename__ = "runs"
    __table_args__ = (CheckConstraint("state IN ('seen', 'running', 'stopped', 'ended')", name="state"),)

    name: Mapped[str] = mapped_column(primary_key=True)
    folder: Mapped[str]
    topic: Mapped[str]
    """Source and name of the topic."""
    settings: Mapped[dict[str, Any]]
    """The effective settings."""
    code: Mapped[str]
    """Version of Freshet that started the run."""
    state: Mapped[str]
    """seen: its journal has not been read yet; running; stopped: it may be resumed; ended."""
    begun_at: Mapped[float | None]
    ended_at: Mapped[float | None]
    """Time at which it was stopped or ended."""
    cursor: Mapped[int]
    """Position up to which the journal is projected."""
    journal: Mapped[str] = mapped_column(server_default="")
    """Identity of the journal; empty: not known, for runs projected before identities existed."""


class GenerationRow(SqlTable):
    """A period with fixed members."""

    __tablename__ = "generations"

    run: Mapped[str] = of_run()
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    members: Mapped[list[str]]
    """Members by rank."""
    uses_hub: Mapped[bool]
    """Whether shards sum dense gradients."""
    base: Mapped[int | None]
    """Checkpoint that the model went back to; 0: the empty model; null: the model continued unchanged."""
    reason: Mapped[str]
    at: Mapped[float | None]
    cursor: Mapped[int]


class StepRow(SqlTable):
    """Consecutive steps, aggregated; at level 1 a single step, decided or trained."""

    __tablename__ = "steps"
    __table_args__ = {"sqlite_with_rowid": False}  # noqa: RUF012

    run: Mapped[str] = of_run()
    level: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """1, 16, 256, 4096 or 65536."""
    bucket: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """Step divided by level, rounded down."""
    first_step: Mapped[int]
    last_step: Mapped[int]
    steps: Mapped[int]
    """Number of trained steps; 0 at level 1: decided but not trained yet."""
    samples: Mapped[int]
    clicks: Mapped[int]
    loss: Mapped[float | None]
    """Sum of the logloss of all samples; null if a prediction was not finite."""
    seconds: Mapped[float]
    decide_seconds: Mapped[float]
    moved_bytes: Mapped[int]
    """Bytes moved over all links."""
    alpha: Mapped[float | None]
    """Mean over the steps."""
    first_at: Mapped[float | None]
    last_at: Mapped[float | None]


class AlphaChangeRow(SqlTable):
    """A change of α."""

    __tablename__ = "alpha_changes"
    __table_args__ = (CheckConstraint("mode IN ('manual', 'auto')", name="mode"),)

    run: Mapped[str] = of_run()
    cursor: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    place: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """Place among the records of its frame."""
    step: Mapped[int]
    """The newest step at that time."""
    alpha: Mapped[float | None]
    """New value; null: unchanged."""
    mode: Mapped[str]
    """manual: a person's value is in force; auto: the dispatcher decides."""
    backend: Mapped[str]
    """Where exact assignment runs from now on; empty: unchanged."""
    reason: Mapped[str]
    readings: Mapped[dict[str, Any]]
    """Readings that the change was based on; null: not finite."""
    actor: Mapped[str]
    at: Mapped[float | None]


class CheckpointRow(SqlTable):
    """A checkpoint: the model after one step, on disk."""

    __tablename__ = "checkpoints"
    __table_args__ = (CheckConstraint("state IN ('begun', 'taken', 'void')", name="state"),)

    run: Mapped[str] = of_run()
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    step: Mapped[int]
    samples: Mapped[int]
    """Samples trained up to that step."""
    positions: Mapped[dict[str, Any]]
    """Positions in the stream after that step, by partition."""
    state: Mapped[str]
    """begun: not complete yet, or failed; taken; void: its steps were decided again afterwards."""
    at: Mapped[float | None]
    cursor: Mapped[int]


class FaultRow(SqlTable):
    """Something failed, and the run went back to a checkpoint."""

    __tablename__ = "faults"

    run: Mapped[str] = of_run()
    cursor: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    place: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """Place among the records of its frame."""
    step: Mapped[int]
    """The newest step at that time."""
    generation: Mapped[int]
    kind: Mapped[str]
    """Class of the error."""
    text: Mapped[str]
    at: Mapped[float | None]


class EventRow(SqlTable):
    """A record of the journal that is not about a step."""

    __tablename__ = "events"
    __table_args__ = (Index(None, "run", "kind", "at", "cursor"),)

    run: Mapped[str] = of_run()
    cursor: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    place: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """Place among the records of its frame."""
    kind: Mapped[str]
    """Tag of the record; gap: records that were trimmed from the journal before they could be read."""
    body: Mapped[dict[str, Any]]
    at: Mapped[float | None]
    """Time of the record; for a gap, when it was found; for a record without a time, that of the event before it."""


class ReadingRow(SqlTable):
    """What a run's status showed at one moment: quality, lag, freshness, traffic by worker, memory."""

    __tablename__ = "readings"

    run: Mapped[str] = of_run()
    level: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """Seconds between two readings: 10 or 120."""
    bucket: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """Time divided by level, rounded down."""
    at: Mapped[float]
    body: Mapped[str]
    """The reading as JSON."""


class CommandRow(SqlTable):
    """A command that is waiting, carried out or refused."""

    __tablename__ = "commands"
    __table_args__ = (
        CheckConstraint("state IN ('pending', 'done', 'refused')", name="state"),
        UniqueConstraint("run", "actor", "key"),
        Index(None, "run", "created_at", "id"),
        Index(None, "state", "created_at"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    """Id by which the dispatcher carries it out once."""
    run: Mapped[str]
    key: Mapped[str]
    """The client's idempotency key."""
    digest: Mapped[str]
    """Digest of verb, worker, value, expected and reason."""
    verb: Mapped[str]
    worker: Mapped[str]
    value: Mapped[str]
    expected: Mapped[int]
    """Cursor that the command was given at; -1: any."""
    actor: Mapped[str]
    reason: Mapped[str]
    state: Mapped[str]
    outcome: Mapped[str | None]
    """accepted: carried out; refused; outdated: others came after the cursor it was given at; null: no answer yet."""
    text: Mapped[str]
    """The answer."""
    cursor: Mapped[int | None]
    """Cursor of the command in the journal."""
    created_at: Mapped[float]
    done_at: Mapped[float | None]
