"""How a card stands, from everything the driver said so far: return codes, Xids, the recovery action.

1. Passing codes (`codes.PASSING`) make it `unknown`; after `LIMIT` questions in a row it is `lost`.
2. An Xid that blames the card latches it: out, whatever later readings say, until the card came back. It came back
   when the driver was enumerated anew since, the card answers, and either it had been away in between or the driver
   says that no recovery is needed (action 0). An operator's word is a restart of the monitor, which knows no latch.
3. Codes that come together are one incident: the worst of them is the state, the last one is the reason and advice.
4. An Xid of which the driver is to be asked (109, 154) latches only where no recovery action can be read; else the
   action speaks for itself.
5. Recovery action: 1, 4, 6 reset-required; 2, 7 lost; 3, 5 concern links between cards and are told, no more. Of a
   latched card it is the advice.
6. Application Xids, informative and unknown ones change nothing here; they are passed on.
"""

from typing import Final

import msgspec

from core.xid import CONSEQUENCES, Xid
from runners.devices.base import OUT, State
from runners.devices.codes import PASSING, meaning

LIMIT: Final = 3
"""Questions in a row that a passing code may answer."""

_ACTIONS: Final[dict[int, tuple[State, str | None, str | None]]] = {
    1: ("reset-required", "the driver asks for a reset of the card", CONSEQUENCES["reset"]),
    2: ("lost", "the driver asks for a reboot of this machine", "Reboot this machine."),
    3: ("ok", "the driver asks to end traffic between cards", "End programs that use several cards at once."),
    4: ("reset-required", "the driver asks to end all work and reset the card", CONSEQUENCES["reset"]),
    5: ("ok", "the driver asks to recover the IMEX domain", "Restart the IMEX service of this machine."),
    6: ("reset-required", "the driver asks for a bus reset of the card", CONSEQUENCES["reset"]),
    7: ("lost", "the driver asks for a reboot of this machine", "Reboot this machine."),
}


class Judgement(msgspec.Struct, frozen=True):
    """State of a card, why, what to do, and the return code behind it."""

    state: State
    reason: str | None = None
    advice: str | None = None
    code: int | None = None


class Standing:
    """The memory of one card."""

    def __init__(self) -> None:
        self._doubts = 0
        self._latched: list[Xid] = []
        self._fresh = False
        self._away = False

    def noted(self, xid: Xid) -> None:
        """The driver reported an Xid for this card."""
        if xid.blames == "device":
            self._latched.append(xid)
            self._fresh = self._away = False

    def renewed(self) -> None:
        """The driver was enumerated anew."""
        self._fresh = True

    def judge(self, code: int | None, recovery: int | None) -> Judgement:
        """After a look: `code` when it failed, `recovery` where the driver tells its action."""
        if code is not None:
            return self._failed(code)
        self._doubts = 0
        if recovery is not None:
            self._latched = [xid for xid in self._latched if not xid.ask_driver]
        if self._latched and self._fresh and (self._away or recovery == 0):
            self._latched = []
        state, reason, advice = _ACTIONS.get(recovery or 0, ("ok", None, None))
        if not self._latched:
            return Judgement(state, reason, advice)
        latch = self._latch()
        return Judgement(_worse(latch.state, state), latch.reason, advice or latch.advice)

    def _latch(self) -> Judgement:
        last = self._latched[-1]
        lost = any(xid.kind == "lost" for xid in self._latched)
        return Judgement("lost" if lost else "reset-required", str(last), last.consequence)

    def _failed(self, code: int) -> Judgement:
        told = meaning(code)
        state, words = told.state, told.words
        if code in PASSING:
            self._doubts += 1
            if self._doubts >= LIMIT:
                state, words = "lost", f"{words}, {LIMIT} times and more in a row"
        else:
            self._doubts = 0
        self._away = self._away or state in OUT
        if not self._latched:
            return Judgement(state, words, told.advice, code)
        latch = self._latch()
        return Judgement(_worse(latch.state, state), f"{latch.reason}; {words}", latch.advice, code)


def _worse(latched: State, now: State) -> State:
    """A latched state, unless it became worse."""
    return "lost" if now == "lost" else latched
