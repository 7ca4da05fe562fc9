"""Outcomes of waves."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.errors import RemoteProtocolError
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.flags import TERMINATED, TRUNCATED
from asyncrl.wire.outcomes import Outcome, decode_outcomes, encode_outcomes
from asyncrl.wire.snapshot_bodies import Status
from asyncrl.wire.spaces import Node, SpaceSpec
from asyncrl.wire.spec import LaneSpec

OBS = SpaceSpec(
    (Node(pb.TUPLE), Node(pb.BOX, 0, "0", np.dtype("<f4"), (3,)), Node(pb.DISCRETE, 0, "1", np.dtype("<i8"), n=9))
)
SPEC = LaneSpec("toy", OBS, SpaceSpec((Node(pb.DISCRETE, dtype=np.dtype("<i8"), n=4),)), mask_size=4)
codes = st.sampled_from([pb.EntryCode.Name(code)[6:] for code in pb.EntryCode.values()])


@st.composite
def outcomes(draw: st.DrawFn) -> Outcome:
    steps = draw(st.integers(0, 4))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    last = draw(st.sampled_from([0, TERMINATED, TRUNCATED]))
    return Outcome(
        status=Status(draw(codes), draw(st.text(max_size=5))),
        rewards=rng.normal(size=steps).tolist(),
        flags=([0] * (steps - 1) + [last]) if steps else (),
        obs=(rng.normal(size=3).astype("<f4"), np.array(rng.integers(9))) if draw(st.booleans()) else (),
        mask=rng.integers(2, size=4).astype(np.bool_) if draw(st.booleans()) else None,
        to_play=draw(st.none() | st.integers(-3, 3)),
        rollout_return=draw(st.floats(-5, 5)),
        rollout_steps=draw(st.integers(0, 9)),
        rollout_ended=draw(st.booleans()),
    )


@given(st.lists(outcomes(), max_size=5))
def test_outcomes_round_trip(wave: list[Outcome]) -> None:
    """Every outcome is found in its row; what it lacks is zeros, an open mask, player 0."""
    found = decode_outcomes(encode_outcomes(wave, 77), SPEC, [4] * len(wave))
    assert (len(found), found.store_bytes) == (len(wave), 77)
    for row, sent in enumerate(wave):
        steps = len(sent.rewards)
        assert found.status[row].code == sent.status.code
        assert found.status[row].detail == ("" if sent.status.ok else sent.status.detail)
        assert found.steps[row] == steps
        assert found.rewards[row].tolist() == [*sent.rewards, *[0.0] * (found.rewards.shape[1] - steps)]
        assert found.flags[row].tolist() == [*sent.flags, *[0] * (found.flags.shape[1] - steps)]
        assert found.has_obs[row] == bool(sent.obs)
        wanted = sent.obs or [np.zeros(3, np.float32), np.array(0)]
        for leaf, array in zip(found.obs, wanted, strict=True):
            assert leaf[row].tobytes() == array.tobytes()
        if found.mask is not None:
            assert found.mask[row].tolist() == ([True] * 4 if sent.mask is None else sent.mask.tolist())
        if found.to_play is not None:
            assert found.to_play[row] == (sent.to_play or 0)
        assert found.rollout_return[row] == sent.rollout_return
        assert (found.rollout_steps[row], found.rollout_ended[row]) == (sent.rollout_steps, sent.rollout_ended)
        assert found.terminated[row] == (TERMINATED in sent.flags)
        assert found.truncated[row] == (TRUNCATED in sent.flags)
        assert found.ok[row] == sent.status.ok
    assert (found.mask is None) == all(sent.mask is None for sent in wave)
    assert (found.to_play is None) == all(sent.to_play is None for sent in wave)
    for leaf in found.obs:
        leaf[...] = 1  # the caller's own


@given(st.binary(max_size=80))
def test_any_bytes_are_outcomes_or_refused(data: bytes) -> None:
    """Bytes of a peer end in outcomes or in RemoteProtocolError."""
    for asked in ([], [1], [3, 3]):
        with contextlib.suppress(RemoteProtocolError):
            decode_outcomes(data, SPEC, asked)
        with contextlib.suppress(RemoteProtocolError):
            decode_outcomes(data, STACKED, asked, [(bytes(6),) * 4] * len(asked))


def outcome(**fields: Any) -> pb.SimulateOutcome:
    return pb.SimulateOutcome(**fields)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"steps": 3, "rewards": bytes(24), "flags": bytes(3)}, "more steps than were asked"),
        ({"steps": 2, "rewards": bytes(8), "flags": bytes(2)}, "rewards"),
        ({"steps": 2, "rewards": bytes(16), "flags": bytes(1)}, "flags"),
        ({"steps": 0, "rewards": bytes(8)}, "rewards"),
        ({"steps": 2, "rewards": bytes(16), "flags": bytes([1, 0])}, "ends once"),
        ({"steps": 1, "rewards": bytes(8), "flags": bytes([4])}, "ends once"),
        ({"obs": [bytes(12)]}, "observation"),
        ({"obs": [bytes(12), bytes(7)]}, "observation"),
        ({"mask": bytes(3)}, "mask"),
        ({"mask": bytes([0, 1, 2, 0])}, "mask"),
    ],
)
def test_outcomes_that_make_no_sense_are_refused(fields: dict[str, Any], says: str) -> None:
    """The error names what is wrong."""
    body = pb.SimulateResult(outcomes=[outcome(), outcome(**fields)]).SerializeToString()
    with pytest.raises(RemoteProtocolError, match=says):
        decode_outcomes(body, SPEC, [2, 2])


def test_every_entry_has_an_outcome() -> None:
    """Too few or too many are an error of the peer."""
    body = encode_outcomes([Outcome()] * 2, 0)
    for asked in ([1], [1, 1, 1]):
        with pytest.raises(RemoteProtocolError, match="outcomes for a wave"):
            decode_outcomes(body, SPEC, asked)


STACKED = LaneSpec(
    "toy",
    SpaceSpec(
        (Node(pb.TUPLE), Node(pb.BOX, 0, "0", np.dtype("<f4"), (2,)), Node(pb.BOX, 0, "1", np.dtype("<u2"), (4, 3)))
    ),
    SPEC.action,
    stack_leaf=1,
)


@given(st.lists(st.tuples(st.integers(0, 7), st.booleans(), st.booleans()), max_size=6), st.integers(0, 99))
def test_newest_frames_make_whole_stacks(wave: list[tuple[int, bool, bool]], seed: int) -> None:
    """Of any steps, known or not: what the server shortens and what it sends whole are the stacks that there were."""
    rng = np.random.default_rng(seed)
    sent, before, wanted = [], [], []
    for steps, known, shortens in wave:
        film = rng.integers(1 << 16, size=(4 + steps, 3)).astype("<u2")
        stack, other = film[steps:], rng.normal(size=2).astype("<f4")
        before.append(tuple(frame.tobytes() for frame in film[:4]) if known else None)
        wanted.append((stack, other))
        shown = stack[4 - steps :] if known and shortens and steps < 4 else stack
        sent.append(Outcome(Status(), [0.0] * steps, [0] * steps, (other, shown)))
    found = decode_outcomes(encode_outcomes(sent, 0), STACKED, [steps for steps, _, _ in wave], before)
    for row, (stack, other) in enumerate(wanted):
        assert (found.obs[0][row].tobytes(), found.obs[1][row].tobytes()) == (other.tobytes(), stack.tobytes())
        assert found.stacks[row] == tuple(frame.tobytes() for frame in stack)
    for leaf in found.obs:
        leaf[...] = 1  # the caller's own


@pytest.mark.parametrize(("steps", "size", "known"), [(1, 6, False), (2, 6, True), (1, 12, True), (5, 30, True)])
def test_frames_that_make_no_stack_are_refused(steps: int, size: int, known: bool) -> None:
    """Fewer or more of them than there were steps, or where nobody asked for that."""
    fields = {"steps": steps, "rewards": bytes(8 * steps), "flags": bytes(steps)}
    body = pb.SimulateResult(outcomes=[outcome(**fields, obs=[bytes(8), bytes(size)])]).SerializeToString()
    with pytest.raises(RemoteProtocolError, match="does not fit"):
        decode_outcomes(body, STACKED, [steps], [(bytes(6),) * 4 if known else None])


def test_frames_of_nothing_are_frames() -> None:
    """A peer may name a stack whose frames have no pixels."""
    empty = LaneSpec("toy", SpaceSpec((Node(pb.BOX, dtype=np.dtype("<u1"), shape=(4, 0)),)), SPEC.action, stack_leaf=0)
    body = pb.SimulateResult(outcomes=[outcome(obs=[b""])] * 2).SerializeToString()
    found = decode_outcomes(body, empty, [0, 0], [None, (b"",) * 4])
    assert found.obs[0].shape == (2, 4, 0)
    assert found.stacks == [(b"",) * 4] * 2


def test_outcomes_are_what_protobuf_reads() -> None:
    """Put together by hand, of arrays of any layout."""
    leaves = np.arange(6, dtype="<f4")[::2], np.array(5)
    body = encode_outcomes([Outcome(rewards=[1.0], flags=[0], obs=leaves), Outcome(Status("QUOTA", "full"))], 300)
    first, second = pb.SimulateResult.FromString(body).outcomes
    assert (list(first.obs), first.steps) == ([leaf.tobytes() for leaf in leaves], 1)
    assert (second.status.code, second.status.detail, list(second.obs)) == (pb.ENTRY_QUOTA, "full", [])
    assert pb.SimulateResult.FromString(body).store_bytes == 300
