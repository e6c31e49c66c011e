"""The tables of the control plane: runs as their journals tell them, and commands; no tokens and no audit trail.

Every constraint has a name, so that the migrations in ``alembic/`` can refer to it. Times are seconds since 1970. What
comes from a journal is removed with its run; commands stay for themselves.
"""

from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from infra.web.store.tables import SqlTable

ALL_TABLES = SqlTable.metadata
"""of this file and of ``infra/web/store/tables.py``, for migrations"""
LEVELS = (1, 16, 256, 4096, 65536)
"""of aggregates: how many steps a row has at most"""
FANOUT = 16
"""rows of a level in one of the next"""


def of_run() -> Mapped[str]:
    """A column with the name of the run that a row is of, and is removed with."""
    return mapped_column(ForeignKey("runs.name", ondelete="CASCADE"), primary_key=True)


class RunRow(SqlTable):
    """One run, as far as its journal has been projected."""

    __tablename__ = "runs"
    __table_args__ = (CheckConstraint("state IN ('seen', 'running', 'stopped', 'ended')", name="state"),)

    name: Mapped[str] = mapped_column(primary_key=True)
    folder: Mapped[str]
    topic: Mapped[str]
    """source and name"""
    settings: Mapped[dict[str, Any]]
    """the effective ones"""
    code: Mapped[str]
    """version of Freshet that began it"""
    state: Mapped[str]
    """seen: nothing of its journal has been read yet; running; stopped: it may go on; ended"""
    begun_at: Mapped[float | None]
    ended_at: Mapped[float | None]
    """when it was stopped or ended"""
    version: Mapped[int]
    """of the journal, up to which it is projected"""
    journal: Mapped[str] = mapped_column(server_default="")
    """its identity; empty: not known, as of what was projected before there was one"""


class GenerationRow(SqlTable):
    """A period with fixed members."""

    __tablename__ = "generations"

    run: Mapped[str] = of_run()
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    members: Mapped[list[str]]
    """by rank"""
    uses_hub: Mapped[bool]
    """whether shards sum dense gradients"""
    base: Mapped[int | None]
    """the checkpoint that the model went back to; 0: the empty model; null: it went on as it was"""
    reason: Mapped[str]
    at: Mapped[float | None]
    version: Mapped[int]


class StepRow(SqlTable):
    """Steps that follow each other, aggregated: at level 1 a single one, decided or trained."""

    __tablename__ = "steps"
    __table_args__ = {"sqlite_with_rowid": False}  # noqa: RUF012

    run: Mapped[str] = of_run()
    level: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """1, 16, 256, 4096 or 65536"""
    bucket: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """step divided by level, rounded down"""
    first_step: Mapped[int]
    last_step: Mapped[int]
    steps: Mapped[int]
    """that have been trained; 0 at level 1: decided and not trained yet"""
    samples: Mapped[int]
    clicks: Mapped[int]
    loss: Mapped[float | None]
    """sum of the logloss of all samples; null if a prediction was not finite"""
    seconds: Mapped[float]
    decide_seconds: Mapped[float]
    moved_bytes: Mapped[int]
    """over all links"""
    alpha: Mapped[float | None]
    """mean over the steps"""
    first_at: Mapped[float | None]
    last_at: Mapped[float | None]


class AlphaChangeRow(SqlTable):
    """A change of α."""

    __tablename__ = "alpha_changes"
    __table_args__ = (CheckConstraint("mode IN ('manual', 'auto')", name="mode"),)

    run: Mapped[str] = of_run()
    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    place: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """among the records of its version"""
    step: Mapped[int]
    """the newest one then"""
    alpha: Mapped[float | None]
    """null: as it was"""
    mode: Mapped[str]
    """manual: a person's value is in force; auto: the dispatcher decides"""
    backend: Mapped[str]
    """where exact assignment runs from now on; empty: where it ran"""
    reason: Mapped[str]
    readings: Mapped[dict[str, Any]]
    """what it was decided by; null: not finite"""
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
    """trained up to that step"""
    positions: Mapped[dict[str, Any]]
    """after that step, by partition"""
    state: Mapped[str]
    """begun: not complete yet, or it failed; taken; void: of steps that were decided anew afterwards"""
    at: Mapped[float | None]
    version: Mapped[int]


class FaultRow(SqlTable):
    """Something failed, and the run went back to a checkpoint."""

    __tablename__ = "faults"

    run: Mapped[str] = of_run()
    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    place: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """among the records of its version"""
    step: Mapped[int]
    """the newest one then"""
    generation: Mapped[int]
    kind: Mapped[str]
    """the error's class"""
    text: Mapped[str]
    at: Mapped[float | None]


class EventRow(SqlTable):
    """A record of the journal that is not about a step."""

    __tablename__ = "events"

    run: Mapped[str] = of_run()
    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    place: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """among the records of its version"""
    kind: Mapped[str]
    """the record's tag; gap: versions that were trimmed from the journal before they could be read"""
    body: Mapped[dict[str, Any]]
    at: Mapped[float | None]
    """when it was written; of a gap: when it was found; of a record without a time: that of the event before it"""


class CommandRow(SqlTable):
    """A command on its way to the journal, or there, or refused."""

    __tablename__ = "commands"
    __table_args__ = (
        CheckConstraint("state IN ('pending', 'done', 'refused')", name="state"),
        UniqueConstraint("run", "actor", "key"),
        Index(None, "run", "created_at", "id"),
        Index(None, "state", "created_at"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    """by which the dispatcher carries it out once"""
    run: Mapped[str]
    key: Mapped[str]
    """the client's idempotency key"""
    digest: Mapped[str]
    """of verb, worker, value, expected and reason"""
    verb: Mapped[str]
    worker: Mapped[str]
    value: Mapped[str]
    expected: Mapped[int]
    """version of the journal that it was given on; -1: any"""
    actor: Mapped[str]
    reason: Mapped[str]
    state: Mapped[str]
    outcome: Mapped[str | None]
    """accepted: carried out; refused; outdated: others came after the version it was given on; null: no answer yet"""
    text: Mapped[str]
    """the answer"""
    version: Mapped[int | None]
    """of the journal that has it"""
    created_at: Mapped[float]
    done_at: Mapped[float | None]
