"""Promise: whatever dies, whoever is told misses nothing and sees each notice once, if it drops keys it has seen.

The receiver is a process of its own that writes down what it gets; what it must have got is counted from the journal.
"""

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from house import House, until
from receiver import Receiver

FAILSOFT = Path(sys.executable).with_name("failsoft")
TOLD = ("Completed", "Failed", "Cancelled", "Expired", "Rerouted", "Returned")
CONFIG = """
webhook_hosts = ["127.0.0.1"]

[policy]
restart_backoff_s = 0.02
restart_backoff_max_s = 0.1
return_to_gpu = false
gpu_queue_limit = 5000
cpu_queue_limit = 5000
webhook_backoff_s = 0.02
webhook_backoff_max_s = 0.2
webhook_tries = {tries}
webhook_timeout_s = {timeout}
"""
HOURS_S = 3600.0


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    (tmp_path / "receiver").mkdir()
    with Receiver(tmp_path / "receiver") as made:
        yield made


def made(tmp_path: Path, *, tries: int = 100_000, timeout: float = 2.0) -> House:
    return House(tmp_path / "data", config=CONFIG.format(tries=tries, timeout=timeout))


def gone(home: House) -> None:
    home.client.close()
    if home.process is not None and home.process.poll() is None:
        home.process.kill()
        home.process.wait()


def owed(home: House) -> set[str]:
    """Keys of all that must be told, by the journal alone: request, output epoch and version of each such event."""
    marks = ",".join("?" * len(TOLD))
    rows = home.rows(
        "SELECT e.stream, (SELECT count(*) FROM events r WHERE r.stream=e.stream AND r.version<e.version AND "
        "r.type='Resumed' AND json_extract(r.data, '$.origin')='start'), e.version "
        f"FROM events e WHERE e.type IN ({marks})",
        *TOLD,
    )
    return {f"{stream}-{epoch}-{version}" for stream, epoch, version in rows}


def recorded(home: House) -> Counter[str]:
    rows = home.rows("SELECT json_extract(data, '$.key') FROM events WHERE type='EffectDelivered'")
    return Counter(row[0] for row in rows)


def strike(home: House, draw: random.Random, environment: dict[str, str]) -> str:
    """One SIGKILL, for any of its processes; after that of the supervisor all of them are started anew."""
    what = draw.choice(["web.app", "web.app", "runners.runner", "runners.runner", "runners.monitor", "house"])
    if what == "house":
        home.kill()
        home.start(environment)
    elif pid := home.child(what):
        home.send(pid, signal.SIGKILL)
    return what


def deliveries(
    tmp_path: Path, receiver: Receiver, note: Callable[[str, object], None], *, count: int, moods: tuple[str, ...]
) -> Counter[str]:
    """`count` requests that are told of, struck all the while; the kills by kind."""
    draw = random.Random(count)
    # Each web process also dies once between a delivery and the record of it, where it matters most.
    environment = {"FAILSOFT_FAULTPOINTS": "outbox.delivered=kill@9"}
    home = made(tmp_path)
    struck: Counter[str] = Counter()
    try:
        home.start(environment)
        ids: list[str] = []
        while len(ids) < count:
            receiver.mood(draw.choice(moods))
            for _ in range(5):
                hook = {"url": f"{receiver.url}/mood"}
                key = f"delivery-{len(ids)}"  # a web process that dies in a call may have accepted it
                units = draw.randrange(4, 24)
                ids.append(home.submit(f"[[tps=400]] {key}", key=key, max_tokens=units, webhook=hook))
            time.sleep(draw.random() * 0.1)
            struck[strike(home, draw, environment)] += 1
        receiver.mood("/ok")
        until(lambda: home.rows("SELECT count(*) FROM requests WHERE state='completed'") == [(count,)], "all", HOURS_S)
        wanted = owed(home)
        until(lambda: set(recorded(home)) == wanted, "every arrival in the journal", HOURS_S)
        told = receiver.told()
        assert {one["webhook-id"] for one in told} == wanted, "each at least once, and nothing else"
        assert set(recorded(home).values()) == {1}, "each is recorded once"
        words = {(one["webhook-id"], one["body"]) for one in told}
        assert len(words) == len(wanted), "the same words at each attempt: once, by the key"
        assert len(wanted) >= count
        assert home.rows("SELECT count(*) FROM outbox WHERE state<>'done'") == [(0,)]
        assert len({one["path"] for one in told}) == 1, "a redirect was followed"
        assert home.verify().ok
        times = Counter(one["webhook-id"] for one in told)
        note("kills", sum(struck.values()))
        note("notices owed", len(wanted))
        note("missing", len(wanted - set(times)))
        note("sent more than once", sum(number > 1 for number in times.values()))
        note("different words under one key", len(words) - len(wanted))
        return struck
    finally:
        gone(home)


MOODS = ("/ok", "/ok", "/flaky/1", "/status/500", "/hang", "/redirect")


def test_twenty_with_a_kill_after_every_five(tmp_path: Path, receiver: Receiver, record_property: Any) -> None:
    struck = deliveries(tmp_path, receiver, record_property, count=20, moods=MOODS)
    assert sum(struck.values()) == 4


@pytest.mark.prove
@pytest.mark.parametrize("moods", [("/ok",), MOODS], ids=["one-that-is-well", "one-that-is-not"])
def test_a_thousand_with_a_kill_after_every_five(
    tmp_path: Path, receiver: Receiver, record_property: Any, moods: tuple[str, ...]
) -> None:
    struck = deliveries(tmp_path, receiver, record_property, count=1000, moods=moods)
    assert sum(struck.values()) == 200
    assert set(struck) == {"web.app", "runners.runner", "runners.monitor", "house"}


@pytest.mark.prove
def test_what_was_given_up_arrives_once_it_is_sent_again(tmp_path: Path, receiver: Receiver) -> None:
    """By the call for one, and by the command for all others."""
    home = made(tmp_path, tries=1, timeout=0.5)
    try:
        home.start()
        receiver.mood("/status/500")
        ids = [home.submit(f"[[tps=0]] {n}", max_tokens=2, webhook={"url": f"{receiver.url}/mood"}) for n in range(4)]
        dead = "SELECT key FROM outbox WHERE state='dead' ORDER BY key"
        until(lambda: len(home.rows(dead)) == 4, "four to be given up")
        keys = [row[0] for row in home.rows(dead)]
        receiver.mood("/ok")
        call = f"/api/webhooks/{keys[0]}/resend"
        answer = home.client.post(call, json={})
        assert (answer.status_code, answer.json()["key"], answer.json()["state"]) == (202, keys[0], "waiting")
        assert answer.json()["target"] == receiver.url
        until(lambda: recorded(home) == Counter([keys[0]]), "the first")
        refused = home.client.post(call, json={})
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "delivered")
        unknown = home.client.post("/api/webhooks/nobody/resend", json={})
        assert unknown.status_code == 404

        def command(*arguments: str) -> subprocess.CompletedProcess[str]:
            whole = [str(FAILSOFT), "webhooks", "resend", *arguments, "--url", str(home.client.base_url)]
            return subprocess.run(whole, capture_output=True, text=True, check=False, timeout=120)

        assert command("nobody").returncode != 0
        assert command().returncode == 2
        told = command("--all")
        assert (told.returncode, sorted(line.partition(":")[0] for line in told.stdout.splitlines())) == (0, keys[1:])
        until(lambda: recorded(home) == Counter(keys), "all of them")
        firsts = [one["webhook-id"] for one in receiver.told()]
        assert Counter(firsts) == Counter(keys * 2), "the attempt that failed, and the one that was taken"
        assert {one["body"] for one in receiver.told()[:4]} == {one["body"] for one in receiver.told()[4:]}
        assert all(home.view(one)["state"] == "completed" for one in ids)
        assert home.verify().ok
    finally:
        gone(home)


def test_a_client_that_hangs_up_is_told_all_the_same(tmp_path: Path, receiver: Receiver) -> None:
    """It waits for the answer, gives up, and asks again with its key: one run, one answer, one notice."""
    home = made(tmp_path)
    try:
        home.start()
        body: dict[str, Any] = {"model": "null", "prompt": "[[tps=40]] slow", "max_tokens": 60}
        body["webhook"] = {"url": f"{receiver.url}/ok"}
        headers = {"Idempotency-Key": "mine", "Prefer": "wait=60"}
        with pytest.raises(httpx.ReadTimeout):
            home.client.post("/api/requests", json=body, headers=headers, timeout=0.7)
        answer = home.client.post("/api/requests", json=body, headers=headers, timeout=100.0)
        view = answer.json()
        assert (view["state"], view["attempt"], len(view["output"]["text"])) == ("completed", 1, 60)
        assert home.rows("SELECT count(*) FROM requests") == [(1,)]
        assert home.types(view["id"]).count("Started") == 1
        until(lambda: recorded(home), "the notice")
        assert [one["webhook-id"] for one in receiver.told()] == list(recorded(home)) == list(owed(home))
    finally:
        gone(home)


@pytest.mark.prove
def test_the_record_is_written_while_kills_fall_between_delivery_and_record(tmp_path: Path, receiver: Receiver) -> None:
    """Every web process dies at its very first delivery, six times in a row; the seventh may live."""
    home = made(tmp_path)
    try:
        home.start({"FAILSOFT_FAULTPOINTS": "outbox.delivered=kill@1"})
        request_id = home.submit("[[tps=0]] x", max_tokens=2, webhook={"url": f"{receiver.url}/ok"})
        until(lambda: len(receiver.told()) >= 6, "six deliveries of one notice")
        assert recorded(home) == Counter()
        home.kill()
        home.start()
        until(lambda: recorded(home), "the record")
        (key,) = recorded(home)
        assert {one["webhook-id"] for one in receiver.told()} == {key}
        assert home.types(request_id).count("EffectDelivered") == 1
        assert home.verify().ok
    finally:
        gone(home)
