"""Devices that were trusted again only just now: canaries were answered, and no request has ended well there yet.

Canaries are short; what a real request asks of a device may still be what it fails at. So no more than
`breaker_probes` requests are under way there at once, and the first that fails opens the breaker again.
"""

from typing import Final

import msgspec

from core import breaker as rules
from core.breaker import Breaker
from core.policy import Policy
from store.journal import Sees
from store.tables import ACTIVE

_decode: Final = msgspec.json.Decoder(Breaker).decode
_ENDED_WELL: Final = (
    "SELECT 1 FROM events c CROSS JOIN events s ON s.stream = c.stream AND s.attempt = c.attempt "
    "WHERE c.type = 'Completed' AND c.seq > (SELECT max(seq) FROM events WHERE stream=? AND type='BreakerClosed') "
    "AND s.type = 'Started' AND json_extract(s.data, '$.device') = ? LIMIT 1"
)

_UNDER_WAY: Final = (
    f"SELECT count(*) FROM requests WHERE lane='gpu' AND {ACTIVE} AND running=1 "  # noqa: S608 -- constants
    "AND json_extract(doc, '$.device') = ?"
)


def on_probation(tx: Sees, device: str, policy: Policy) -> bool:
    """Whether its breaker has closed within the window, and no request was completed there since."""
    row = tx.execute("SELECT breaker_doc FROM devices WHERE id=?", (device,)).fetchone()
    if row is None or not row[0]:
        return False
    found = rules.calm(_decode(row[0]), tx.now_us, int(policy.breaker_window_s * 1e6))
    if found.state != "closed" or not found.trips:
        return False
    return tx.execute(_ENDED_WELL, (f"device-{device}", device)).fetchone() is None


def full(tx: Sees, device: str, policy: Policy) -> bool:
    """Whether as many requests as may try a device on probation are under way there."""
    if not on_probation(tx, device, policy):
        return False
    (running,) = tx.execute(_UNDER_WAY, (device,)).fetchone()
    return bool(running >= policy.breaker_probes)
