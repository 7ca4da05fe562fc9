"""Bodies to rows: pairing, stacks, numbering, splices between lanes."""

from __future__ import annotations

import numpy as np
import pytest

from asyncrl.client.row_reader import RowReader
from asyncrl.errors import LocalProtocolError, RemoteProtocolError
from asyncrl.wire import step_rows
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.changes import ChangeEncoder
from asyncrl.wire.envelope import SMALL_BODY_BYTES
from asyncrl.wire.flags import CUT, FIRST, NO_TRANSITION, TERMINATED, RowTracker
from asyncrl.wire.frame_stack import StackEncoder
from asyncrl.wire.spaces import Node, SpaceSpec
from asyncrl.wire.spec import LaneSpec
from asyncrl.wire.step_rows import StepRows
from tests.unit.client.toy_server import SPEC

RESET = FIRST | NO_TRANSITION
STACKED = LaneSpec(
    "pong",
    SpaceSpec((Node(pb.BOX, dtype=np.dtype("<u1"), shape=(4, 2, 2)),)),
    SpaceSpec((Node(pb.DISCRETE, dtype=np.dtype("<i8"), n=6),)),
    stack_leaf=0,
)


def reader(num_slots: int = 2, tracker: RowTracker | None = None) -> RowReader:
    made = RowReader(num_slots, tracker or RowTracker(num_slots))
    made.open(pb.Opened(), SPEC)
    return made


def body(*flags: int, crc: int = 0) -> bytes:
    rows = StepRows([np.zeros((len(flags), 3), "<i8")], np.zeros(len(flags)), np.array(flags, np.uint8), action_crc=crc)
    rows.final_rows = step_rows.final_rows_of(rows.flags)
    if len(rows.final_rows):
        rows.final_obs = [np.zeros((len(rows.final_rows), 3), "<i8")]
    return step_rows.encode(rows, SPEC)


def test_rows_are_numbered_by_their_transitions() -> None:
    """(episode, t) before the row's flags count: a transition belongs to the episode it ends."""
    reading = reader()
    found = []
    for flags in ((RESET, RESET), (0, 0), (TERMINATED | FIRST, 0), (0, 0)):
        _, episode, t = reading.read(body(*flags), None)
        found.append((episode.tolist(), t.tolist()))
    assert found == [([-1, -1], [0, 0]), ([0, 0], [0, 0]), ([0, 0], [1, 1]), ([1, 0], [0, 2])]


def test_rows_of_another_action_are_refused() -> None:
    """A reward is paired with the action that made it, or with none."""
    reading = reader()
    reading.read(body(RESET, RESET), None)
    reading.read(body(0, 0, crc=7), 7)
    with pytest.raises(RemoteProtocolError, match="another action"):
        reading.read(body(0, 0, crc=7), 8)


def test_first_rows_cut_what_was_running() -> None:
    """One slot ran, one had ended, one was never born: CUT for the first alone, and only once."""
    tracker = RowTracker(3)
    tracker.advance(np.array([RESET, RESET, NO_TRANSITION], np.uint8))
    tracker.advance(np.array([0, TERMINATED, NO_TRANSITION], np.uint8))
    reading = reader(3, tracker)
    rows, _, _ = reading.read(body(RESET, RESET, RESET), None)
    assert rows.flags.tolist() == [CUT | RESET, RESET, RESET]
    rows, episode, _ = reading.read(body(RESET, RESET, RESET), None)
    assert rows.flags.tolist() == [RESET, RESET, RESET]
    assert episode.tolist() == [1, 1, 0]


def test_a_slot_that_still_waits_closes_its_episode_too() -> None:
    """A replacement whose slot is not built yet: CUT|NO_TRANSITION, and its first observation later."""
    tracker = RowTracker(1)
    tracker.advance(np.array([RESET], np.uint8))
    reading = reader(1, tracker)
    assert reading.read(body(NO_TRANSITION), None)[0].flags.tolist() == [CUT | NO_TRANSITION]
    assert reading.read(body(RESET), None)[0].flags.tolist() == [RESET]


@pytest.mark.parametrize("flags", [(0, RESET), (TERMINATED, TERMINATED), (CUT | RESET, RESET)])
def test_first_rows_of_a_lane_have_to_be_first_rows(flags: tuple[int, int]) -> None:
    """Whatever an earlier lane left running: this lane's slots are unborn."""
    tracker = RowTracker(2)
    tracker.advance(np.array([RESET, RESET], np.uint8))
    with pytest.raises(RemoteProtocolError, match="UNBORN"):
        reader(2, tracker).read(body(*flags), None)


def test_a_refused_body_changes_no_number() -> None:
    """Flags, pairing, lengths: the tracker stands where it stood."""
    tracker = RowTracker(2)
    reading = reader(2, tracker)
    reading.read(body(RESET, RESET), None)
    before = np.stack([tracker.state, tracker.episode, tracker.t])
    for bad in (b"\xff", body(3, 0), body(0, 0, crc=1), body(0, 0, 0)):
        with pytest.raises(RemoteProtocolError):
            reading.read(bad, 2)
    assert np.array_equal(before, np.stack([tracker.state, tracker.episode, tracker.t]))


def test_stacks_are_rebuilt_where_that_was_agreed() -> None:
    """With FRAME_STACK one frame travels; without it the whole stack does, under the same spec."""
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 255, (10, 2, 2, 2), np.uint8)
    for features in ([pb.FRAME_STACK], []):
        reading = RowReader(2, RowTracker(2))
        reading.open(pb.Opened(features=features), STACKED)
        encoder = StackEncoder() if features else None
        stacks = np.zeros((2, 4, 2, 2), np.uint8)
        for number in range(10):
            stacks = np.concatenate([stacks[:, 1:], frames[number][:, None]], axis=1)
            rows = StepRows([stacks], np.zeros(2), np.full(2, 0 if number else RESET, np.uint8))
            sent = step_rows.encode(rows, STACKED, encoder)
            assert np.array_equal(reading.read(sent, None)[0].obs[0], stacks)


def test_changes_are_read_where_that_was_agreed() -> None:
    """With CHANGES a picture is told by what changed in it, and to a lane without that is a mistake of the peer's."""
    spec = LaneSpec("art", SpaceSpec((Node(pb.BOX, dtype=np.dtype("<u1"), shape=(8, 8)),)), SPEC.action)
    able, unable = (RowReader(1, RowTracker(1)) for _ in range(2))
    able.open(pb.Opened(features=[pb.CHANGES]), spec)
    unable.open(pb.Opened(), spec)
    encoder = ChangeEncoder()
    for number in range(4):
        rows = StepRows([np.zeros((1, 8, 8), np.uint8)], np.zeros(1), np.full(1, 0 if number else RESET, np.uint8))
        rows.obs[0][0, 0, 0] = number
        sent = step_rows.encode(rows, spec, None, encoder)
        assert able.read(sent, None)[0].obs[0].sum() == number
        if number:
            assert len(pb.StepResult.FromString(sent).changed) == 1
            with pytest.raises(RemoteProtocolError, match="nobody agreed"):
                unable.read(sent, None)
        else:
            unable.read(sent, None)


def test_nothing_is_read_before_opened() -> None:
    """Nobody knows how yet, and little is worth reading."""
    made = RowReader(2, RowTracker(2))
    assert not made.is_open
    assert made.body_limit == SMALL_BODY_BYTES
    with pytest.raises(RemoteProtocolError, match="before OPENED"):
        made.read(body(RESET, RESET), None)
    with pytest.raises(LocalProtocolError):
        _ = made.spec


def test_bodies_are_bounded_by_the_spec() -> None:
    """The first rows of 1024 Atari slots fit, with finals and whole stacks; what is expected gets room."""
    made = RowReader(1024, RowTracker(1024))
    node = Node(pb.BOX, dtype=np.dtype("<u1"), shape=(4, 84, 84))
    made.open(pb.Opened(), LaneSpec("pong", SpaceSpec((node,)), SPEC.action))
    assert 3 * 1024 * 4 * 84 * 84 < made.body_limit < 110_000_000
    small = reader()
    assert small.body_limit < 2 * SMALL_BODY_BYTES
    small.expect(1 << 26)
    assert small.body_limit == 1 << 26
