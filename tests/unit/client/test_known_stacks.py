"""What kept states show."""

from __future__ import annotations

import dataclasses

import numpy as np

from asyncrl.client.known_stacks import KnownStacks
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.flags import TERMINATED
from asyncrl.wire.outcomes import Outcome, Outcomes, decode_outcomes, encode_outcomes
from asyncrl.wire.snapshot_bodies import Earlier, Rollout, SimulateEntry, Status
from asyncrl.wire.spaces import Node, SpaceSpec
from asyncrl.wire.spec import LaneSpec

SPEC = LaneSpec(
    "toy",
    SpaceSpec((Node(pb.BOX, dtype=np.dtype("<u1"), shape=(3, 2)),)),
    SpaceSpec((Node(pb.DISCRETE, dtype=np.dtype("<i8"), n=2),)),
    stack_leaf=0,
)
ACTION = [np.zeros(1, np.int64)]


def shown(*outcomes: Outcome) -> Outcomes:
    sent = encode_outcomes(outcomes, 0)
    return decode_outcomes(sent, SPEC, [1] * len(outcomes), [None] * len(outcomes))


def seen(first: int, flag: int = 0, code: str = "OK") -> Outcome:
    stack = np.arange(first, first + 6, dtype=np.uint8).reshape(3, 2)
    return Outcome(Status(code), [0.0], [flag], [stack])


def test_only_what_is_known_is_left_out() -> None:
    """Newest frames do where somebody looks from a kept state that was shown; the rest of the entry is as it was."""
    known = KnownStacks()
    keeping = [SimulateEntry(1, ACTION, keep_as=each) for each in (10, 11, 12)]
    unkept = SimulateEntry(1, ACTION)
    outcomes = shown(seen(1), seen(2, TERMINATED), seen(3, 0, "QUOTA"), seen(4))
    known.learn([*keeping, unkept], outcomes)
    assert len(known) == 1
    full = SimulateEntry(10, ACTION, 20, pb.FROZEN, 5, Rollout(3), True)
    blind = SimulateEntry(10, ACTION, want_obs=False)
    others = [SimulateEntry(parent, ACTION) for parent in (11, b"state", Earlier(0))]
    entries, before = known.asked([full, blind, *others])
    assert entries[0] == dataclasses.replace(full, newest_frames=True)
    assert entries[1:] == [blind, *others]
    assert before == [(b"\1\2", b"\3\4", b"\5\6"), None, None, None, None]


def test_an_id_keeps_its_first_stack() -> None:
    """As the lane keeps the first state of it."""
    known, entry = KnownStacks(), SimulateEntry(1, ACTION, keep_as=10)
    known.learn([entry, entry], shown(seen(1), seen(7)))
    known.learn([entry], shown(seen(9)))
    assert known.asked([SimulateEntry(10, ACTION)])[1] == [(b"\1\2", b"\3\4", b"\5\6")]


def test_forgotten_states_have_no_stacks() -> None:
    """Known until they are forgotten; forgetting what was never known is no error."""
    known = KnownStacks()
    known.learn([SimulateEntry(1, ACTION, keep_as=10)], shown(seen(1)))
    known.forget([10, 77])
    assert len(known) == 0
    assert known.asked([SimulateEntry(10, ACTION)])[1] == [None]
