"""An index of events by kind and time: charts ask for the marks in a window"""

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(op.f("ix_events_run_kind_at_cursor"), "events", ["run", "kind", "at", "cursor"])


def downgrade() -> None:
    op.drop_index(op.f("ix_events_run_kind_at_cursor"), table_name="events")
