"""Identity of journals

A run that began anew under the name of another is told apart by it. What is known of older runs has none; they get it
with the next page of their journal.
"""

import sqlalchemy as sa

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("journal", sa.String(), server_default="", nullable=False))


def downgrade() -> None:
    op.drop_column("runs", "journal")  # not by a copy of the table: SQLite would remove what refers to the old one
