"""What was called a cut is called a checkpoint: the table, and the events

A new table, because SQLite cannot rename constraints.
"""

import sqlalchemy as sa

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

COLUMNS = "run, number, step, samples, positions, state, at, version"


def upgrade() -> None:
    move("cuts", "checkpoints")
    op.execute("UPDATE events SET kind = 'checkpoint' WHERE kind = 'cut'")
    op.execute("UPDATE events SET kind = 'checkpoint begun' WHERE kind = 'cut begun'")


def downgrade() -> None:
    move("checkpoints", "cuts")
    op.execute("UPDATE events SET kind = 'cut' WHERE kind = 'checkpoint'")
    op.execute("UPDATE events SET kind = 'cut begun' WHERE kind = 'checkpoint begun'")


def move(old: str, new: str) -> None:
    op.create_table(
        new,
        sa.Column("run", sa.String(), nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("samples", sa.BigInteger(), nullable=False),
        sa.Column("positions", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("at", sa.Double(), nullable=True),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("state IN ('begun', 'taken', 'void')", name=op.f(f"ck_{new}_state")),
        sa.ForeignKeyConstraint(["run"], ["runs.name"], name=op.f(f"fk_{new}_run_runs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run", "number", name=op.f(f"pk_{new}")),
    )
    op.execute(f"INSERT INTO {new} ({COLUMNS}) SELECT {COLUMNS} FROM {old}")
    op.drop_table(old)
