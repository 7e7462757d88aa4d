"""Events are found by their time."""

from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Takes about a second for each million events."""
    op.create_index("ix_events_at", "events", ["at_us"])


def downgrade() -> None:
    """Times are compared one by one again."""
    op.drop_index("ix_events_at", "events")
