"""The what-if page: a form whose values are in the address, and what the record would have been under them.

1. An empty field is not tried: there each decision keeps what was in force when it was made.
2. What is shown was counted by `core.whatif` over recorded decisions, one by one; the page says so.
3. A page looks at `MOST` decisions of each kind at most, for it is asked again at each change of the form.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from core.errors import Malformed
from core.explain import rule_words
from core.policy import Policy
from core.telling import action_words
from core.whatif import NOTE, Changed, Tally
from web.dashboard.wording import Moment, moment, short, size

MOST: Final = 20_000
_MIB: Final = 1 << 20
_MOST_MIB: Final = 1 << 20
_MOST_WAITING: Final = 1_000_000
PERIODS: Final[Mapping[str, str]] = {
    "1h": "the last hour",
    "1d": "the last day",
    "7d": "the last 7 days",
    "30d": "the last 30 days",
    "all": "everything",
}
_DEFAULT_PERIOD: Final = "7d"


class Field(msgspec.Struct, frozen=True):
    """A field of the form. `value` is as it was sent; `now` is what is in force, in words."""

    name: str
    label: str
    value: str
    least: int
    most: int
    now: str


class Period(msgspec.Struct, frozen=True):
    """A time that can be chosen."""

    value: str
    label: str
    chosen: bool


class Form(msgspec.Struct, frozen=True):
    """The form, and what it says of the policy to try (`policy`) and the time (`since`, None for all)."""

    fields: tuple[Field, ...]
    ignore_pressure: bool
    pressure: str
    periods: tuple[Period, ...]
    policy: dict[str, Any]
    since: str | None

    @property
    def tries(self) -> bool:
        """Whether anything is tried at all."""
        return bool(self.policy)


class Action(msgspec.Struct, frozen=True):
    """What was decided, in words and as its code."""

    words: str
    code: str


class Difference(msgspec.Struct, frozen=True):
    """A decision that would have been another."""

    request: str
    short: str
    href: str
    at: Moment
    was: "Action"
    was_text: str
    would: "Action"
    would_text: str
    over: str


class Move(msgspec.Struct, frozen=True):
    """How often one action would have been another."""

    before: "Action"
    after: "Action"
    count: int


class Outcome(msgspec.Struct, frozen=True):
    """What it comes to."""

    decisions: int
    same: int
    changed: int
    avoided: int
    added: int
    refusals_avoided: int
    refusals_added: int
    risks: int
    most_over: str
    moves: tuple[Move, ...]
    examples: tuple[Difference, ...]
    more: bool
    note: str = NOTE


def form_of(query: Mapping[str, str], policy: Policy) -> Form:
    """The form as it was sent. Raises `Malformed` for a value that is not one of the form's."""
    period = query.get("since") or _DEFAULT_PERIOD
    if period not in PERIODS:
        raise Malformed(f"`since` is one of: {', '.join(PERIODS)}", param="since")
    ignore = query.get("ignore_pressure", "")
    if ignore not in {"", "1"}:
        raise Malformed("`ignore_pressure` is 1, or not there", param="ignore_pressure")
    tried: dict[str, Any] = {"ignore_pressure": True} if ignore else {}
    sizes = (
        ("headroom_mib", "headroom_bytes", "Headroom"),
        ("margin_mib", "unseen_margin_bytes", "Kept if unseen"),
    )
    queues = (
        ("gpu_queue", "gpu_queue_limit", "GPU queue limit"),
        ("cpu_queue", "cpu_queue_limit", "CPU queue limit"),
    )
    fields = []
    for name, key, label in sizes:
        value = _number(query, name, 0, _MOST_MIB)
        tried |= {} if value is None else {key: value * _MIB}
        shown = "" if value is None else str(value)
        fields.append(Field(name, f"{label} (MiB)", shown, 0, _MOST_MIB, size(getattr(policy, key))))
    for name, key, label in queues:
        value = _number(query, name, 1, _MOST_WAITING)
        tried |= {} if value is None else {key: value}
        fields.append(
            Field(name, label, "" if value is None else str(value), 1, _MOST_WAITING, str(getattr(policy, key)))
        )
    return Form(
        fields=tuple(fields),
        ignore_pressure=bool(ignore),
        pressure=f"above {policy.pressure_high:.0%}, back below {policy.pressure_low:.0%}",
        periods=tuple(Period(value, label, value == period) for value, label in PERIODS.items()),
        policy=tried,
        since=None if period == "all" else period,
    )


def _number(query: Mapping[str, str], name: str, least: int, most: int) -> int | None:
    value = query.get(name, "").strip()
    if not value:
        return None
    if not (value.isascii() and value.isdigit() and len(value) < 10 and least <= int(value) <= most):
        raise Malformed(f"`{name}` is a whole number from {least} to {most}, or empty", param=name)
    return int(value)


def outcome(tally: Tally, now_us: int, *, more: bool) -> Outcome:
    """What a tally says."""
    moves = sorted(tally.moves.items(), key=lambda one: (-one[1], one[0]))
    return Outcome(
        decisions=tally.decisions,
        same=tally.same,
        changed=tally.changed,
        avoided=tally.failovers_avoided,
        added=tally.failovers_added,
        refusals_avoided=tally.refusals_avoided,
        refusals_added=tally.refusals_added,
        risks=tally.risks,
        most_over=size(tally.most_over_bytes) if tally.risks else "",
        moves=tuple(Move(*_ends(move), count) for move, count in moves),
        examples=tuple(_difference(one, now_us) for one in tally.examples),
        more=more,
    )


def _action(code: str) -> Action:
    return Action(action_words(code), code)


def _ends(move: str) -> tuple[Action, Action]:
    before, _, after = move.partition(" -> ")
    return _action(before), _action(after)


def _difference(one: Changed, now_us: int) -> Difference:
    return Difference(
        request=one.request_id,
        short=short(one.request_id),
        href=f"/requests/{one.request_id}?at={one.version}",
        at=moment(one.at_us, now_us),
        was=_action(one.action),
        was_text=rule_words(one.rule),
        would=_action(one.other_action),
        would_text=rule_words(one.other_rule),
        over=size(one.over) if one.over else "—",
    )
