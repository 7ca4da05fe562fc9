"""Flags: every (state, flags) pair there is, and the tracker against a naive twin."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.errors import RemoteProtocolError
from asyncrl.wire.flags import (
    CUT,
    FIRST,
    LEGAL_FLAGS,
    NO_TRANSITION,
    ROW_TABLE,
    SOFT,
    TERMINATED,
    TRUNCATED,
    RowState,
    RowTracker,
    describe,
)

# Section 6 of the proto as it reads, independent of the table under test.
COMBINATIONS = {
    *(0, TERMINATED, TRUNCATED, TERMINATED | FIRST, TRUNCATED | FIRST),
    *(TERMINATED | FIRST | SOFT, TRUNCATED | FIRST | SOFT),
    *(FIRST | NO_TRANSITION, NO_TRANSITION, CUT | NO_TRANSITION, CUT | FIRST | NO_TRANSITION),
}


def following(state: RowState, flags: int) -> RowState | None:
    """The sentences of section 6, one by one; None is a protocol error."""
    if flags not in COMBINATIONS:
        return None
    if state is RowState.RUNNING:
        if flags & FIRST:
            return RowState.RUNNING
        return RowState.ENDED if flags & (TERMINATED | TRUNCATED | CUT) else RowState.RUNNING
    if flags == FIRST | NO_TRANSITION:
        return RowState.RUNNING
    return state if flags == NO_TRANSITION else None


def tracker_in(state: RowState) -> RowTracker:
    tracker = RowTracker(2)
    for flags in ([], [FIRST | NO_TRANSITION], [FIRST | NO_TRANSITION, TERMINATED])[state]:
        tracker.advance(np.array([flags, flags], np.uint8))
    assert tracker.state.tolist() == [state, state]
    return tracker


def test_the_table_is_the_proto() -> None:
    """Every pair of a state and 0..255: the table says what section 6 says."""
    expected = {(state, flags): following(state, flags) for state in RowState for flags in range(256)}
    assert {pair: state for pair, state in expected.items() if state is not None} == ROW_TABLE
    assert LEGAL_FLAGS == COMBINATIONS


@pytest.mark.parametrize("state", RowState)
def test_legal_rows_move_as_the_table_says(state: RowState) -> None:
    """Each legal pair, with episode and t."""
    for flags in range(256):
        after = following(state, flags)
        if after is None:
            continue
        tracker = tracker_in(state)
        episode, t = tracker.episode[0], tracker.t[0]
        tracker.advance(np.array([flags, NO_TRANSITION], np.uint8))
        first = bool(flags & FIRST)
        assert tracker.state[0] == after
        assert tracker.episode[0] == episode + first
        assert tracker.t[0] == (0 if first else t + (not flags & NO_TRANSITION))


@pytest.mark.parametrize("state", RowState)
def test_illegal_row_raises_and_changes_nothing(state: RowState) -> None:
    """Each illegal pair of 0..255, beside a row that is legal: an error that names row and state, nothing moved."""
    for flags in range(256):
        if following(state, flags) is not None:
            continue
        tracker = tracker_in(state)
        before = [array.copy() for array in (tracker.state, tracker.episode, tracker.t)]
        with pytest.raises(RemoteProtocolError) as caught:
            tracker.advance(np.array([NO_TRANSITION, flags], np.uint8))
        assert str(caught.value) == f"row 1: flags {describe(flags)} are illegal after {state.name}"
        assert [array.tolist() for array in (tracker.state, tracker.episode, tracker.t)] == [
            array.tolist() for array in before
        ]


@dataclass
class Twin:
    """One slot, in plain words."""

    state: RowState = RowState.UNBORN
    episode: int = -1
    t: int = 0

    def advance(self, flags: int) -> tuple[int, int] | None:
        """The identity of the transition, if the row has one."""
        after = following(self.state, flags)
        assert after is not None
        identity = None
        if not flags & NO_TRANSITION:
            identity = (self.episode, self.t)
            self.t += 1
        if flags & FIRST:
            self.episode += 1
            self.t = 0
        self.state = after
        return identity


@given(st.integers(1, 5), st.data())
@settings(max_examples=60)
def test_row_identity_is_never_repeated(num_slots: int, data: st.DataObject) -> None:
    """Random legal rows of several slots: equal to naive twins after every reply, and no (episode, t) comes twice."""
    tracker, twins = RowTracker(num_slots), [Twin() for _ in range(num_slots)]
    seen: list[set[tuple[int, int]]] = [set() for _ in range(num_slots)]
    for _ in range(data.draw(st.integers(0, 25))):
        rows = [
            data.draw(st.sampled_from([flags for state, flags in ROW_TABLE if state is twin.state])) for twin in twins
        ]
        numbers = list(zip(tracker.episode.tolist(), tracker.t.tolist(), strict=True))
        tracker.advance(np.array(rows, np.uint8))
        for slot, flags in enumerate(rows):
            identity = twins[slot].advance(flags)
            if identity is not None:
                assert identity == numbers[slot]
                assert identity not in seen[slot]
                seen[slot].add(identity)
        assert tracker.state.tolist() == [twin.state for twin in twins]
        assert tracker.episode.tolist() == [twin.episode for twin in twins]
        assert tracker.t.tolist() == [twin.t for twin in twins]


def test_a_lane_without_slots_has_rows_too() -> None:
    """The empty array is legal."""
    RowTracker(0).advance(np.zeros(0, np.uint8))


def test_flags_have_names() -> None:
    """Every bit shows, also those that mean nothing."""
    assert describe(0) == "0"
    assert describe(TERMINATED | FIRST) == "TERMINATED|FIRST"
    assert describe(255) == "TERMINATED|TRUNCATED|FIRST|NO_TRANSITION|CUT|SOFT|64|128"
