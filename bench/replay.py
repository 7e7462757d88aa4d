"""Reading the whole record back: with every link and row checked, and as pure decoding and folding."""

import sqlite3
import statistics
import time

from bench.filled import fill
from bench.numbers import Figure
from bench.parts import directory, prepared_store, settings
from core.replay import fold
from store.database import Paths, read_engine
from store.journal import FIELDS, record_of
from store.verify import verify


def _rows(paths: Paths) -> list[tuple[object, ...]]:
    with read_engine(paths).connect() as connection:
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        sql = f"SELECT {FIELDS} FROM events WHERE stream LIKE 'req%' ORDER BY stream, version"
        return driver.execute(sql).fetchall()


def measure(*, quick: bool) -> list[Figure]:
    """Events a second, as medians of three rounds on one core."""
    wanted = 60_000 if quick else 300_000
    with directory() as paths:
        prepared_store(paths, settings()).close()
        fill(paths, wanted)
        rows = _rows(paths)
        whole, pure = [], []
        for _ in range(3):
            began = time.perf_counter()
            verdict = verify(paths)
            whole.append(verdict.events / (time.perf_counter() - began))
            if not verdict.ok:
                raise AssertionError(verdict.problem)
            began = time.perf_counter()
            at = 0
            while at < len(rows):
                end = at
                while end < len(rows) and rows[end][2] == rows[at][2]:
                    end += 1
                assert fold(map(record_of, rows[at:end])) is not None
                at = end
            pure.append(len(rows) / (time.perf_counter() - began))
    checked, folded = statistics.median(whole), statistics.median(pure)
    return [
        Figure(
            f"replay of {wanted:,} events: read, hash, decode, fold, compare every row",
            f"{checked:,.0f} events/s",
            f"decode + fold alone {folded:,.0f} events/s",
            f"{checked / folded:.0%}",
            "≥ 200,000/s",
            met=checked >= 200_000,
        ),
        Figure(
            "decode + fold alone, in memory", f"{folded:,.0f} events/s", "-", "-", "≥ 1,000,000/s", folded >= 1_000_000
        ),
    ]
