"""Runs migrations on the connection that is handed in, inside its one transaction."""

from pathlib import Path

from alembic import context

from store import tables
from store.database import Paths, write_engine

connection = context.config.attributes.get("connection")
if connection is None:
    root = context.get_x_argument(as_dictionary=True).get("data")
    if not root:
        raise SystemExit("alembic: name the data directory with -x data=DIR")
    connection = write_engine(Paths(Path(root)).make()).connect()

context.configure(connection=connection, target_metadata=tables.metadata, transactional_ddl=True, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
