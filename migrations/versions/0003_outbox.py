"""Notices that are to be sent to webhooks."""

from alembic import op

revision = "0003"
down_revision = "0002"

STATEMENTS = (
    """CREATE TABLE outbox (
        id INTEGER NOT NULL,
        request_id TEXT NOT NULL,
        key TEXT NOT NULL,
        type TEXT NOT NULL,
        target TEXT NOT NULL,
        payload TEXT NOT NULL,
        state TEXT NOT NULL,
        tries INTEGER NOT NULL,
        next_us BIGINT NOT NULL,
        created_us BIGINT NOT NULL,
        ended_us BIGINT,
        error TEXT,
        PRIMARY KEY (id),
        UNIQUE (key)
    )""",
    "CREATE INDEX ix_outbox_request ON outbox (request_id, id)",
    "CREATE INDEX ix_outbox_waiting ON outbox (next_us, id) WHERE state = 'waiting'",
)


def upgrade() -> None:
    """Beside what is there; no request of before has a webhook."""
    for statement in STATEMENTS:
        op.execute(statement)


def downgrade() -> None:
    """What was not delivered is not delivered any more; the events it tells of stay."""
    op.execute("DROP TABLE outbox")
