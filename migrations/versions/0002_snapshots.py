"""Snapshots of the engines' state, measured rates, and how many requests a lane works on at once."""

from alembic import op

revision = "0002"
down_revision = "0001"

STATEMENTS = (
    "ALTER TABLE lanes ADD COLUMN slots INTEGER DEFAULT '1' NOT NULL",
    """CREATE TABLE snapshots (
        request_id TEXT NOT NULL,
        name TEXT NOT NULL,
        epoch INTEGER NOT NULL,
        units INTEGER NOT NULL,
        tokens INTEGER NOT NULL,
        bytes BIGINT NOT NULL,
        digest TEXT NOT NULL,
        kv_format TEXT NOT NULL,
        created_us BIGINT NOT NULL,
        PRIMARY KEY (request_id)
    )
     WITHOUT ROWID""",
    "CREATE INDEX ix_snapshots_created ON snapshots (created_us)",
    """CREATE TABLE rates (
        lane TEXT NOT NULL,
        model TEXT NOT NULL,
        prefill_tps FLOAT,
        decode_tps FLOAT,
        updated_us BIGINT NOT NULL,
        PRIMARY KEY (lane, model)
    )
     WITHOUT ROWID""",
)


def upgrade() -> None:
    """Beside what is there; nothing of it changes."""
    for statement in STATEMENTS:
        op.execute(statement)


def downgrade() -> None:
    """Snapshots only save time, so losing them loses nothing."""
    op.execute("DROP TABLE rates")
    op.execute("DROP TABLE snapshots")
    op.execute("ALTER TABLE lanes DROP COLUMN slots")
