"""A breaker for each device."""

from alembic import op

revision = "0004"
down_revision = "0003"

STATEMENTS = (
    "ALTER TABLE devices ADD COLUMN breaker TEXT NOT NULL DEFAULT 'closed'",
    "ALTER TABLE devices ADD COLUMN breaker_doc TEXT",
)


def upgrade() -> None:
    """Every device of before begins with its breaker closed."""
    for statement in STATEMENTS:
        op.execute(statement)


def downgrade() -> None:
    """What the journal tells of breakers stays."""
    for column in ("breaker_doc", "breaker"):
        op.execute(f"ALTER TABLE devices DROP COLUMN {column}")
