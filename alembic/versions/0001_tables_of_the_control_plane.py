"""Tables of the control plane

The first revision, made 2026-11-16.
"""

import sqlalchemy as sa

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    create_runs()
    create_generations()
    create_steps()
    create_alpha_changes()
    create_cuts()
    create_faults()
    create_events()
    create_commands()
    create_audit()
    create_tokens()


def downgrade() -> None:
    for table in (
        "tokens",
        "audit",
        "commands",
        "events",
        "faults",
        "cuts",
        "alpha_changes",
        "steps",
        "generations",
        "runs",
    ):
        op.drop_table(table)


def create_runs() -> None:
    op.create_table(
        "runs",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("folder", sa.String(), nullable=False),
        sa.Column("topic", sa.String(), nullable=False),
        sa.Column("settings", sa.JSON(), nullable=False),
        sa.Column("code", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("begun_at", sa.Double(), nullable=True),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("state IN ('seen', 'running', 'stopped', 'ended')", name=op.f("ck_runs_state")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_runs")),
    )


def create_generations() -> None:
    op.create_table(
        "generations",
        sa.Column("run", sa.String(), nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("members", sa.JSON(), nullable=False),
        sa.Column("uses_hub", sa.Boolean(), nullable=False),
        sa.Column("base", sa.BigInteger(), nullable=True),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("at", sa.Double(), nullable=True),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.name"], name=op.f("fk_generations_run_runs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run", "number", name=op.f("pk_generations")),
    )


def create_steps() -> None:
    op.create_table(
        "steps",
        sa.Column("run", sa.String(), nullable=False),
        sa.Column("level", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("bucket", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("first_step", sa.BigInteger(), nullable=False),
        sa.Column("last_step", sa.BigInteger(), nullable=False),
        sa.Column("steps", sa.BigInteger(), nullable=False),
        sa.Column("samples", sa.BigInteger(), nullable=False),
        sa.Column("clicks", sa.BigInteger(), nullable=False),
        sa.Column("loss", sa.Double(), nullable=True),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("decide_seconds", sa.Double(), nullable=False),
        sa.Column("moved_bytes", sa.BigInteger(), nullable=False),
        sa.Column("alpha", sa.Double(), nullable=True),
        sa.Column("first_at", sa.Double(), nullable=True),
        sa.Column("last_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["run"], ["runs.name"], name=op.f("fk_steps_run_runs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run", "level", "bucket", name=op.f("pk_steps")),
        sqlite_with_rowid=False,
    )


def create_alpha_changes() -> None:
    op.create_table(
        "alpha_changes",
        sa.Column("run", sa.String(), nullable=False),
        sa.Column("version", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("place", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("alpha", sa.Double(), nullable=True),
        sa.Column("mode", sa.String(), nullable=False),
        sa.Column("backend", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("readings", sa.JSON(), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("at", sa.Double(), nullable=True),
        sa.CheckConstraint("mode IN ('manual', 'auto')", name=op.f("ck_alpha_changes_mode")),
        sa.ForeignKeyConstraint(["run"], ["runs.name"], name=op.f("fk_alpha_changes_run_runs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run", "version", "place", name=op.f("pk_alpha_changes")),
    )


def create_cuts() -> None:
    op.create_table(
        "cuts",
        sa.Column("run", sa.String(), nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("samples", sa.BigInteger(), nullable=False),
        sa.Column("positions", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("at", sa.Double(), nullable=True),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("state IN ('begun', 'taken', 'void')", name=op.f("ck_cuts_state")),
        sa.ForeignKeyConstraint(["run"], ["runs.name"], name=op.f("fk_cuts_run_runs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run", "number", name=op.f("pk_cuts")),
    )


def create_faults() -> None:
    op.create_table(
        "faults",
        sa.Column("run", sa.String(), nullable=False),
        sa.Column("version", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("place", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("text", sa.String(), nullable=False),
        sa.Column("at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["run"], ["runs.name"], name=op.f("fk_faults_run_runs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run", "version", "place", name=op.f("pk_faults")),
    )


def create_events() -> None:
    op.create_table(
        "events",
        sa.Column("run", sa.String(), nullable=False),
        sa.Column("version", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("place", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.Column("at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["run"], ["runs.name"], name=op.f("fk_events_run_runs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run", "version", "place", name=op.f("pk_events")),
    )


def create_commands() -> None:
    op.create_table(
        "commands",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("run", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("verb", sa.String(), nullable=False),
        sa.Column("worker", sa.String(), nullable=False),
        sa.Column("value", sa.String(), nullable=False),
        sa.Column("expected", sa.BigInteger(), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("text", sa.String(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("done_at", sa.Double(), nullable=True),
        sa.CheckConstraint("state IN ('pending', 'done', 'refused')", name=op.f("ck_commands_state")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_commands")),
        sa.UniqueConstraint("run", "actor", "key", name=op.f("uq_commands_run_actor_key")),
    )
    op.create_index(op.f("ix_commands_run_created_at_id"), "commands", ["run", "created_at", "id"])
    op.create_index(op.f("ix_commands_state_created_at"), "commands", ["state", "created_at"])


def create_audit() -> None:
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("token", sa.String(), nullable=True),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("run", sa.String(), nullable=True),
        sa.Column("status", sa.BigInteger(), nullable=False),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    op.create_index(op.f("ix_audit_run_id"), "audit", ["run", "id"])


def create_tokens() -> None:
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("hash", sa.String(), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
        sa.UniqueConstraint("hash", name=op.f("uq_tokens_hash")),
    )
