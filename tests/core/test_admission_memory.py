"""Admission where memory is accounted: six actions decided over exact bytes, and what holds for all of them."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core import admission, ledger
from core.decision import AdmissionFacts, Decision, HostFacts, LaneFacts, Need, Part
from core.explain import explain_decision
from core.ledger import DeviceFacts, Holder

MIB = 1 << 20
GIB = 1 << 30
LANE = LaneFacts(True, True, None, 0, 64, 1_000_000)
NO_CPU = LaneFacts(False, False, None, 0, 32, 0)


def device(free: int, **changes: object) -> DeviceFacts:
    plain = DeviceFacts("gpu-0", "ok", free, 0, 0, 0, age_s=0.0)
    return msgspec.structs.replace(plain, **changes)  # type: ignore[arg-type]


def asking(load: int, card: DeviceFacts, **changes: object) -> AdmissionFacts:
    """A model that needs `load` bytes to load, and nothing for its tokens."""
    plain = AdmissionFacts(100, 100, "auto", False, LANE, LANE, device=card, need=Need(load, 0))
    return msgspec.structs.replace(plain, **changes)  # type: ignore[arg-type]


def outcome(facts: AdmissionFacts) -> tuple[str, str]:
    decision = admission.decide(facts)
    return decision.action, decision.rule


def told(decision: Decision) -> str:
    return " ".join(alternative.reason for alternative in decision.rejected)


@pytest.mark.parametrize(
    ("free", "need", "action"),
    [
        (5120 * MIB, 5120 * MIB, "run-gpu"),
        (5120 * MIB, 5119 * MIB, "run-gpu"),
        (5120 * MIB, 5121 * MIB, "reroute-cpu"),
        (5120 * MIB, 5120 * MIB + 1, "reroute-cpu"),
        (5120 * MIB - 1, 5120 * MIB, "reroute-cpu"),
    ],
)
def test_five_gib_free_and_five_needed_is_decided_to_the_byte(free: int, need: int, action: str) -> None:
    # The card is larger: others hold the rest, so nothing here can "never" fit.
    decision = admission.decide(asking(need, device(8 * GIB, used=8 * GIB - free)))
    assert decision.action == action
    if action != "run-gpu":
        assert decision.rule == "no-room"
        assert f"{need} bytes are needed, {free} are free ({need - free} short)" in told(decision)


def test_more_than_the_whole_card_never_fits_and_no_time_is_named() -> None:
    facts = asking(9 * GIB, device(8 * GIB))
    assert outcome(facts) == ("reroute-cpu", "never-fits")
    assert "can never give" in told(admission.decide(facts))
    assert admission.hopeless(facts)
    only = msgspec.structs.replace(facts, failover="gpu-only")
    assert outcome(only) == ("refuse", "never-fits")
    alone = msgspec.structs.replace(facts, cpu=NO_CPU)
    assert outcome(alone) == ("refuse", "never-fits")
    assert outcome(msgspec.structs.replace(alone, cpu=msgspec.structs.replace(LANE, serving=False))) == (
        "refuse",
        "no-lane",
    )


def test_what_does_not_fit_now_is_not_said_to_never_fit() -> None:
    busy = device(8 * GIB, used=7 * GIB)
    assert outcome(asking(2 * GIB, busy, failover="gpu-only")) == ("refuse", "gpu-only")
    assert not admission.hopeless(asking(2 * GIB, busy))


def test_a_loaded_models_own_bytes_are_no_room_for_its_requests() -> None:
    # 3 of 8 GiB are the model's process. A request of 6 can never be held beside it, though 6 is less than 8.
    card = device(8 * GIB, used=3 * GIB, holders=(Holder("m", 3 * GIB, ours=3 * GIB),))
    facts = asking(0, card, need=Need(0, 6 * GIB // 200, held=3 * GIB))
    assert outcome(facts) == ("reroute-cpu", "never-fits")


@pytest.mark.parametrize(
    ("total", "expected"),
    [
        (1 * GIB, ("reroute-cpu", "never-fits")),
        (2 * GIB, ("reroute-cpu", "never-fits")),
        (40 * GIB, ("run-gpu", "gpu-ready")),
    ],
)
def test_three_cards_are_three_answers(total: int, expected: tuple[str, str]) -> None:
    assert outcome(asking(13 * GIB, device(total))) == expected


def test_unknown_numbers_are_not_zero() -> None:
    assert outcome(asking(1, device(8 * GIB, total=None))) == ("reroute-cpu", "device-unseen")
    assert outcome(asking(1, device(8 * GIB, state="blind", used=None))) == ("reroute-cpu", "device-unseen")
    unseen = device(8 * GIB, used=None, margin=512 * MIB)
    assert outcome(asking(8 * GIB - 512 * MIB, unseen)) == ("run-gpu", "gpu-ready")
    assert outcome(asking(8 * GIB - 511 * MIB, unseen)) == ("reroute-cpu", "no-room")


def test_70_mib_short_shrinks_where_that_is_allowed() -> None:
    # 19.84 GiB asked for, 19.77 free: the weights are 16 GiB, the rest is KV.
    asked, free = 20316 * MIB, 20246 * MIB
    per_token = MIB // 4
    tokens = (asked - 16 * GIB) // per_token
    card = device(24 * GIB, used=24 * GIB - free)
    facts = AdmissionFacts(
        1000, tokens - 1000, "auto", False, LANE, LANE, device=card, need=Need(16 * GIB, per_token), least_units=100
    )
    decision = admission.decide(msgspec.structs.replace(facts, allow_shrink=True))
    assert (decision.action, decision.rule) == ("shrink", "fits-shrunk-now")
    assert decision.units == tokens - 1000 - 70 * 4  # 70 MiB are 280 tokens
    assert 16 * GIB + per_token * (1000 + decision.units) == free

    decision = admission.decide(facts)
    assert (decision.action, decision.rule) == ("reroute-cpu", "no-room")
    text = told(decision)
    assert str(asked) in text
    assert str(free) in text
    assert f"({70 * MIB} short)" in text

    too_little = msgspec.structs.replace(facts, allow_shrink=True, least_units=tokens - 1000 - 279)
    assert outcome(too_little) == ("reroute-cpu", "no-room")


def test_a_shrunk_answer_fits_into_what_is_free_now_also_where_the_whole_never_could() -> None:
    card = device(8 * GIB, used=6 * GIB)
    facts = AdmissionFacts(
        10, 1000, "auto", False, LANE, LANE, device=card, need=Need(0, 16 * MIB), allow_shrink=True, least_units=100
    )
    decision = admission.decide(facts)
    assert (decision.action, decision.rule) == ("shrink", "fits-shrunk")
    assert decision.units is not None
    assert facts.need is not None
    assert facts.need.bytes_for(10 + decision.units) <= 2 * GIB


def test_bytes_of_ours_that_come_back_are_waited_for() -> None:
    card = device(8 * GIB, used=7 * GIB, holders=(Holder("m", 7 * GIB, returns=4 * GIB, ours=7 * GIB),))
    decision = admission.decide(asking(2 * GIB, card))
    assert (decision.action, decision.rule) == ("delay", "fits-soon")
    assert f"{4 * GIB} bytes come back" in told(decision)
    assert outcome(asking(2 * GIB, card, spilling=True)) == ("reroute-cpu", "no-room")


def test_an_idle_model_makes_room() -> None:
    card = device(8 * GIB, used=7 * GIB, holders=(Holder("other", 7 * GIB, ours=7 * GIB),))
    assert outcome(asking(3 * GIB, card, evictable=7 * GIB)) == ("delay", "fits-after-eviction")
    assert outcome(asking(3 * GIB, card, evictable=GIB)) == ("reroute-cpu", "no-room")


def test_a_part_of_the_model_is_placed_where_the_whole_does_not_fit() -> None:
    parts = (Part(24, 6 * GIB, 9.0), Part(16, 4 * GIB, 5.0), Part(8, 2 * GIB, 3.0))
    card = device(12 * GIB, used=7 * GIB)
    decision = admission.decide(asking(0, card, need=Need(8 * GIB, 0, parts=parts)))
    assert (decision.action, decision.part) == ("offload", parts[1])


def test_nobody_new_passes_those_who_wait() -> None:
    card = device(8 * GIB)
    assert outcome(asking(3 * GIB, card, awaited=5 * GIB)) == ("run-gpu", "gpu-ready")
    decision = admission.decide(asking(3 * GIB, card, awaited=5 * GIB + 1))
    assert (decision.action, decision.rule) == ("delay", "fits-soon")
    assert "came earlier" in told(decision)


def test_under_pressure_new_work_spills() -> None:
    assert outcome(asking(GIB, device(8 * GIB), spilling=True)) == ("reroute-cpu", "pressure")


def test_the_cpu_lane_never_exhausts_the_host() -> None:
    card = device(8 * GIB, used=8 * GIB)
    tight = HostFacts(available=4 * GIB, floor=GIB, need=3 * GIB + 1)
    decision = admission.decide(asking(GIB, card, host=tight))
    assert (decision.action, decision.rule) == ("refuse", "host-memory")
    assert str(3 * GIB) in told(decision)
    assert outcome(asking(GIB, card, host=msgspec.structs.replace(tight, need=3 * GIB)))[0] == "reroute-cpu"


def test_an_accepted_request_is_never_refused_at_the_second_look() -> None:
    card = device(8 * GIB, used=8 * GIB)
    again = asking(GIB, card, second_look=True, failover="gpu-only")
    assert outcome(again) == ("delay", "gpu-only")
    full = msgspec.structs.replace(LANE, waiting=64)
    assert outcome(asking(GIB, device(8 * GIB), second_look=True, gpu=full)) == ("run-gpu", "gpu-ready")


SIZES = st.integers(0, 16 * GIB)
CARDS = st.builds(
    DeviceFacts,
    id=st.just("gpu-0"),
    state=st.sampled_from(["ok", "blind", "unknown"]),
    total=st.none() | SIZES,
    driver_reserved=st.integers(0, GIB),
    used=st.none() | SIZES,
    headroom=st.integers(0, GIB),
    holders=st.lists(
        st.builds(Holder, st.just("m"), SIZES, returns=SIZES, ours=st.none() | SIZES, taken=SIZES), max_size=3
    ).map(tuple),
    cap=st.none() | st.integers(1, 16 * GIB),
    age_s=st.none() | st.floats(0, 10),
    margin=st.integers(0, GIB),
)
LANES = st.builds(
    LaneFacts,
    present=st.booleans(),
    serving=st.booleans(),
    out_reason=st.none(),
    waiting=st.integers(0, 3),
    limit=st.integers(1, 3),
    context=st.sampled_from([100, 10_000]),
)
ANY = st.builds(
    AdmissionFacts,
    prompt_tokens=st.integers(1, 200),
    max_units=st.integers(1, 200),
    failover=st.sampled_from(["auto", "identical", "boundary", "never", "gpu-only"]),
    draining=st.booleans(),
    gpu=st.just(LANE) | LANES,
    cpu=st.just(LANE) | LANES,
    device=CARDS,
    need=st.builds(
        Need,
        load=st.just(0) | SIZES,
        token=st.integers(0, 64 * MIB),
        parts=st.lists(st.builds(Part, st.integers(1, 32), SIZES, st.none()), max_size=3).map(
            lambda parts: tuple(sorted(parts, key=lambda part: -part.load))
        ),
        held=st.just(0) | SIZES,
    ),
    host=st.none() | st.builds(HostFacts, available=st.none() | SIZES, floor=st.integers(0, GIB), need=SIZES),
    allow_shrink=st.booleans(),
    least_units=st.integers(1, 100),
    spilling=st.booleans(),
    evictable=st.just(0) | SIZES,
    awaited=st.just(0) | SIZES,
    second_look=st.booleans(),
)


def promised(decision: Decision) -> int:
    """Bytes that the decision promises anew."""
    facts = decision.facts
    assert isinstance(facts, AdmissionFacts)
    assert facts.need is not None
    if decision.action not in {"run-gpu", "shrink", "offload"}:
        return 0
    units = facts.max_units if decision.units is None else decision.units
    load = facts.need.load if decision.part is None else decision.part.load
    return load + facts.need.token * (facts.prompt_tokens + units)


@given(ANY)
def test_never_more_is_promised_than_is_available(facts: AdmissionFacts) -> None:
    decision = admission.decide(facts)
    assert facts.device is not None
    if promised(decision):
        free = ledger.available(facts.device)
        assert free is not None
        assert promised(decision) <= free - min(free, facts.awaited)


@given(ANY, st.integers(0, 8 * GIB), st.sampled_from(["total", "used"]))
def test_more_free_memory_never_turns_run_into_anything_else(facts: AdmissionFacts, more: int, how: str) -> None:
    before = admission.decide(facts)
    assert facts.device is not None
    total, used = facts.device.total, facts.device.used
    if how == "total":
        freer = msgspec.structs.replace(facts.device, total=None if total is None else total + more)
    else:
        freer = msgspec.structs.replace(facts.device, used=None if used is None else max(0, used - more))
    after = admission.decide(msgspec.structs.replace(facts, device=freer))
    if before.action == "run-gpu":
        assert after.action == "run-gpu"
    if after.action == "refuse" and before.action != "refuse":
        raise AssertionError(f"{before.action} by {before.rule} became a refusal by {after.rule}")


@given(ANY)
def test_the_same_facts_give_the_same_bytes(facts: AdmissionFacts) -> None:
    once = msgspec.json.encode(admission.decide(facts))
    stored = msgspec.json.decode(once, type=Decision)
    assert msgspec.json.encode(admission.decide(stored.facts)) == once  # type: ignore[arg-type]


@given(ANY)
def test_whatever_is_decided_is_explained_with_reasons(facts: AdmissionFacts) -> None:
    decision = admission.decide(facts)
    assert " " in explain_decision(decision)
    assert all(" " in alternative.reason for alternative in decision.rejected)
    if decision.action == "refuse":
        assert not facts.second_look or decision.rule in {"draining", "too-long"}


class World:
    """A card with one resident model, as it is and as the last reading showed it; requests come, take, and go."""

    def __init__(self, *, tells: bool, process: int, foreign: int) -> None:
        self.tells, self.process, self.foreign = tells, process, foreign
        self.promised: dict[int, int] = {}
        self.taken: set[int] = set()
        self.released = 0
        self.waiting: list[int] = []
        self.read()

    def ours(self) -> int:
        return self.process + sum(self.promised[name] for name in self.taken)

    def read(self) -> None:
        self.seen_ours, self.seen_used, self.released = self.ours(), self.ours() + self.foreign, 0
        self.seen_taken = frozenset(self.taken)

    def device(self) -> DeviceFacts:
        returns = sum(self.promised.values())
        taken = self.process + sum(self.promised.get(name, 0) for name in self.seen_taken)
        mine = Holder(
            "m",
            self.process + returns,
            returns,
            self.seen_ours if self.tells else None,
            self.released,
            0 if self.tells else taken,
        )
        return device(ROOM, used=self.seen_used, headroom=HEADROOM, holders=(mine,))

    def decide(self, tokens: int, *, again: bool, awaited: int) -> Decision:
        facts = AdmissionFacts(
            1,
            tokens - 1,
            "auto",
            False,
            LANE,
            LANE,
            device=self.device(),
            need=Need(0, MIB, held=self.process),
            allow_shrink=tokens % 2 == 0,
            second_look=again,
            awaited=awaited,
        )
        return admission.decide(facts)


ROOM = 1024 * MIB
HEADROOM = 64 * MIB
ACTS = st.tuples(
    st.sampled_from(["submit", "submit", "take", "end", "end-unstarted", "read", "look", "grow", "shrink"]),
    st.integers(1, 500),
)


@settings(max_examples=400, deadline=None)
@given(tells=st.booleans(), process=st.integers(0, 600), foreign=st.integers(0, 300), acts=st.lists(ACTS, max_size=40))
def test_over_thousands_of_interleavings_no_byte_is_promised_twice(
    tells: bool, process: int, foreign: int, acts: list[tuple[str, int]]
) -> None:
    world = World(tells=tells, process=process * MIB, foreign=foreign * MIB)
    for name, (act, number) in enumerate(acts):
        started, unstarted = sorted(world.taken), sorted(world.promised.keys() - world.taken)
        decision = None
        if act == "submit":
            decision = world.decide(number, again=False, awaited=sum(world.waiting) * MIB)
            if decision.action == "delay":
                world.waiting.append(number)
        elif act == "look" and world.waiting:
            decision = world.decide(world.waiting[0], again=True, awaited=0)
            if decision.action != "delay":
                world.waiting.pop(0)
        elif act == "take" and unstarted:
            world.taken.add(unstarted[number % len(unstarted)])
        elif act == "end" and started:
            gone = started[number % len(started)]
            world.taken.remove(gone)
            world.released += world.promised.pop(gone)
        elif act == "end-unstarted" and unstarted:
            world.promised.pop(unstarted[number % len(unstarted)])
        elif act == "grow":
            world.foreign += number * MIB
            world.read()
        elif act == "shrink":
            world.foreign = max(0, world.foreign - number * MIB)
            world.read()
        elif act == "read":
            world.read()
        if decision is not None and promised(decision):
            world.promised[name] = promised(decision)
            whole = world.process + sum(world.promised.values())
            assert whole + world.foreign + HEADROOM <= ROOM, "more was promised than there is"
        free = ledger.available(world.device())
        assert free is not None
        assert free >= 0
