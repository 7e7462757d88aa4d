"""Which URL may be called, which address may be reached, and what a notice says."""

import pytest
from machine_cases import ADMITTED, sample

from core import events as ev
from core import webhooks
from core.machine import apply
from core.webhooks import Target, address_of, address_refusal, allowed, pause_s, read_url, refusal

NOBODY = allowed(())


@pytest.mark.parametrize(
    ("url", "target", "origin"),
    [
        ("https://example.com", Target("https", "example.com", 443, "/"), "https://example.com"),
        ("HTTP://Example.COM./a?b=c#d", Target("http", "example.com", 80, "/a?b=c"), "http://example.com"),
        ("http://example.com:8080/x", Target("http", "example.com", 8080, "/x"), "http://example.com:8080"),
        ("https://example.com:443/x", Target("https", "example.com", 443, "/x"), "https://example.com"),
        ("https://example.com?q=1", Target("https", "example.com", 443, "/?q=1"), "https://example.com"),
        ("http://[2001:DB8::1]:99/x", Target("http", "2001:db8::1", 99, "/x"), "http://[2001:db8::1]:99"),
        ("http://198.51.100.7/", Target("http", "198.51.100.7", 80, "/"), "http://198.51.100.7"),
    ],
)
def test_a_url_is_read(url: str, target: Target, origin: str) -> None:
    assert read_url(url) == target
    assert read_url(url).origin == origin


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.com",
        "ftp://example.com/x",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "http://",
        "http:///x",
        "http://user@example.com/",
        "http://user:word@example.com/",
        "http://example.com:80@10.0.0.1/",
        "http://example.com\\@10.0.0.1/",
        "http://example.com:0/",
        "http://example.com:65536/",
        "http://example.com:99999999/",
        "http://example.com:/",
        "http://exa mple.com/",
        "http://example.com/a b",
        "http://example.com/a\r\nX: y",
        "http://example.com/a\n",
        "http://bücher.example/",
        "http://example.com/ü",
        "http://a..b/",
        "http://./",
        "http://[::1/",
        "http://[fe80::1%25eth0]/",
        "http://[1.2.3.4]x/",
        "http://127.1/",
        "http://2130706433/",
        "http://0x7f000001/",
        "http://0x7f.0.0.1/",
        "http://0177.0.0.1/",
        "http://10.0.0.256/",
        "http://example.com/" + "x" * 2000,
        "http://" + "x" * 254 + "/",
    ],
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"it is not http|at most|is not an IP address|no name|no port"):
        read_url(url)


# From the IANA registries of special-purpose addresses, IPv4 and IPv6.
NOT_PUBLIC = {
    "0.0.0.0": "this very host",
    "10.1.2.3": "a private address",
    "100.64.0.1": "a reserved address",
    "127.0.0.1": "a loopback address",
    "127.255.255.254": "a loopback address",
    "169.254.169.254": "a link-local address",
    "172.16.0.1": "a private address",
    "172.31.255.255": "a private address",
    "192.168.0.1": "a private address",
    "198.18.0.1": "a private address",
    "224.0.0.1": "a multicast address",
    "239.255.255.250": "a multicast address",
    "240.0.0.1": "a private address",
    "255.255.255.255": "a private address",
    "::": "this very host",
    "::1": "a loopback address",
    "fe80::1": "a link-local address",
    "fe80::1%eth0": "a link-local address",
    "fc00::1": "a private address",
    "fd12:3456::1": "a private address",
    "fec0::1": "a reserved address",
    "ff02::1": "a multicast address",
    "::ffff:127.0.0.1": "a loopback address",
    "::ffff:10.0.0.1": "a private address",
    "::ffff:a9fe:a9fe": "a link-local address",
    "::127.0.0.1": "a loopback address",
    "64:ff9b::10.0.0.1": "a private address",
    "64:ff9b::a9fe:a9fe": "a link-local address",
    "2002:7f00:1::": "a loopback address",
    "2002:c0a8:1::1": "a private address",
}


@pytest.mark.parametrize("text", NOT_PUBLIC)
def test_what_is_not_of_the_public_internet_is_refused(text: str) -> None:
    address = address_of(text)
    assert address is not None
    told = address_refusal(address, NOBODY)
    assert told is not None
    assert "`webhook_hosts`" in told
    listed = allowed((text.partition("%")[0],))
    assert "%" in text or address_refusal(address, listed) is None


@pytest.mark.parametrize(("text", "kind"), [(text, kind) for text, kind in NOT_PUBLIC.items() if ":" not in text])
def test_the_refusal_says_what_it_is(text: str, kind: str) -> None:
    address = address_of(text)
    assert address is not None
    assert f"is {kind}" in str(address_refusal(address, NOBODY))


@pytest.mark.parametrize(
    "text",
    ["1.1.1.1", "8.8.8.8", "93.184.215.14", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8"],
)
def test_public_addresses_are_not(text: str) -> None:
    address = address_of(text)
    assert address is not None
    assert address_refusal(address, NOBODY) is None


def test_networks_and_names_can_be_listed() -> None:
    listed = allowed(("10.1.0.0/16", "Hook.LAN.", "fd00::/8", "127.0.0.1"))
    for text in ("10.1.255.1", "::ffff:10.1.0.7", "fd00::5", "127.0.0.1", "::ffff:127.0.0.1"):
        assert refusal(text, listed) is None
    for text in ("10.2.0.1", "::ffff:10.2.0.7", "127.0.0.2", "fc00::1"):
        assert refusal(text, listed) is not None
    assert listed.name("hook.lan")
    assert not listed.name("evil.hook.lan")


def test_this_machine_by_its_name() -> None:
    for host in ("localhost", "a.localhost"):
        assert "webhook_hosts" in str(refusal(host, NOBODY))
    assert refusal("localhost", allowed(("localhost",))) is None
    assert refusal("localhost", allowed(("127.0.0.0/8",))) is None
    assert refusal("a.localhost", allowed(("localhost",))) is not None
    assert refusal("localhost.example", NOBODY) is None


@pytest.mark.parametrize("entry", ["", "10.0.0.0/33", "10.0.0.1/8", "127.1", "a b", "http://x", "*.lan", "x:80"])
def test_other_entries_are_refused(entry: str) -> None:
    with pytest.raises(ValueError, match="neither a name nor a network"):
        allowed((entry,))


def test_pauses_double_and_are_spread() -> None:
    assert [pause_s(n, 5, 100, 1.0) for n in (1, 2, 3, 5, 6, 5000)] == [5, 10, 20, 80, 100, 100]
    assert [pause_s(n, 5, 100, 0.0) for n in (1, 2, 6)] == [2.5, 5, 50]


def test_what_is_signed_is_what_standard_webhooks_sign() -> None:
    assert webhooks.signed("msg_1", 1614265330, '{"test": 2432232314}') == b'msg_1.1614265330.{"test": 2432232314}'


def test_a_notice_tells_what_happened_and_no_text() -> None:
    state = apply(None, ADMITTED, stream="req_1", at_us=1)
    event = sample("Rerouted")
    after = apply(state, event, stream="req_1", at_us=2)
    told = webhooks.payload(event, after, "2026-01-01T00:00:00.000000Z")
    assert isinstance(event, ev.Rerouted)
    assert told["type"] == "request.rerouted"
    assert told["timestamp"] == "2026-01-01T00:00:00.000000Z"
    assert (told["data"]["id"], told["data"]["state"], told["data"]["lane"]) == ("req_1", "rerouted-cpu", "cpu")
    assert told["data"]["version"] == 2
    assert told["data"]["reason"] == event.reason
    assert told["data"]["degraded"]["rule"] == event.decision.rule
    assert told["data"]["links"]["self"] == "/api/requests/req_1"
    assert webhooks.key_of(after, 2) == "req_1-0-2"


def test_every_end_is_told() -> None:
    """Those events that make a request settle, and both moves between lanes."""
    assert {cls.__name__ for cls in webhooks.TYPES} == {
        *("Completed", "Failed", "Cancelled", "Expired"),
        *("Rerouted", "Returned"),
    }
