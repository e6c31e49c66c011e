"""A command's outcome has a column of its own

Older rows get it from their state and, those that were given on an older version, from how their text begins: nothing
else told them from other refusals.
"""

import sqlalchemy as sa

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

FROM_TEXT = """
    UPDATE commands SET outcome = CASE
        WHEN state = 'done' THEN 'accepted'
        WHEN text LIKE 'outdated: %' THEN 'outdated'
        ELSE 'refused'
    END
    WHERE state <> 'pending'
"""
INTO_TEXT = """
    UPDATE commands SET text = 'outdated: ' || text WHERE outcome = 'outdated' AND text NOT LIKE 'outdated: %'
"""


def upgrade() -> None:
    op.add_column("commands", sa.Column("outcome", sa.String(), nullable=True))
    op.execute(FROM_TEXT)


def downgrade() -> None:
    op.execute(INTO_TEXT)
    op.drop_column("commands", "outcome")
