"""How fast each lane usually computes."""

from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Nothing is known of it at first."""
    op.execute("ALTER TABLE rates ADD COLUMN usual TEXT")


def downgrade() -> None:
    """It is measured anew."""
    op.execute("ALTER TABLE rates DROP COLUMN usual")
