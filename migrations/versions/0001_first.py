"""The first schema: the journal, its projections, and the operational tables."""

from alembic import op

revision = "0001"
down_revision = None

STATEMENTS = (
    """CREATE TABLE contents (
        request_id TEXT NOT NULL,
        kind TEXT NOT NULL,
        epoch INTEGER NOT NULL,
        n INTEGER NOT NULL,
        body BLOB NOT NULL,
        PRIMARY KEY (request_id, kind, epoch, n)
    )
     WITHOUT ROWID""",
    """CREATE TABLE devices (
        id TEXT NOT NULL,
        name TEXT NOT NULL,
        simulated INTEGER NOT NULL,
        total_bytes BIGINT,
        state TEXT NOT NULL,
        reason TEXT,
        epoch INTEGER NOT NULL,
        since_us BIGINT NOT NULL,
        spilling INTEGER DEFAULT '0' NOT NULL,
        calm_us BIGINT,
        PRIMARY KEY (id)
    )""",
    """CREATE TABLE events (
        seq INTEGER NOT NULL,
        event_id TEXT NOT NULL,
        stream TEXT NOT NULL,
        version INTEGER NOT NULL,
        type TEXT NOT NULL,
        schema INTEGER NOT NULL,
        at_us BIGINT NOT NULL,
        actor TEXT NOT NULL,
        attempt INTEGER,
        lease_token TEXT,
        device_epoch INTEGER,
        cause_seq BIGINT,
        data TEXT NOT NULL,
        hash TEXT NOT NULL,
        PRIMARY KEY (seq),
        UNIQUE (stream, version),
        UNIQUE (event_id)
    )""",
    """CREATE INDEX ix_events_type ON events (type, seq)""",
    """CREATE TABLE head (
        id INTEGER NOT NULL,
        seq BIGINT NOT NULL,
        hash TEXT NOT NULL,
        PRIMARY KEY (id)
    )""",
    """CREATE TABLE idempotency (
        owner TEXT NOT NULL,
        "key" TEXT NOT NULL,
        body_digest TEXT NOT NULL,
        request_id TEXT NOT NULL,
        created_us BIGINT NOT NULL,
        PRIMARY KEY (owner, "key")
    )
     WITHOUT ROWID""",
    """CREATE INDEX ix_idempotency_created ON idempotency (created_us)""",
    """CREATE TABLE lanes (
        lane TEXT NOT NULL,
        model TEXT NOT NULL,
        serving INTEGER NOT NULL,
        out_reason TEXT,
        context INTEGER NOT NULL,
        device TEXT NOT NULL,
        engine TEXT NOT NULL,
        contract TEXT NOT NULL,
        load_bytes BIGINT DEFAULT '0' NOT NULL,
        token_bytes BIGINT DEFAULT '0' NOT NULL,
        need_basis TEXT DEFAULT 'formula' NOT NULL,
        resident INTEGER DEFAULT '1' NOT NULL,
        pinned INTEGER DEFAULT '0' NOT NULL,
        layers INTEGER DEFAULT '0' NOT NULL,
        gpu_layers INTEGER,
        parts TEXT DEFAULT '[]' NOT NULL,
        since_us BIGINT NOT NULL,
        PRIMARY KEY (lane, model)
    )""",
    """CREATE TABLE learned (
        engine TEXT NOT NULL,
        model TEXT NOT NULL,
        settings TEXT NOT NULL,
        formula_bytes BIGINT NOT NULL,
        learned_bytes BIGINT NOT NULL,
        last_bytes BIGINT NOT NULL,
        loads INTEGER NOT NULL,
        updated_us BIGINT NOT NULL,
        PRIMARY KEY (engine, model, settings)
    )""",
    """CREATE TABLE leases (
        request_id TEXT NOT NULL,
        runner TEXT NOT NULL,
        token TEXT NOT NULL,
        attempt INTEGER NOT NULL,
        until_us BIGINT NOT NULL,
        boot_id TEXT NOT NULL,
        PRIMARY KEY (request_id)
    )""",
    """CREATE INDEX ix_leases_runner ON leases (runner)""",
    """CREATE TABLE readings (
        device TEXT NOT NULL,
        at_us BIGINT NOT NULL,
        doc TEXT NOT NULL,
        PRIMARY KEY (device)
    )""",
    """CREATE TABLE releases (
        id INTEGER NOT NULL,
        device TEXT NOT NULL,
        model TEXT NOT NULL,
        bytes BIGINT NOT NULL,
        at_us BIGINT NOT NULL,
        PRIMARY KEY (id)
    )""",
    """CREATE INDEX ix_releases_device ON releases (device, at_us)""",
    """CREATE TABLE requests (
        id TEXT NOT NULL,
        owner TEXT NOT NULL,
        workload TEXT NOT NULL,
        model TEXT NOT NULL,
        state TEXT NOT NULL,
        lane TEXT,
        running INTEGER NOT NULL,
        cancel_asked INTEGER NOT NULL,
        version INTEGER NOT NULL,
        turn_us BIGINT NOT NULL,
        not_before_us BIGINT,
        deadline_us BIGINT,
        created_us BIGINT NOT NULL,
        updated_us BIGINT NOT NULL,
        doc TEXT NOT NULL,
        PRIMARY KEY (id)
    )""",
    """CREATE INDEX ix_requests_active ON requests (lane, turn_us) WHERE state IN ('admitted','running-gpu','checkpointed','rerouted-cpu')""",
    """CREATE INDEX ix_requests_claimable ON requests (lane, model, turn_us) WHERE running = 0 AND cancel_asked = 0 AND state IN ('admitted','rerouted-cpu','checkpointed')""",
    """CREATE INDEX ix_requests_created ON requests (created_us, id)""",
    """CREATE INDEX ix_requests_state ON requests (state, created_us, id)""",
    """CREATE TABLE reservations (
        holder TEXT NOT NULL,
        device TEXT NOT NULL,
        model TEXT NOT NULL,
        kind TEXT NOT NULL,
        bytes BIGINT NOT NULL,
        created_us BIGINT NOT NULL,
        PRIMARY KEY (holder)
    )
     WITHOUT ROWID""",
    """CREATE INDEX ix_reservations_device ON reservations (device)""",
    """CREATE TABLE runners (
        id TEXT NOT NULL,
        lane TEXT NOT NULL,
        model TEXT NOT NULL,
        device TEXT NOT NULL,
        engine TEXT NOT NULL,
        pid INTEGER NOT NULL,
        ticks BIGINT NOT NULL,
        boot_id TEXT NOT NULL,
        state TEXT NOT NULL,
        rss_bytes BIGINT,
        beat_us BIGINT NOT NULL,
        started_us BIGINT NOT NULL,
        PRIMARY KEY (id)
    )""",
    """CREATE TABLE service (
        "key" TEXT NOT NULL,
        value TEXT NOT NULL,
        PRIMARY KEY ("key")
    )""",
    """CREATE TRIGGER events_no_update BEFORE UPDATE ON events BEGIN SELECT RAISE(ABORT, 'events are append-only'); END""",
    """CREATE TRIGGER events_no_delete BEFORE DELETE ON events BEGIN SELECT RAISE(ABORT, 'events are append-only'); END""",
    """INSERT INTO head (id, seq, hash) VALUES (1, 0, '')""",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
