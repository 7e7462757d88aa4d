"""Handing in, looking at and acting on requests, from the command line, against a running service."""

from collections.abc import Callable
from typing import Any

import pytest
from house import House

Failsoft = Callable[..., Any]


def test_submit_prints_the_answer_and_nothing_else(failsoft: Failsoft, served: House) -> None:
    ran = failsoft("submit", "[[emit=Hello there]]", "--data", served.paths.root)
    assert (ran.code, ran.out) == (0, "Hello there\n")
    assert "req_" in ran.err


def test_submit_reads_standard_input(failsoft: Failsoft, served: House) -> None:
    ran = failsoft("submit", "-", "--data", served.paths.root, stdin="[[emit=Grüße]]".encode())
    assert (ran.code, ran.out) == (0, "Grüße\n")
    for bad in (b"\xff\xfe", b" \n"):
        assert failsoft("submit", "-", "--data", served.paths.root, stdin=bad).code == 2


def test_submit_watch_prints_the_same_text_as_wait(failsoft: Failsoft, served: House) -> None:
    root = served.paths.root
    texts = [
        failsoft("submit", "[[tps=200]] sea", "--max-tokens", 40, how, "--data", root).out
        for how in ("--watch", "--wait")
    ]
    assert texts[0] == texts[1]
    assert len(texts[0]) == 41


def test_submit_no_wait_prints_an_id_that_show_knows(failsoft: Failsoft, served: House) -> None:
    root = served.paths.root
    left = failsoft("submit", "[[emit=later]]", "--no-wait", "--data", root)
    request_id = left.out.strip()
    assert left.code == 0
    assert failsoft("watch", request_id, "--data", root).out == "later\n"
    shown = failsoft("show", request_id, "--data", root)
    assert shown.code == 0
    for part in (request_id, "completed", "later", "Accepted for null", "took it up and starts from the prompt"):
        assert part in shown.out


def test_submit_hands_every_option_on(failsoft: Failsoft, served: House) -> None:
    root = served.paths.root
    options = ["--system", "Be brief.", "--model", "null", "--max-tokens", 30, "--temperature", 0.5, "--top-p", 0.9]
    options += ["--top-k", 7, "--seed", 11, "--stop", "XYZ", "--stop", "END", "--failover", "boundary"]
    options += ["--priority", "batch", "--deadline", 600]
    ran = failsoft("submit", "[[emit=one two END three]]", *options, "--json", "--data", root)
    assert ran.code == 0
    assert ran.json["output"]["text"] == "one two "
    assert ran.json["finish_reason"] == "stop"
    exported = served.client.get(f"/api/requests/{ran.json['id']}/export").json()
    body = exported["submission"]["body"]
    assert [turn["role"] for turn in body["messages"]] == ["system", "user"]
    wanted = {"max_tokens": 30, "temperature": 0.5, "top_p": 0.9, "top_k": 7, "seed": 11, "stop": ["XYZ", "END"]}
    wanted |= {"failover": "boundary", "priority": "batch", "deadline_s": 600.0}
    assert {name: body[name] for name in wanted} == wanted


def test_the_same_key_makes_one_request(failsoft: Failsoft, served: House) -> None:
    options = ["--idempotency-key", "cli-test-key", "--no-wait", "--data", served.paths.root]
    first, second = (failsoft("submit", "[[emit=once]]", *options) for _ in range(2))
    assert first.code == second.code == 0
    assert first.out == second.out
    other = failsoft("submit", "[[emit=twice]]", *options)
    assert other.code == 4
    assert other.out == ""


def test_list_shows_newest_first_and_filters(failsoft: Failsoft, served: House) -> None:
    root = served.paths.root
    ids = [failsoft("submit", "[[emit=x]]", "--json", "--data", root).json["id"] for _ in range(2)]
    listed = failsoft("list", "--limit", 2, "--json", "--data", root)
    assert [view["id"] for view in listed.json["items"]] == ids[::-1]
    table = failsoft("list", "--limit", 2, "--state", "completed", "--data", root)
    lines = table.out.splitlines()
    assert lines[0].split()[0] == "request"
    assert [line.split()[0] for line in lines[1:]] == ids[::-1]
    assert failsoft("list", "--state", "refused", "--json", "--data", root).json["items"] == []


def test_a_request_that_was_cancelled_is_told_by_exit_code_1(failsoft: Failsoft, served: House) -> None:
    root = served.paths.root
    request_id = failsoft("submit", "[[tps=5]] slow", "--no-wait", "--max-tokens", 500, "--data", root).out.strip()
    cancelled = failsoft("cancel", request_id, "--data", root)
    assert cancelled.code == 0
    assert request_id in cancelled.out
    watched = failsoft("watch", request_id, "--data", root)
    assert watched.code == 1
    assert "Cancelled because it was asked for." in watched.err
    assert f"failsoft show {request_id}" in watched.err
    assert failsoft("show", request_id, "--data", root).code == 1
    assert failsoft("cancel", request_id, "--data", root).code == 0
    assert failsoft("resume", request_id, "--data", root).code == 4


@pytest.mark.prove
def test_a_poisonous_request_stops_and_can_be_resumed(failsoft: Failsoft, own: House) -> None:
    root = own.paths.root
    ran = failsoft("submit", "[[crash=11@6]] [[emit=0123456789]]", "--watch", "--data", root)
    request_id = ran.err.split("[", 1)[1].split(",", 1)[0]
    assert ran.code == 1
    assert "0123456789".startswith(ran.out.strip())
    assert f"failsoft resume {request_id}" in ran.err
    shown = failsoft("show", request_id, "--data", root)
    assert shown.code == 1
    assert "Resume it from its checkpoint" in shown.out
    again = failsoft("resume", request_id, "--from", "start", "--watch", "--data", root)
    assert again.code == 1
    assert "Resumed from the start, as a new output" in again.err
    assert failsoft("cancel", request_id, "--data", root).code == 0
    assert failsoft("show", request_id, "--json", "--data", root).json["request"]["state"] == "cancelled"


def test_replay_tells_the_chain_and_asks_again(failsoft: Failsoft, served: House) -> None:
    root = served.paths.root
    request_id = failsoft("submit", "[[emit=why]]", "--json", "--data", root).json["id"]
    told = failsoft("replay", request_id, "--data", root)
    assert told.code == 0
    assert "Accepted for null" in told.out
    assert "gpu-ready" in told.out
    assert "same" in told.out
    assert "DIFFERS" not in told.out
    early = failsoft("replay", request_id, "--at", 1, "--json", "--data", root)
    assert early.json["version"] == 1
    assert early.json["state"] == "admitted"
    assert len(early.json["chain"]) == 1
    assert failsoft("replay", request_id, "--at", 10_000, "--data", root).code == 4


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("show", "req_none"), 4, "there is no request req_none"),
        (("watch", "req_none"), 4, "there is no request req_none"),
        (("submit", "x", "--model", "none"), 4, "'none'"),
        (("submit", "x", "--temperature", "-1"), 4, "temperature"),
        (("submit", "x", "--max-tokens", "100000"), 4, "100000"),
        (("submit", "x", "--raw", "--system", "y"), 2, "--raw"),
        (("submit",), 2, "text"),
        (("nonsense",), 2, "nonsense"),
    ],
)
def test_what_is_refused_for_good(
    failsoft: Failsoft, served: House, arguments: tuple[str, ...], code: int, told: str
) -> None:
    ran = failsoft(*arguments, FAILSOFT_DATA=str(served.paths.root))
    assert ran.code == code
    assert ran.out == ""
    assert told in ran.err


def test_nobody_answers(failsoft: Failsoft, served: House) -> None:
    ran = failsoft("show", "req_x", "--url", "http://127.0.0.1:1")
    assert (ran.code, ran.out) == (2, "")
    assert "no service answers at http://127.0.0.1:1" in ran.err
    assert "failsoft serve" in ran.err
    as_json = failsoft("list", "--json", "--url", "http://127.0.0.1:1")
    assert as_json.code == 2
    assert as_json.json["error"]["code"] == "unreachable"
    assert failsoft("list", "--url", "nonsense").code == 2
    assert failsoft("list", FAILSOFT_URL="http://127.0.0.1:1").code == 2
    # What is said on the command line goes before the environment.
    assert failsoft("list", "--data", served.paths.root, FAILSOFT_URL="http://127.0.0.1:1").code == 0


def test_a_directory_without_a_service(failsoft: Failsoft, tmp_path: Any) -> None:
    ran = failsoft("list", "--data", tmp_path / "none")
    assert ran.code == 2
    assert "no service has run on" in ran.err


def test_help_tells_the_exit_codes(failsoft: Failsoft) -> None:
    ran = failsoft("--help")
    assert ran.code == 0
    for code in (0, 1, 2, 3, 4, 130):
        assert f"\n  {code:>3}  " in ran.out
    assert failsoft("serve", "--help").out.startswith("usage: failsoft serve")
    assert failsoft("sim", "--help").out.startswith("usage: failsoft sim")
    assert failsoft("--version").out.startswith("failsoft ")
