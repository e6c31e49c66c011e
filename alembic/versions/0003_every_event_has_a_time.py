"""Every event has a time

Events whose records had none when they were written get the time of the nearest event before, or else after them.
"""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

NEAREST = """(
    SELECT near.at FROM events AS near WHERE near.run = events.run AND near.at IS NOT NULL
    AND (near.version, near.place) {side} (events.version, events.place)
    ORDER BY near.version {order}, near.place {order} LIMIT 1
)"""
EARLIER = NEAREST.format(side="<", order="DESC")
LATER = NEAREST.format(side=">", order="ASC")


def upgrade() -> None:
    op.execute(f"UPDATE events SET at = COALESCE({EARLIER}, {LATER}) WHERE at IS NULL")


def downgrade() -> None:
    """The times stay: no table is different."""
