"""The last minutes of each device's use."""

from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """It fills as readings come."""
    op.execute(
        "CREATE TABLE samples (device TEXT NOT NULL, place INTEGER NOT NULL, at_us BIGINT NOT NULL, used BIGINT, "
        "ours BIGINT, total BIGINT, PRIMARY KEY (device, place)) WITHOUT ROWID"
    )


def downgrade() -> None:
    """Nothing depends on it."""
    op.execute("DROP TABLE samples")
