"""A position in the journal is called a cursor: the column, in all tables that have it

Rows keep their numbers. A column is renamed in place, so neither database copies a table.
"""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

TABLES = ("runs", "generations", "alpha_changes", "checkpoints", "faults", "events", "commands")


def upgrade() -> None:
    for table in TABLES:
        op.execute(f"ALTER TABLE {table} RENAME COLUMN version TO cursor")


def downgrade() -> None:
    for table in TABLES:
        op.execute(f"ALTER TABLE {table} RENAME COLUMN cursor TO version")
