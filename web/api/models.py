"""Models: the catalog, and one model with all that is known of it."""

import asyncio
from typing import Final

from litestar import Response, get
from litestar.di import NamedDependency
from litestar.params import FromPath

from core.errors import Impossible, NotFound
from web.api.answers import answer
from web.machineviews import lane_view, model_view
from web.modelviews import engines, footprints, pair_view
from web.services import Services
from web.views import View


@get("/api/models")
async def models(services: NamedDependency[Services]) -> Response[bytes]:
    """The catalog, and what of it is served and in memory."""
    return answer({"items": await model_views(services), "next": None})


@get("/api/models/{model_id:str}")
async def model(services: NamedDependency[Services], model_id: FromPath[str]) -> Response[bytes]:
    """One model."""
    return answer(await model_detail(services, model_id))


async def model_views(services: Services) -> list[View]:
    """Every model of the catalog; those that are served first, as the settings name them."""
    entries = await asyncio.to_thread(services.catalog.entries)
    lanes, runners = await services.reader.lanes(), await services.reader.runners()
    learned = await services.reader.learned()
    served = services.settings.models
    ordered = sorted(entries, key=lambda e: served.index(e.id) if e.id in served else len(served))
    return [model_view(e, served=e.id in served, lanes=lanes, runners=runners, learned=learned) for e in ordered]


async def model_detail(services: Services, model_id: str) -> View:
    """A model with its file, lanes, footprints, what loads were seen to take, and its pair. Raises `NotFound`."""
    try:
        entry = await asyncio.to_thread(services.catalog.get, model_id)
    except Impossible as error:
        raise NotFound(error.detail) from error
    policy, now_us = services.settings.policy, services.now_us()
    limits = {"gpu": policy.gpu_queue_limit, "cpu": policy.cpu_queue_limit}
    lanes, runners = await services.reader.lanes(), await services.reader.runners()
    learned = await services.reader.learned()
    own = [row for row in lanes if row["model"] == entry.id]
    view = model_view(entry, served=entry.id in services.settings.models, lanes=lanes, runners=runners, learned=learned)
    warm = {row["lane"] for row in runners if row["model"] == entry.id and row["state"] in {"idle", "busy"}}
    return view | {
        "file": entry.prepared or None,
        "source": entry.source or None,
        "engines": await asyncio.to_thread(engines, entry),
        "architecture": entry.architecture or None,
        "vocabulary": entry.vocabulary or None,
        "chat_template": entry.has_template,
        "lanes": [
            lane_view(row, limit=limits[row["lane"]], now_us=now_us)
            | {"readiness": "warm" if row["lane"] in warm else "cold"}
            | {name: row[name] for name in ("load_bytes", "token_bytes", "need_basis")}
            for row in own
        ],
        "footprints": await asyncio.to_thread(footprints, entry, lanes, await services.reader.devices()),
        "learned": [row for row in learned if row["model"] == entry.id],
        "pair": await services.reader.see(lambda look: pair_view(look, entry)),
    }


HANDLERS: Final = [models, model]
