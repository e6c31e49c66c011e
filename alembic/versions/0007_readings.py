"""Readings of runs: what charts show besides steps, so that a restart of the API does not lose them"""

import sqlalchemy as sa

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "readings",
        sa.Column("run", sa.String(), nullable=False),
        sa.Column("level", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("bucket", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("body", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.name"], name=op.f("fk_readings_run_runs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run", "level", "bucket", name=op.f("pk_readings")),
    )


def downgrade() -> None:
    op.drop_table("readings")
