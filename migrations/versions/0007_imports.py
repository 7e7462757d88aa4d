"""Histories of requests from elsewhere."""

from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """They have a table of their own, and never mix with what happened here."""
    op.execute(
        "CREATE TABLE imports (id TEXT NOT NULL, request_id TEXT NOT NULL, events INTEGER NOT NULL, "
        "imported_us BIGINT NOT NULL, document BLOB NOT NULL, PRIMARY KEY (id))"
    )


def downgrade() -> None:
    """Whoever sent them has them still."""
    op.execute("DROP TABLE imports")
