"""`failsoft what-if`: the record of a service under another policy, on the command line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from house import house

Failsoft = Callable[..., Any]


def test_a_failover_that_less_headroom_would_have_avoided(failsoft: Failsoft, tmp_path: Path) -> None:
    config = "null_token_bytes = 1048576\n"
    with house(tmp_path / "data", gpu="1GiB", config=config) as home:
        # 1,024 MiB less 256 of headroom: 800 never fit, and would without the headroom.
        body: dict[str, Any] = {"prompt": "hello", "max_tokens": 795, "allow_shrink": False}
        moved = home.settled(home.submit("", **body))
        assert (moved["lane"], moved["degraded"]["rule"]) == ("cpu", "never-fits")
        root = home.paths.root
        told = failsoft("what-if", "--headroom", "0", "--since", "7d", "--json", "--data", root)
        assert told.code == 0, told.err
        assert (told.json["decisions"], told.json["failovers_avoided"]) == (1, 1)
        assert told.json["risks"] == 1
        words = failsoft("what-if", "--headroom", "0MiB", "--data", root)
        assert words.code == 0
        for part in (
            "What if 0 B of the device had been kept free?",
            "Decision by decision, no knock-on effects.",
            "decisions asked again  1,",
            "moves to the CPU lane  1 avoided, 0 added",
            "go to the CPU lane: run on the GPU lane",
            "reroute-cpu -> run-gpu",
            moved["id"],
            "asked again by itself",
        ):
            assert part in words.out
        wrong = failsoft("what-if", "--headroom", "much", "--data", root)
        assert wrong.code == 4
        assert "is not a size" in wrong.err
        nothing = failsoft("what-if", "--since", "7d", "--until", "1d", "--json", "--data", root)
        assert nothing.json["decisions"] == 0
