"""Promise 7: it goes back by itself. Moved work returns to the GPU lane, and nothing shown changes on the way."""

import signal
from pathlib import Path

import pytest
from house import House, house, until
from null_answer import answer_to

EAGER = """
[policy]
restart_backoff_s = 0.02
restart_backoff_max_s = 0.1
return_after_s = 0.2
return_gain_s = -1.0
"""


def kill_and_await_return(home: House, request_id: str, moves: int) -> None:
    home.send(home.runner("gpu"), signal.SIGKILL)
    until(lambda: home.types(request_id).count("Rerouted") == moves, f"move {moves}")
    until(lambda: home.types(request_id).count("Returned") == moves, f"return {moves}")
    units = home.units(request_id)
    until(lambda: home.units(request_id) > units, "progress over there")


def test_a_long_answer_goes_back_at_a_chunk_boundary_again_and_again(tmp_path: Path) -> None:
    with house(tmp_path / "data", config=EAGER) as home:
        prompt = "[[tps=30]] there and back"
        request_id = home.submit("", prompt=prompt, max_tokens=280)
        until(lambda: home.units(request_id) >= 6, "six units")
        for moves in (1, 2):
            kill_and_await_return(home, request_id, moves)
        view = home.view(request_id)
        assert (view["lane"], view["degraded"]) == ("gpu", None)
        assert [move["to"] for move in view["failovers"]] == ["cpu", "gpu", "cpu", "gpu"]
        assert "GPU lane serves again" in view["failovers"][1]["because"]
        shown = view["output"]["text"]
        final = home.settled(request_id)
        assert final["state"] == "completed"
        assert final["output"]["text"].startswith(shown)
        assert final["output"]["text"] == answer_to(prompt, 280)
        returned = next(event for event in home.events(request_id) if event["type"] == "Returned")
        assert returned["data"]["decision"]["facts"]["pair"] == "identical"
        assert returned["data"]["resume_from"] >= 6
        assert all(decision["same"] for decision in home.replay(request_id)["decisions"])
        page = home.client.get(f"/requests/{request_id}").text
        assert "CPU → GPU" in page
        assert "gpu-is-back" in page
        assert home.verify().ok


@pytest.mark.prove
def test_it_stays_where_going_back_does_not_pay(tmp_path: Path) -> None:
    """By default both lanes of a simulated accelerator are as fast, so a takeover only costs."""
    with house(tmp_path / "data", config=EAGER.replace("-1.0", "5.0")) as home:
        request_id = home.submit("[[tps=40]] stay", max_tokens=120)
        until(lambda: home.units(request_id) >= 6, "six units")
        home.send(home.runner("gpu"), signal.SIGKILL)
        view = home.settled(request_id)
        assert (view["state"], view["lane"]) == ("completed", "cpu")
        assert "Returned" not in home.types(request_id)
