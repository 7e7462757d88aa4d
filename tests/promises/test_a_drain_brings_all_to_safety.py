"""A drain answers only when all is safe; nothing new is accepted, and the next start goes on."""

import signal
import threading
from pathlib import Path

from house import House, house, until
from null_answer import answer_to

CONFIG = "[policy]\nrestart_backoff_s = 0.02\ndrain_s = 10.0\n"


def test_four_are_checkpointed_before_it_answers(tmp_path: Path) -> None:
    with house(tmp_path / "data", config=CONFIG) as home:
        prompts = [f"[[tps=30]] number {n}" for n in range(4)]
        ids = [home.submit("", prompt=prompt, max_tokens=150) for prompt in prompts]
        until(lambda: all(home.units(i) >= 4 for i in ids), "all under way")
        answer = home.client.post("/api/drain", json={"reason": "the disk is to be changed"})
        assert answer.status_code == 200
        assert answer.json()["drained"] is True
        assert answer.json()["waiting"] == 4
        assert home.rows("SELECT count(*) FROM leases") == [(0,)]
        assert {home.state(i) for i in ids} == {"checkpointed"}
        shown = {i: home.view(i)["output"]["text"] for i in ids}

        refused = home.client.post("/api/requests", json={"model": "null", "prompt": "no", "max_tokens": 4})
        assert refused.status_code == 503
        assert refused.headers["retry-after"]
        assert home.client.get("/readyz").status_code == 503
        assert home.client.post("/api/drain", json={}).json()["waiting"] == 4, "a repeat answers the same"
        until(lambda: not home.rows("SELECT 1 FROM runners"), "the runners to end")
        assert [row[0] for row in home.rows("SELECT type FROM events WHERE stream='service'")].count("DrainAsked") == 1

        assert home.stop() == 0
        home.start()
        for i, prompt in zip(ids, prompts, strict=True):
            view = home.settled(i)
            assert view["output"]["text"].startswith(shown[i])
            assert view["output"]["text"] == answer_to(prompt, 150)
        assert home.verify().ok


def test_one_that_does_not_stop_is_ended_and_its_work_is_safe(tmp_path: Path) -> None:
    with house(tmp_path / "data", config=CONFIG.replace("10.0", "0.5")) as home:
        request_id = home.submit("", prompt="[[tps=30]] stuck", max_tokens=300)
        until(lambda: home.units(request_id) >= 4, "it to be under way")
        home.send(home.runner("gpu"), signal.SIGSTOP)
        answers: list[int] = []
        asking = threading.Thread(target=lambda: answers.append(home.client.post("/api/drain", json={}).status_code))
        asking.start()
        asking.join(60)
        assert answers == [200]
        assert home.rows("SELECT count(*) FROM leases") == [(0,)]
        assert home.state(request_id) in {"checkpointed", "rerouted-cpu"}
        assert home.units(request_id) >= 4


def test_what_is_no_reason_is_refused(null_house: House) -> None:
    for body in ({"reason": ""}, {"reason": "x" * 501}, {"why": "x"}, [1]):
        assert null_house.client.post("/api/drain", json=body).status_code == 400
    assert null_house.settled(null_house.submit("still here", max_tokens=4))["state"] == "completed"
