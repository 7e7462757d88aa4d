"""Promise: whoever asked to be told is told of every end and every move, once under each key, in their order."""

import base64
import hashlib
import hmac
import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from house import House, house, until
from receiver import Receiver

FAILSOFT = Path(sys.executable).with_name("failsoft")
TOLD = {"Completed", "Failed", "Cancelled", "Expired", "Rerouted", "Returned"}
CONFIG = """
webhook_hosts = ["127.0.0.1"]

[policy]
restart_backoff_s = 0.02
restart_backoff_max_s = 0.1
webhook_backoff_s = 0.02
webhook_backoff_max_s = 0.2
webhook_tries = {tries}
webhook_timeout_s = {timeout}
"""


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    (tmp_path / "receiver").mkdir()
    with Receiver(tmp_path / "receiver") as made:
        yield made


def config(tries: int = 1000, timeout: float = 60.0) -> str:
    return CONFIG.format(tries=tries, timeout=timeout)


def owed(home: House) -> dict[str, str]:
    """Keys of what must have been told, with the type of each event, by the journal alone. None began anew."""
    marks = ",".join("?" * len(TOLD))
    rows = home.rows(f"SELECT stream, version, type FROM events WHERE type IN ({marks})", *sorted(TOLD))
    return {f"{stream}-0-{version}": type_ for stream, version, type_ in rows}


def recorded(home: House) -> Counter[str]:
    """How often each key's arrival is in the journal."""
    rows = home.rows("SELECT json_extract(data, '$.key') FROM events WHERE type='EffectDelivered'")
    return Counter(row[0] for row in rows)


def notices(home: House, state: str) -> list[dict[str, Any]]:
    answer = home.patiently(lambda: home.client.get("/api/webhooks", params={"state": state, "limit": 500}))
    assert answer.status_code == 200, answer.text
    return list(answer.json()["items"])


@pytest.mark.prove
def test_whatever_is_killed_each_notice_arrives(tmp_path: Path, receiver: Receiver) -> None:
    """Each web process dies once between a delivery and the record of it, and others at random beside it."""
    draw = random.Random(20)
    faults = {"FAILSOFT_FAULTPOINTS": "outbox.delivered=kill@5"}
    home = House(tmp_path / "data", config=config())
    with_house = home.start(faults)
    try:
        ids = []
        for blow in range(12):
            for n in range(5):
                hook = {"url": f"{receiver.url}/{draw.choice(['ok', 'ok', 'flaky/1'])}"}
                ids.append(with_house.submit(f"[[tps=300]] blow {blow} {n}", max_tokens=16, webhook=hook))
            what = draw.choice(["web.app", "runners.runner", "runners.runner", "house"])
            time.sleep(draw.random() * 0.1)
            if what == "house":
                home.kill()
                home.start(faults)
            elif pid := home.child(what):
                home.send(pid, signal.SIGKILL)
        assert len(ids) == 60
        for request_id in ids:
            assert home.settled(request_id)["state"] == "completed"
        wanted = owed(home)
        assert len(wanted) >= 60
        until(lambda: set(recorded(home)) == set(wanted), "every arrival in the journal")
        got = receiver.told()
        assert {told["webhook-id"] for told in got} == set(wanted), "each at least once, and no other"
        assert set(recorded(home).values()) == {1}
        assert len({(told["webhook-id"], told["body"]) for told in got}) == len(wanted), (
            "the same words at each attempt"
        )
        arrived = Counter(told["webhook-id"] for told in got if told["path"] == "/ok")
        assert max(arrived.values()) > 1, "nothing was ever sent twice: the kills struck elsewhere"
        firsts: dict[str, list[int]] = {}
        for told in got:
            data = json.loads(told["body"])["data"]
            versions = firsts.setdefault(data["id"], [])
            if data["version"] not in versions:
                versions.append(data["version"])
        assert all(a < b for versions in firsts.values() for a, b in pairwise(versions))
        assert any(type_ == "Rerouted" for type_ in wanted.values()), "no kill moved anything"
        assert notices(home, "waiting") == notices(home, "dead") == []
        assert home.verify().ok
    finally:
        home.client.close()
        if home.process is not None and home.process.poll() is None:
            home.process.kill()
            home.process.wait()


def test_an_endpoint_that_fails_is_tried_again_and_can_check_who_calls(tmp_path: Path, receiver: Receiver) -> None:
    with house(tmp_path / "data", config=config()) as home:
        request_id = home.submit("[[emit=geheim]] first", webhook={"url": f"{receiver.url}/flaky/2"})
        (key,) = until(lambda: list(recorded(home)), "the arrival")
        got = receiver.told()
        assert [told["webhook-id"] for told in got] == [key] * 3
        assert [told["body"] for told in got] == [got[0]["body"]] * 3
        told = json.loads(got[0]["body"])
        assert (told["type"], told["data"]["id"], told["data"]["state"]) == (
            "request.completed",
            request_id,
            "completed",
        )
        assert "geheim" not in got[0]["body"]
        view = home.view(request_id)
        assert (view["state"], view["output"]["text"]) == ("completed", "geheim")
        (done,) = notices(home, "done")
        assert (done["key"], done["tries"], done["target"]) == (key, 3, receiver.url)
        command = [FAILSOFT, "webhooks", "secret", "--data", home.paths.root]
        shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
        secret = base64.b64decode(shown.removeprefix("whsec_"), validate=True)
        for each in got:
            over = f"{each['webhook-id']}.{each['webhook-timestamp']}.{each['body']}".encode()
            made = base64.b64encode(hmac.new(secret, over, hashlib.sha256).digest()).decode()
            assert each["webhook-signature"] == f"v1,{made}"
            assert abs(int(each["webhook-timestamp"]) - time.time()) < 300  # what receivers' libraries allow


def test_one_that_hangs_holds_up_nobody_else(tmp_path: Path, receiver: Receiver) -> None:
    (tmp_path / "other").mkdir()
    with Receiver(tmp_path / "other") as other, house(tmp_path / "data", config=config(timeout=600.0)) as home:
        stuck = [
            home.submit(f"[[tps=0]] {n}", max_tokens=2, webhook={"url": f"{receiver.url}/hang"}) for n in range(40)
        ]
        for request_id in stuck:
            home.settled(request_id)
        until(receiver.told, "a call that hangs")
        last = home.submit("[[tps=0]] last", max_tokens=2, webhook={"url": f"{other.url}/ok"})
        until(lambda: recorded(home), "the other arrival")
        assert [json.loads(told["body"])["data"]["id"] for told in other.told()] == [last]
        assert len(notices(home, "waiting")) == 40
        home.client.request("DELETE", f"/api/requests/{stuck[0]}/content").raise_for_status()
        assert stuck[0] not in {notice["request_id"] for notice in notices(home, "waiting")}
        assert home.stop() == 0


@pytest.mark.prove
def test_what_never_arrives_is_given_up_and_shown(tmp_path: Path, receiver: Receiver) -> None:
    with house(tmp_path / "data", config=config(tries=2, timeout=0.5)) as home:
        wanted = {
            "hang": ("no answer within 0.5 s", 2),
            "redirect": ("HTTP 307: redirects are not followed; give the final URL", 2),
            "status/410": ("HTTP 410", 1),
        }
        ids = {
            home.submit(f"[[tps=0]] {path}", max_tokens=2, webhook={"url": f"{receiver.url}/{path}"}): path
            for path in wanted
        }
        until(lambda: len(notices(home, "dead")) == 3, "three notices to be given up")
        assert {ids[n["request_id"]]: (n["error"], n["tries"]) for n in notices(home, "dead")} == wanted
        assert recorded(home) == Counter()
        assert "/trap" not in {told["path"] for told in receiver.told()}
        for request_id in ids:
            assert home.view(request_id)["state"] == "completed"


def test_only_what_is_listed_is_reached_inside(tmp_path: Path, receiver: Receiver) -> None:
    with house(tmp_path / "data", config=config()) as home:
        for url in (
            f"http://localhost.:{receiver.port}/ok",
            "http://10.0.0.1/",
            "http://[::1]/",
            "http://169.254.169.254/",
        ):
            body = {"model": "null", "prompt": "x", "webhook": {"url": url}}
            answer = home.client.post("/api/requests", json=body)
            if "localhost" in url:
                assert answer.status_code == 202, "it leads to 127.0.0.1, which is listed"
                continue
            assert answer.status_code == 422
            assert answer.json()["error"]["code"] == "webhook_target"
            assert "`webhook_hosts`" in answer.json()["detail"]
        until(lambda: recorded(home), "the arrival")
        assert [told["path"] for told in receiver.told()] == ["/ok"]
