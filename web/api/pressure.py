"""The last quarter of an hour: how full each device was, and what moved work meanwhile."""

from typing import Final

import msgspec
from litestar import Response, get
from litestar.di import NamedDependency

from core.events import Recorded
from store import audit
from store.audit import Wanted
from store.journal import Sees
from store.samples import SPAN_US, STEP_US, Sample, recent
from web.api.answers import answer
from web.machineviews import device_label
from web.services import Services
from web.views import event_view, time_text

MARKS: Final = ("Rerouted", "Returned", "DeviceLost", "BreakerOpened")
"""What the strip marks."""
_MOST: Final = 50
"""Of each type; the newest ones."""


class Pressure(msgspec.Struct, frozen=True):
    """Samples by device, `(id, label, samples)`, the host last; and the marks, oldest first."""

    now_us: int
    devices: tuple[tuple[str, str, tuple[Sample, ...]], ...]
    marks: tuple[Recorded, ...]


def _marks(look: Sees) -> list[Recorded]:
    since_us = look.now_us - SPAN_US
    found = [
        record
        for kind in MARKS
        for record in audit.newest(look, Wanted(type=kind), None, _MOST)
        if since_us < record.at_us <= look.now_us
    ]
    return sorted(found, key=lambda record: record.seq)


async def pressure_of(services: Services) -> Pressure:
    """What was read and what was moved."""
    now_us = services.now_us()
    rows = await services.reader.devices()
    sampled = await services.reader.see(recent, now_us)
    names = [(row["id"], device_label(row)) for row in rows if not row["id"].startswith("upstream:")]
    names.append(("host", "Host memory"))
    devices = tuple((id_, label, tuple(sampled.get(id_, ()))) for id_, label in names)
    return Pressure(now_us, devices, tuple(await services.reader.see(_marks, now_us)))


@get("/api/pressure")
async def pressure(services: NamedDependency[Services]) -> Response[bytes]:
    """The strip's numbers: for each step of `step_s` the highest use that was read in it."""
    found = await pressure_of(services)
    return answer(
        {
            "since": time_text(found.now_us - SPAN_US),
            "until": time_text(found.now_us),
            "step_s": STEP_US / 1e6,
            "devices": [
                {
                    "id": id_,
                    "label": label,
                    "samples": [
                        {"at": time_text(one.at_us), "used": one.used, "ours": one.ours, "total": one.total}
                        for one in samples
                    ],
                }
                for id_, label, samples in found.devices
            ],
            "marks": [event_view(record) for record in found.marks],
        }
    )


HANDLERS: Final = [pressure]
