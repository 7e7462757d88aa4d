"""The command as people and programs call it, beside a running service and without one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from house import House

Failsoft = Callable[..., Any]


def test_it_measures_beside_a_running_service_and_the_record_stays_whole(failsoft: Failsoft, served: House) -> None:
    told = failsoft("models", "equivalence", "null", "null:slots=2", "--json", "--data", served.paths.root)
    assert told.code == 0, told.err
    assert (told.json["pair"], told.json["now"], told.json["recorded"]) == ("faithful", "faithful", True)
    assert (
        told.json["contract"]
        == failsoft("models", "list", "--json", "--data", served.paths.root).json["items"][0]["contract"]
    )
    rows = served.rows("SELECT actor, json_extract(data, '$.pair') FROM events WHERE type='EquivalenceProved'")
    assert rows == [("equivalence", "faithful")]
    assert failsoft("verify", "--data", served.paths.root).code == 0


def test_people_are_told_prompt_by_prompt_and_what_it_permits(failsoft: Failsoft, tmp_path: Path) -> None:
    told = failsoft("models", "equivalence", "null", "null", "--prompts", "5", "--data", tmp_path)
    assert told.code == 0, told.err
    lines = told.out.splitlines()
    assert lines[0].split() == ["prompt", "answers", "next", "token", "agreed", "divergence"]
    assert lines[1].split() == ["advice", "equal", "48", "of", "48", "not", "told"]
    assert "class       identical" in lines
    assert "recorded    yes" in lines
    assert "moves with  failover auto, identical, once text was shown" in lines
    assert "target null: 100 %" in told.err


@pytest.mark.prove
def test_too_little_is_undecided(failsoft: Failsoft, tmp_path: Path) -> None:
    told = failsoft("models", "equivalence", "null", "null", "--tokens", "3", "--data", tmp_path)
    assert told.code == 1
    assert "class       not decided" in told.out
    assert "ask more" in told.out


def test_what_is_no_path_is_refused_and_nothing_is_made(failsoft: Failsoft, tmp_path: Path) -> None:
    told = failsoft("models", "equivalence", "null", "nobody", "--json", "--data", tmp_path)
    assert (told.code, told.json["error"]["exit_code"]) == (2, 2)
    assert "names no path" in told.json["error"]["detail"]
    dash = failsoft("models", "equivalence", "--data", tmp_path, "--", "-x", "null")
    assert dash.code == 2
    assert "does not begin with a dash" in dash.err
    assert not (tmp_path / "failsoft.db").exists()


def test_a_store_that_cannot_be_written_is_told_before_anything_is_measured(failsoft: Failsoft, tmp_path: Path) -> None:
    (tmp_path / "failsoft.db").write_bytes(b"no database at all, " * 500)
    told = failsoft("models", "equivalence", "null", "null", "--json", "--data", tmp_path)
    assert told.code == 1
    assert "failsoft verify" in told.json["error"]["detail"]
    assert "loading" not in told.err


def test_the_help_tells_what_a_path_is_and_every_exit_code(failsoft: Failsoft) -> None:
    told = failsoft("models", "equivalence", "--help")
    for text in ("ENGINE=URL", "upstream:NAME", "slots=4", "exit codes:"):
        assert text in told.out
    codes = [line.split()[0] for line in told.out.partition("exit codes:")[2].splitlines() if line.strip()]
    assert codes == ["0", "1", "2", "3", "4"]
