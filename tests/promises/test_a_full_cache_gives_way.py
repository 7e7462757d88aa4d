"""A shared cache that is full: the youngest gives its place, its state saved, and goes on where it was."""

from pathlib import Path

import pytest
from house import House, until
from null_answer import answer_to

POOL = """
gpu_slots = 4
pool_tokens = 512
context = 512

[policy]
restart_backoff_s = 0.02
return_to_gpu = false
"""
ENVIRONMENT = {"FAILSOFT_NULL_PREFILL_TPS": "400"}
"""150 tokens of a prompt take long enough that saving them is worth it."""


@pytest.mark.parametrize("mode", ["paged", pytest.param("reserve-max", marks=pytest.mark.prove)])
def test_all_complete_and_what_was_shown_stays(tmp_path: Path, mode: str) -> None:
    """Six of 80 to 100 prompt tokens and up to 200 more on 512: four fit at first, and not to their ends."""
    home = House(tmp_path / "data", config=POOL + f'kv_pool = "{mode}"\n')
    try:
        home.start(ENVIRONMENT)
        prompts = [f"[[tps=200]] number {n} " + "x" * 60 for n in range(6)]
        ids = [home.submit("", prompt=prompt, max_tokens=200) for prompt in prompts]
        shown: dict[str, str] = {}
        while any(home.state(i) not in {"completed", "resumable-error"} for i in ids):
            for i in ids:
                text = home.view(i)["output"]["text"]
                assert text.startswith(shown.get(i, "")), "what was shown is never changed"
                shown[i] = text
        preempted = {i: home.types(i).count("Preempted") for i in ids}
        for i, prompt in zip(ids, prompts, strict=True):
            view = home.view(i)
            assert (view["state"], view["lane"]) == ("completed", "gpu")
            assert view["output"]["text"] == answer_to(prompt, 200)
        assert max(preempted.values()) <= 2, "the bound"
        if mode == "reserve-max":
            assert sum(preempted.values()) == 0
        else:
            assert sum(preempted.values()) > 0
            assert preempted[ids[0]] == 0, "the oldest never gives way"
            told = next(e for i in ids for e in home.events(i) if e["type"] == "Preempted")
            assert told["data"]["decision"]["rule"] == "pool-full"
            assert told["data"]["decision"]["facts"]["blocks"] == 32
            moved = next(i for i in ids if preempted[i])
            assert "Gave way" in home.client.get(f"/requests/{moved}").text
            assert all(d["same"] for i in ids for d in home.replay(i)["decisions"])
        assert home.verify().ok
    finally:
        home.client.close()
        if home.process is not None and home.process.poll() is None:
            home.kill()


def test_a_kill_in_the_middle_of_it_loses_nothing(tmp_path: Path) -> None:
    import signal

    home = House(tmp_path / "data", config=POOL)
    try:
        home.start(ENVIRONMENT)
        ids = [home.submit("", prompt=f"[[tps=200]] {n} " + "y" * 70, max_tokens=150) for n in range(6)]
        until(lambda: sum(home.units(i) for i in ids) > 60, "work under way")
        home.send(home.runner("gpu"), signal.SIGKILL)
        for i in ids:
            assert home.settled(i)["state"] == "completed"
        assert home.verify().ok
    finally:
        home.client.close()
        if home.process is not None and home.process.poll() is None:
            home.kill()
