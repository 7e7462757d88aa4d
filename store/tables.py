"""The schema, as SQLAlchemy Core tables: the journal, its projections, and operational tables beside them.

Events are canonical. `requests`, `devices` are projections, rebuilt from events by `verify`. The rest is operational:
lost without harm, or recovered by rule.
"""

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from core.machine import CLAIMABLE_SQL

metadata = MetaData()

head = Table(
    "head",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("seq", BigInteger, nullable=False),
    Column("hash", Text, nullable=False),
)

events = Table(
    "events",
    metadata,
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("event_id", Text, nullable=False, unique=True),
    Column("stream", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("type", Text, nullable=False),
    Column("schema", Integer, nullable=False),
    Column("at_us", BigInteger, nullable=False),
    Column("actor", Text, nullable=False),
    Column("attempt", Integer),
    Column("lease_token", Text),
    Column("device_epoch", Integer),
    Column("cause_seq", BigInteger),
    Column("data", Text, nullable=False),
    Column("hash", Text, nullable=False),
    UniqueConstraint("stream", "version"),
    Index("ix_events_type", "type", "seq"),
    Index("ix_events_at", "at_us"),
)

ACTIVE = "state IN ('admitted','running-gpu','checkpointed','rerouted-cpu')"

requests = Table(
    "requests",
    metadata,
    Column("id", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("workload", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("lane", Text),
    Column("running", Integer, nullable=False),
    Column("cancel_asked", Integer, nullable=False),
    Column("version", Integer, nullable=False),
    Column("turn_us", BigInteger, nullable=False),
    Column("not_before_us", BigInteger),
    Column("deadline_us", BigInteger),
    Column("created_us", BigInteger, nullable=False),
    Column("updated_us", BigInteger, nullable=False),
    Column("doc", Text, nullable=False),
    Index("ix_requests_claimable", "lane", "model", "turn_us", sqlite_where=text(CLAIMABLE_SQL)),
    Index("ix_requests_active", "lane", "turn_us", sqlite_where=text(ACTIVE)),
    Index("ix_requests_created", "created_us", "id"),
    Index("ix_requests_state", "state", "created_us", "id"),
)

devices = Table(
    "devices",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("simulated", Integer, nullable=False),
    Column("total_bytes", BigInteger),
    Column("state", Text, nullable=False),
    Column("reason", Text),
    Column("epoch", Integer, nullable=False),
    Column("since_us", BigInteger, nullable=False),
    Column("spilling", Integer, nullable=False, server_default="0"),
    Column("calm_us", BigInteger),
    Column("breaker", Text, nullable=False, server_default="closed"),
    Column("breaker_doc", Text),
)

leases = Table(
    "leases",
    metadata,
    Column("request_id", Text, primary_key=True),
    Column("runner", Text, nullable=False),
    Column("token", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("until_us", BigInteger, nullable=False),
    Column("boot_id", Text, nullable=False),
    Index("ix_leases_runner", "runner"),
)

lanes = Table(
    "lanes",
    metadata,
    Column("lane", Text, primary_key=True),
    Column("model", Text, primary_key=True),
    Column("serving", Integer, nullable=False),
    Column("out_reason", Text),
    Column("context", Integer, nullable=False),
    Column("device", Text, nullable=False),
    Column("engine", Text, nullable=False),
    Column("contract", Text, nullable=False),
    Column("load_bytes", BigInteger, nullable=False, server_default="0"),
    Column("token_bytes", BigInteger, nullable=False, server_default="0"),
    Column("need_basis", Text, nullable=False, server_default="formula"),
    Column("resident", Integer, nullable=False, server_default="1"),
    Column("pinned", Integer, nullable=False, server_default="0"),
    Column("layers", Integer, nullable=False, server_default="0"),
    Column("gpu_layers", Integer),
    Column("parts", Text, nullable=False, server_default="[]"),
    Column("since_us", BigInteger, nullable=False),
    Column("slots", Integer, nullable=False, server_default="1"),
)

reservations = Table(
    "reservations",
    metadata,
    Column("holder", Text, primary_key=True),
    Column("device", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Index("ix_reservations_device", "device"),
    sqlite_with_rowid=False,
)

releases = Table(
    "releases",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("device", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("at_us", BigInteger, nullable=False),
    Index("ix_releases_device", "device", "at_us"),
)

learned = Table(
    "learned",
    metadata,
    Column("engine", Text, primary_key=True),
    Column("model", Text, primary_key=True),
    Column("settings", Text, primary_key=True),
    Column("formula_bytes", BigInteger, nullable=False),
    Column("learned_bytes", BigInteger, nullable=False),
    Column("last_bytes", BigInteger, nullable=False),
    Column("loads", Integer, nullable=False),
    Column("updated_us", BigInteger, nullable=False),
)

runners = Table(
    "runners",
    metadata,
    Column("id", Text, primary_key=True),
    Column("lane", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("device", Text, nullable=False),
    Column("engine", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("ticks", BigInteger, nullable=False),
    Column("boot_id", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("rss_bytes", BigInteger),
    Column("beat_us", BigInteger, nullable=False),
    Column("started_us", BigInteger, nullable=False),
)

readings = Table(
    "readings",
    metadata,
    Column("device", Text, primary_key=True),
    Column("at_us", BigInteger, nullable=False),
    Column("doc", Text, nullable=False),
)

samples = Table(
    "samples",
    metadata,
    Column("device", Text, primary_key=True),
    Column("place", Integer, primary_key=True, autoincrement=False),
    Column("at_us", BigInteger, nullable=False),
    Column("used", BigInteger),
    Column("ours", BigInteger),
    Column("total", BigInteger),
    sqlite_with_rowid=False,
)

imports = Table(
    "imports",
    metadata,
    Column("id", Text, primary_key=True),
    Column("request_id", Text, nullable=False),
    Column("events", Integer, nullable=False),
    Column("imported_us", BigInteger, nullable=False),
    Column("document", LargeBinary, nullable=False),
)

contents = Table(
    "contents",
    metadata,
    Column("request_id", Text, primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("epoch", Integer, primary_key=True),
    Column("n", Integer, primary_key=True),
    Column("body", LargeBinary, nullable=False),
    sqlite_with_rowid=False,
)

idempotency = Table(
    "idempotency",
    metadata,
    Column("owner", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("body_digest", Text, nullable=False),
    Column("request_id", Text, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Index("ix_idempotency_created", "created_us"),
    sqlite_with_rowid=False,
)

snapshots = Table(
    "snapshots",
    metadata,
    Column("request_id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("units", Integer, nullable=False),
    Column("tokens", Integer, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("digest", Text, nullable=False),
    Column("kv_format", Text, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Index("ix_snapshots_created", "created_us"),
    sqlite_with_rowid=False,
)

outbox = Table(
    "outbox",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("request_id", Text, nullable=False),
    Column("key", Text, nullable=False, unique=True),
    Column("type", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("payload", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("next_us", BigInteger, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Column("ended_us", BigInteger),
    Column("error", Text),
    Index("ix_outbox_request", "request_id", "id"),
    Index("ix_outbox_waiting", "next_us", "id", sqlite_where=text("state = 'waiting'")),
)

rates = Table(
    "rates",
    metadata,
    Column("lane", Text, primary_key=True),
    Column("model", Text, primary_key=True),
    Column("prefill_tps", Float),
    Column("decode_tps", Float),
    Column("updated_us", BigInteger, nullable=False),
    Column("usual", Text),
    sqlite_with_rowid=False,
)

service = Table(
    "service",
    metadata,
    Column("key", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

APPEND_ONLY = (
    "CREATE TRIGGER events_no_update BEFORE UPDATE ON events BEGIN SELECT RAISE(ABORT, 'events are append-only'); END",
    "CREATE TRIGGER events_no_delete BEFORE DELETE ON events BEGIN SELECT RAISE(ABORT, 'events are append-only'); END",
)
