"""Bodies of the requests about snapshots."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.errors import LocalProtocolError, RemoteProtocolError
from asyncrl.wire import snapshot_bodies as bodies
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.snapshot_bodies import Earlier, Rollout, SimulateEntry, Status
from asyncrl.wire.spaces import Node, SpaceSpec
from asyncrl.wire.spec import LaneSpec

DISCRETE = Node(pb.DISCRETE, 0, "0", np.dtype("<i8"), n=7)
BOX = Node(pb.BOX, 0, "1", np.dtype("<f4"), (2,))
OBS = SpaceSpec((Node(pb.BOX, dtype=np.dtype("<f4"), shape=(3,)),))
SPEC = LaneSpec("toy", OBS, SpaceSpec((Node(pb.TUPLE), DISCRETE, BOX)), mask_size=0)
u8 = st.integers(0, 2**64 - 1)


@st.composite
def entries(draw: st.DrawFn) -> SimulateEntry:
    steps = draw(st.integers(0, 4))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    tail = st.builds(Rollout, st.integers(0, bodies.MAX_STEPS), st.floats(0, 1), u8)
    return SimulateEntry(
        parent=draw(u8 | st.binary(max_size=9) | st.builds(Earlier, st.integers(0, 99))),
        actions=[rng.integers(7, size=steps), rng.normal(size=(steps, 2)).astype("<f4")],
        keep_as=draw(st.none() | u8),
        rng=draw(st.sampled_from([pb.RESAMPLE, pb.FROZEN, pb.OPEN_LOOP])),
        seed=draw(u8),
        rollout=draw(st.none() | tail),
        want_obs=draw(st.booleans()),
        newest_frames=draw(st.booleans()),
    )


def plain(entry: Any) -> Any:
    """Comparable, and as bytes where arrays are."""
    assert isinstance(entry, SimulateEntry), entry
    fields = {name: getattr(entry, name) for name in entry.__slots__ if name != "actions"}
    return fields, [(array.dtype.str, array.shape, array.tobytes()) for array in entry.actions]


@given(st.lists(entries(), max_size=4))
def test_waves_round_trip(wave: list[SimulateEntry]) -> None:
    """Parents of all three kinds, id 0, no actions, and every optional field."""
    decoded = bodies.decode_simulate(bodies.encode_simulate(wave, SPEC), SPEC)
    assert list(map(plain, decoded)) == list(map(plain, wave))


@given(st.binary(max_size=60))
def test_any_bytes_decode_or_are_refused(data: bytes) -> None:
    """As a wave, as replies: values, or RemoteProtocolError."""
    with contextlib.suppress(RemoteProtocolError):
        bodies.decode_simulate(data, SPEC)
    with contextlib.suppress(RemoteProtocolError):
        bodies.decode_snapshot_reply(data, 1)
    with contextlib.suppress(RemoteProtocolError):
        bodies.decode_exported(data, 1)


def entry_with(**fields: Any) -> pb.SimulateEntry:
    good: dict[str, Any] = {"id": 1, "actions": [bytes(8), bytes(8)], "rng": pb.RESAMPLE}
    good.update(fields)
    return pb.SimulateEntry(**{name: value for name, value in good.items() if value is not None})


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"id": None}, "BAD_STATE"),
        ({"rng": pb.RNG_UNSPECIFIED}, "UNSUPPORTED"),
        ({"rollout": pb.RolloutTail(steps=bodies.MAX_STEPS + 1)}, "UNSUPPORTED"),
        ({"actions": [bytes(8)]}, "BAD_ACTION"),
        ({"actions": [bytes(16), bytes(8)]}, "BAD_ACTION"),
        ({"actions": [bytes(7), bytes(8)]}, "BAD_ACTION"),
        ({"actions": [bytes(8 * (bodies.MAX_STEPS + 1)), bytes(8 * (bodies.MAX_STEPS + 1))]}, "BAD_ACTION"),
    ],
)
def test_an_entry_that_makes_no_sense_is_one_status(fields: dict[str, Any], code: str) -> None:
    """The entries around it are read."""
    body = pb.Simulate(entries=[entry_with(), entry_with(**fields), entry_with()]).SerializeToString()
    first, second, third = bodies.decode_simulate(body, SPEC)
    assert isinstance(second, Status)
    assert (second.code, bool(second.detail), second.ok) == (code, True, False)
    assert plain(first) == plain(third)


def test_waves_are_bounded() -> None:
    """On both sides."""
    good = SimulateEntry(1, [np.zeros(1, np.int64), np.zeros((1, 2), np.float32)])
    with pytest.raises(LocalProtocolError, match="4096 at most"):
        bodies.encode_simulate([good] * (bodies.MAX_ENTRIES + 1), SPEC)
    body = pb.Simulate(entries=[entry_with()] * (bodies.MAX_ENTRIES + 1)).SerializeToString()
    with pytest.raises(RemoteProtocolError, match="4096 at most"):
        bodies.decode_simulate(body, SPEC)


@pytest.mark.parametrize(
    ("actions", "says"),
    [
        ([np.zeros(1, np.int64)], "1 action arrays"),
        ([np.zeros(1, np.int32), np.zeros((1, 2), np.float32)], "wants int64"),
        ([np.zeros((), np.int64), np.zeros((1, 2), np.float32)], "wants int64"),
        ([np.zeros(1, np.int64), np.zeros((1, 3), np.float32)], "wants float32"),
        ([np.zeros(1, np.int64), np.zeros((2, 2), np.float32)], "different numbers of steps"),
    ],
)
def test_actions_have_to_fit(actions: Any, says: str) -> None:
    """Before anything is sent."""
    with pytest.raises(LocalProtocolError, match=says):
        bodies.encode_simulate([SimulateEntry(1, actions)], SPEC)


def test_statuses_of_the_future_are_not_ok() -> None:
    """A code that this side does not know keeps its number."""
    for code in pb.EntryCode.values():
        status = Status(pb.EntryCode.Name(code)[6:], "why")
        assert bodies.status_from_proto(bodies.status_to_proto(status)) == (Status() if code == 0 else status)
    unknown = pb.EntryStatus.FromString(b"\x08\x63")
    assert bodies.status_from_proto(unknown) == Status("CODE_99", "")


def test_replies_have_to_answer_every_id() -> None:
    """One status, size or state for each; exported states stand in the place of their ids."""
    ok, gone = pb.EntryStatus(), pb.EntryStatus(code=pb.ENTRY_SNAPSHOT_GONE)
    body = pb.SnapshotResult(status=[ok, gone], bytes=[7, 0], store_bytes=7).SerializeToString()
    reply = bodies.decode_snapshot_reply(body, 2)
    assert ([each.ok for each in reply.status], reply.sizes, reply.store_bytes) == ([True, False], [7, 0], 7)
    exported = pb.Exported(status=[ok, gone], states=[b"state", b""]).SerializeToString()
    assert bodies.decode_exported(exported, 2) == [b"state", Status("SNAPSHOT_GONE")]
    for count in (1, 3):
        with pytest.raises(RemoteProtocolError):
            bodies.decode_snapshot_reply(body, count)
        with pytest.raises(RemoteProtocolError):
            bodies.decode_exported(exported, count)
