"""A history from elsewhere, in the place of the store's reader: the pages of a request read it as they read their own.

Causes outside of the history are not here, so nothing on such a page leads into the journal of this service.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import msgspec

from core.errors import Impossible
from core.events import Recorded
from core.state import RequestState
from store.contents import Spec, StoredChunk
from store.imports import Import
from store.reads import Reader
from store.transfer import Checked
from web.dashboard.request_page import RequestPage, request_page
from web.dashboard.travel import changes
from web.dashboard.wording import Moment, moment, short


class ImportRow(msgspec.Struct, frozen=True):
    """One of the list."""

    id: str
    short: str
    request_id: str
    events: int
    at: Moment


class Imported(Reader):
    """Reads one checked history, and nothing else."""

    def __init__(self, found: Checked) -> None:
        self._found = found

    async def history(self, stream: str, after: int = 0, upto: int | None = None) -> list[Recorded]:
        """Its records with version in (after, upto]."""
        assert stream == self._found.state.id
        return list(self._found.records[after:upto])

    async def records(self, seqs: Sequence[int]) -> dict[int, Recorded]:
        """Those of its own records."""
        wanted = set(seqs)
        return {record.seq: record for record in self._found.records if record.seq in wanted}

    async def state(self, request_id: str) -> RequestState:
        """The request as the file leaves it."""
        assert request_id == self._found.state.id
        return self._found.state

    async def spec(self, request_id: str) -> Spec | None:
        """What was asked, unless it was erased."""
        assert request_id == self._found.state.id
        return self._found.spec

    async def chunks(
        self, request_id: str, epoch: int, first: int = 0, last: int | None = None
    ) -> list[tuple[int, StoredChunk]]:
        """Those of an output epoch, in order, from the one that starts at `first` units to that at `last`."""
        assert request_id == self._found.state.id
        own = [one for one in self._found.outputs if one.epoch == epoch and one.first >= first]
        kept = [(one.first, StoredChunk(one.tokens, one.text)) for one in own if last is None or one.first <= last]
        return sorted(kept, key=lambda one: one[0])


_WHY: Final = "This is a history from elsewhere. It can only be read."


async def imported_page(found: Checked, at: int | None) -> RequestPage:
    """The page of an imported history, frozen after event `at`, or after its last."""
    last = len(found.records)
    page = await request_page(Imported(found), found.state.id, found.state.updated_us, last if at is None else at)
    actions = msgspec.structs.replace(page.actions, cancel=False, resume=False, why=_WHY)
    return msgspec.structs.replace(page, actions=actions)


async def rehearse(found: Checked) -> None:
    """Make the pages of a history once: a stranger's facts may break them in any way, and such a one is not taken in.

    Raises `Impossible`.
    """
    try:
        await imported_page(found, None)
        for before, after in pairwise((None, *found.states)):
            assert after is not None
            changes(before, after)
    except Exception as error:
        raise Impossible(f"this history cannot be shown: {error}", code="import_misfit") from error


def import_rows(found: Sequence[Import], now_us: int) -> tuple[ImportRow, ...]:
    """The list."""
    return tuple(
        ImportRow(one.id, short(one.id), one.request_id, one.events, moment(one.imported_us, now_us)) for one in found
    )
