"""No page reads a large table from end to end: every statement's plan is asked for, as SQLite would carry it out."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

LARGE = ("events", "requests", "contents", "outbox", "idempotency", "snapshots")
"""Tables that grow with use. All others have a row for each lane, device, runner or model, or are a ring."""
WHOLE = {
    # How many requests are in each state: counted along an index that holds nothing else.
    "SELECT requests.state, count(*)",
}


@contextmanager
def statements() -> Iterator[dict[str, Any]]:
    """What is asked of any database meanwhile, with parameters."""
    seen: dict[str, Any] = {}

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        seen.setdefault(statement, parameters)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(Engine, "before_cursor_execute", note)


def scans(driver: sqlite3.Connection, statement: str, parameters: Any) -> list[str]:
    """Steps of its plan that go through a large table from end to end, whatever they go along."""
    plan = driver.execute(f"EXPLAIN QUERY PLAN {statement}", parameters).fetchall()
    names = {table: table for table in LARGE} | {
        alias: table for table, alias in re.findall(r"\b(\w+)(?: AS)? (\w)\b", statement) if table in LARGE
    }
    steps = [step for (*_, step) in plan if step.startswith("SCAN")]
    return [step for step in steps if step.split()[1] in names and not _bounded(step, statement)]


def _bounded(step: str, statement: str) -> bool:
    """It goes along an index or the key, and stops after a page's worth."""
    along = "USING" in step or "ORDER BY" in statement
    return along and "LIMIT" in statement


@pytest.fixture
def busy(box: Any) -> dict[str, str]:
    """Some of everything, and the paths that show it."""
    done, stopped = box.completed("one ", "two"), box.failed("abc")
    box.submit()
    paths = {
        "overview": "/",
        "overview of a state": "/?state=completed",
        "request": f"/requests/{done}",
        "stopped request": f"/requests/{stopped}",
        "time travel": f"/requests/{done}?at=2",
        "audit": "/events",
        "audit of a type": "/events?type=Completed",
        "audit of a stream": f"/events?stream={done}",
        "what-if": "/what-if",
        "models": "/models",
        "a model": "/models/null",
        "imports": "/imports",
        "status": "/status",
        "health": "/health",
    }
    for name in ("requests?limit=5", "requests?limit=5&state=completed", "requests?limit=5&lane=gpu", "lanes"):
        paths[f"api {name}"] = f"/api/{name}"
    for name in ("devices", "models", "runners", "webhooks", "events?limit=5", f"events?stream={done}", "pressure"):
        paths[f"api {name}"] = f"/api/{name}"
    for name in ("", "/events", "/replay", "/export"):
        paths[f"api a request{name}"] = f"/api/requests/{done}{name}"
    return paths


def test_no_page_scans_what_grows(box: Any, busy: dict[str, str]) -> None:
    found: dict[str, list[str]] = {}
    with statements() as seen:
        for name, path in busy.items():
            before = set(seen)
            assert box.client.get(path).status_code == 200, path
            for statement in set(seen) - before:
                found.setdefault(statement, []).append(name)
    assert len(found) > 20, "the statements are seen at all"
    driver = sqlite3.connect(box.paths.database)
    bad = {}
    for statement, names in found.items():
        if not statement.lstrip().upper().startswith(("SELECT", "WITH")) or any(one in statement for one in WHOLE):
            continue
        steps = scans(driver, statement, seen[statement])
        if steps:
            bad[statement] = (names, steps)
    driver.close()
    assert bad == {}


def test_a_scan_is_told(box: Any) -> None:
    """The test's own eye."""
    driver = sqlite3.connect(box.paths.database)
    assert scans(driver, "SELECT data FROM events WHERE data LIKE '%x%'", ()) == ["SCAN events"]
    assert scans(driver, "SELECT e.data FROM events e WHERE e.seq > 5", ()) == []
    driver.close()
