"""Whom to tell about which event of a request, in which words and under which key; and where that may be sent at all.

1. A notice is made of the event and the state after it. No prompt, no output and nothing else a person wrote is in it.
2. Its key is made of the request, its output epoch and the event's version: the same at every attempt, and never that
   of another notice. A receiver that drops keys it has seen gets each notice once.
3. A URL is read by one narrow grammar, and what is called is made of its parts again: no two readers can differ on it.
4. Addresses are judged by what they reach: one that wraps an IPv4 address is judged by that as well. What is not an
   address of the public internet is refused unless the operator has listed it.

Not here: when to send (the outbox), what a name resolves to (the shell), the secret.
"""

import ipaddress
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from core import events as ev
from core.state import RequestState

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

TYPES: Final[Mapping[type[ev.Event], str]] = {
    ev.Completed: "request.completed",
    ev.Failed: "request.failed",
    ev.Cancelled: "request.cancelled",
    ev.Expired: "request.expired",
    ev.Rerouted: "request.rerouted",
    ev.Returned: "request.returned",
}
"""Events that are told: every end, and every change of the service a request gets."""
MAX_URL_CHARACTERS: Final = 2000
_MAX_NAME: Final = 253
_URL: Final = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?(?P<path>[/?][!-~]*)?",
    re.IGNORECASE,
)
_NUMBER: Final = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]*")
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


class Target(msgspec.Struct, frozen=True):
    """The parts of a URL, as they are used."""

    scheme: Literal["http", "https"]
    host: str
    """A name in small letters, or an address without brackets."""
    port: int
    path: str
    """Path and query, with the `/` at its beginning."""

    @property
    def origin(self) -> str:
        """Who answers there: scheme, host and port, without the path."""
        return f"{self.scheme}://{self.authority(self.host)}"

    def authority(self, host: str) -> str:
        """`host` and the port as a URL has them; with its own host, the value of a `Host` header."""
        shown = f"[{host}]" if ":" in host else host
        return shown if self.port == {"http": 80, "https": 443}[self.scheme] else f"{shown}:{self.port}"


def read_url(url: str) -> Target:
    """The parts of a URL. Raises `ValueError` with what is wrong and what to write instead."""
    if len(url) > MAX_URL_CHARACTERS:
        raise ValueError(f"it has {len(url)} characters; at most {MAX_URL_CHARACTERS} are taken")
    found = _URL.fullmatch(url.partition("#")[0])
    if found is None:
        raise ValueError(
            "it is not http://HOST[:PORT]/PATH or https://…, in ASCII, without blanks, and without a user or password; "
            "names in other scripts are written as xn--…, other characters of a path as %XX"
        )
    host = found["host"].lower().removesuffix(".")
    literal = host.startswith("[") or _NUMBER.fullmatch(host.rpartition(".")[2]) is not None
    if literal and address_of(host.strip("[]")) is None:
        raise ValueError(
            f"{found['host']} is not an IP address; write all four numbers, or an IPv6 address in brackets"
        )
    if not host or len(host) > _MAX_NAME or ".." in host:
        raise ValueError(f"the host is no name: it has 1 to {_MAX_NAME} characters and no empty part")
    scheme: Literal["http", "https"] = "https" if found["scheme"].lower() == "https" else "http"
    port = int(found["port"] or (443 if scheme == "https" else 80))
    if not 1 <= port <= 65535:
        raise ValueError(f"{port} is no port; ports are 1 to 65535")
    path = found["path"] or "/"
    return Target(scheme, host.strip("[]"), port, path if path.startswith("/") else f"/{path}")


def address_of(text: str) -> Address | None:
    """An IP address, or None for a name."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


class Allowed(msgspec.Struct, frozen=True):
    """What the operator has listed: names and networks that may be told although they are not public."""

    names: frozenset[str] = frozenset()
    networks: tuple[Network, ...] = ()

    def name(self, host: str) -> bool:
        """Whether this very name is listed; where it leads does not matter then."""
        return host.lower().removesuffix(".") in self.names

    def address(self, address: Address) -> bool:
        """Whether an address is in a listed network, itself or as what it wraps."""
        return any(each in network for each in (address, *_wrapped(address)) for network in self.networks)


def allowed(entries: Sequence[str]) -> Allowed:
    """Names, addresses and networks, as listed. Raises `ValueError` for what is none of them."""
    names, networks = set[str](), list[Network]()
    for entry in entries:
        try:
            networks.append(ipaddress.ip_network(entry.strip("[]")))
        except ValueError as error:
            host = entry.lower().removesuffix(".")
            if not re.fullmatch(r"[a-z0-9._-]+", host) or _NUMBER.fullmatch(host.rpartition(".")[2]):
                raise ValueError(
                    f"{entry!r} is neither a name nor a network; write hook.lan, 10.1.2.3 or 10.1.2.0/24"
                ) from error
            names.add(host)
    return Allowed(frozenset(names), tuple(networks))


def refusal(host: str, permitted: Allowed) -> str | None:
    """Why nothing is sent to a host, as far as its name alone tells; None: its addresses decide."""
    address = address_of(host)
    if address is not None:
        return address_refusal(address, permitted)
    itself = host == "localhost" or host.endswith(".localhost")
    if itself and not permitted.name(host) and not permitted.address(ipaddress.IPv4Address("127.0.0.1")):
        return f"{host} is this machine itself; {_remedy(host)}"
    return None


def address_refusal(address: Address, permitted: Allowed) -> str | None:
    """Why nothing is sent to an address, and what would change that; None when it may be told."""
    kind = next((kind for each in (address, *_wrapped(address)) if (kind := _kind(each)) is not None), None)
    if kind is None or permitted.address(address):
        return None
    return f"{address} is {kind}; {_remedy(str(address))}"


def _remedy(entry: str) -> str:
    return f'to allow it, add "{entry}" to `webhook_hosts` in failsoft.toml'


def _wrapped(address: Address) -> tuple[ipaddress.IPv4Address, ...]:
    """IPv4 addresses that an IPv6 address leads to."""
    if isinstance(address, ipaddress.IPv4Address):
        return ()
    inner = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if address in _NAT64 or address.packed[:12] == bytes(12):
        inner.append(ipaddress.IPv4Address(address.packed[12:]))
    return tuple(each for each in inner if each is not None)


def _kind(address: Address) -> str | None:
    """What keeps an address from being one of the public internet, or None. The first word that fits."""
    mapped = isinstance(address, ipaddress.IPv6Address) and (address.ipv4_mapped is not None or address in _NAT64)
    if mapped:
        return None  # judged by what it wraps
    words = (
        ("this very host", address.is_unspecified),
        ("a loopback address", address.is_loopback),
        ("a link-local address", address.is_link_local),
        ("a multicast address", address.is_multicast),
        ("a private address", address.is_private),
        ("a reserved address", address.is_reserved or not address.is_global),
        ("a site-local address", getattr(address, "is_site_local", False)),
    )
    return next((word for word, fits in words if fits), None)


def key_of(state: RequestState, version: int) -> str:
    """The stable key of the notice about the event with this version. It has no dot, which separates in signatures."""
    return f"{state.id}-{state.output_epoch}-{version}"


def payload(event: ev.Event, after: RequestState, at: str) -> dict[str, Any]:
    """What is sent about an event; `at` is its time as RFC 3339."""
    degraded = after.degraded
    return {
        "type": TYPES[type(event)],
        "timestamp": at,
        "data": {
            "id": after.id,
            "state": after.state,
            "lane": after.lane,
            "version": after.version,
            "output_epoch": after.output_epoch,
            "units": after.units,
            "finish_reason": after.finish_reason,
            "reason": getattr(event, "reason", None),
            "degraded": None
            if degraded is None
            else {"reason": degraded.reason, "rule": degraded.rule, "lane": degraded.lane, "model": degraded.model},
            "links": {
                "self": f"/api/requests/{after.id}",
                "events": f"/api/requests/{after.id}/events",
                "page": f"/requests/{after.id}",
            },
        },
    }


def signed(key: str, timestamp_s: int, body: str) -> bytes:
    """What the signature is made over."""
    return f"{key}.{timestamp_s}.{body}".encode()


def pause_s(tries: int, first_s: float, longest_s: float, draw: float) -> float:
    """Seconds until the next attempt after `tries` failed ones: doubling, and between half and all of that by `draw`.

    `draw` is by chance, from 0 to 1, so that those who failed together do not come back together.
    """
    whole = min(longest_s, first_s * 2.0 ** min(tries - 1, 64))
    return whole * (0.5 + 0.5 * draw)
