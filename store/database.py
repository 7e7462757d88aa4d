"""Where the store is and how it is opened.

1. Write connections begin with BEGIN IMMEDIATE (`store.writer`); read connections are `mode=ro` and `query_only`.
2. `wal_autocheckpoint=0` everywhere: checkpoints are run by one process, under the gate.
3. `synchronous=FULL`: what was answered is on the disk.
4. Nobody opens the database, its -wal or its -shm by any other way than SQLite.
"""

import os
import sqlite3
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from sqlalchemy import URL, Engine, create_engine, event
from sqlalchemy.pool import NullPool, StaticPool

from core.errors import NoSpace
from store.gate import Gate

_NETWORK_FILESYSTEMS = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "fuse.sshfs", "ceph", "glusterfs"}
BUSY_MS = 10_000


class Paths(msgspec.Struct, frozen=True):
    """Everything under one data directory."""

    root: Path

    @property
    def database(self) -> Path:
        """The SQLite file."""
        return self.root / "failsoft.db"

    @property
    def gate(self) -> Path:
        """The writer gate's lock file."""
        return self.root / "writer.lock"

    @property
    def service_lock(self) -> Path:
        """Held for as long as a service runs on this directory."""
        return self.root / "service.lock"

    @property
    def run(self) -> Path:
        """Pulse files, core ledger: gone with the boot."""
        return self.root / "run"

    @property
    def models(self) -> Path:
        """The model catalog and prepared files."""
        return self.root / "models"

    @property
    def sim(self) -> Path:
        """State of simulated accelerators."""
        return self.root / "sim"

    @property
    def snapshots(self) -> Path:
        """Saved states of running requests."""
        return self.root / "snapshots"

    def make(self) -> "Paths":
        """Create the directories, private to the user."""
        for folder in (self.root, self.run, self.models, self.sim, self.snapshots):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return self


def default_root() -> Path:
    """`FAILSOFT_DATA`, or the user's data directory."""
    return Path(os.environ.get("FAILSOFT_DATA") or Path.home() / ".local/share/failsoft")


def filesystem_of(path: Path) -> str:
    """Type of the filesystem that holds `path`, from the mount table."""
    best, kind = "", "unknown"
    real = str(path.resolve())
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, point, type_, *_ = line.split()
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, type_
    return kind


def _pragmas(connection: Any, *, read_only: bool) -> None:
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={BUSY_MS}")
    cursor.execute("PRAGMA wal_autocheckpoint=0")
    if read_only:
        cursor.execute("PRAGMA query_only=ON")
    else:
        mode = cursor.execute("PRAGMA journal_mode=WAL").fetchone()[0]
        if mode != "wal":
            raise NoSpace(f"SQLite answers journal_mode={mode}, not wal; put the data directory on a local disk")
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.execute("PRAGMA journal_size_limit=67108864")
    cursor.close()


def write_engine(paths: Paths) -> Engine:
    """One connection, one thread; transactions are begun by the writer or, for DDL, by SQLAlchemy."""
    refuse_network(paths.root)
    url = URL.create("sqlite", database=str(paths.database))
    engine = create_engine(url, poolclass=StaticPool, connect_args={"check_same_thread": False})

    @event.listens_for(engine, "connect")
    def _connected(connection: Any, _record: Any) -> None:
        _pragmas(connection, read_only=False)

    @event.listens_for(engine, "begin")
    def _begun(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def read_url(driver: str, paths: Paths) -> URL:
    """A read-only URL; SQLite reads file names in URIs percent-encoded."""
    return URL.create(driver, database=f"file:{quote(str(paths.database))}", query={"mode": "ro", "uri": "true"})


def read_engine(paths: Paths) -> Engine:
    """Blocking reads, for the command line and the runners."""
    engine = create_engine(read_url("sqlite", paths), poolclass=NullPool)

    @event.listens_for(engine, "connect")
    def _connected(connection: Any, _record: Any) -> None:
        _pragmas(connection, read_only=True)

    return engine


def refuse_network(root: Path) -> None:
    """Refuse a filesystem on which SQLite's shared memory does not work."""
    kind = filesystem_of(root)
    if kind in _NETWORK_FILESYSTEMS:
        raise NoSpace(f"the data directory {root} is on {kind}, where SQLite loses data; use a local disk (--data DIR)")


def migrate(paths: Paths) -> None:
    """Bring the schema up to date: one transaction under the gate, so a kill half-way leaves nothing half made."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent.parent / "migrations").replace("%", "%%"))
    gate = Gate(paths.gate)
    engine = write_engine(paths)
    try:
        with gate.hold(), engine.begin() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    finally:
        engine.dispose()
        gate.close()


def checkpoint(gate: Gate, engine: Engine) -> None:
    """Copy the WAL into the database, under the gate: as much as readers allow, without waiting for them.

    Waiting for a long reader here would stop every writer for as long.
    """
    with gate.hold():
        raw = engine.raw_connection()
        driver = raw.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        try:
            driver.execute("PRAGMA busy_timeout=0")
            driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        finally:
            driver.execute(f"PRAGMA busy_timeout={BUSY_MS}")
            raw.close()


def sqlite_version() -> str:
    """Version of the SQLite library in use."""
    return sqlite3.sqlite_version
