"""The lane protocol as data, and every (state, kind) pair at both ends: legal ones move, others change nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from asyncrl.errors import LocalProtocolError, ProtocolError, RemoteProtocolError
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.client_lane import ClientLane
from asyncrl.wire.envelope import Message
from asyncrl.wire.lane_table import (
    CLIENT_CONTROL,
    LANE_TABLE,
    REPLIES,
    REPLY_OF,
    REQUESTS,
    SERVER_CONTROL,
    LaneState,
    after,
    after_break,
    after_error,
)
from asyncrl.wire.server_lane import ServerLane

S = LaneState
KINDS = sorted(set(pb.Kind.values()) - {pb.KIND_UNSPECIFIED})
OPENED = pb.Opened(max_in_flight=4, resume_window_ms=1000, lane_id="lane", token=b"t" * 16).SerializeToString()


# What a reader of sections 3 and 8 of the proto expects, written down apart from the table.
def expected(state: LaneState, kind: pb.Kind.ValueType) -> LaneState | None:
    if kind == pb.ERROR:
        return None  # `after_error` decides
    if state in (S.OPENING, S.LIVE, S.RESUMING) and kind in (pb.PING, pb.PONG, pb.EVENT):
        return state
    if kind == pb.BYE:
        return None if state in (S.CLOSED, S.DETACHED) else S.CLOSED
    if kind == pb.CANCEL:
        return state if state in (S.OPENING, S.LIVE) else None
    moves: dict[tuple[LaneState, int], LaneState] = {
        (S.IDLE, pb.OPEN): S.OPENING,
        (S.OPENING, pb.RESET): S.OPENING,
        (S.OPENING, pb.OPENED): S.LIVE,
        (S.DETACHED, pb.RESUME): S.RESUMING,
        (S.RESUMING, pb.RESUMED): S.LIVE,
    }
    if (state, kind) in moves:
        return moves[state, kind]
    data = (REQUESTS | set(REPLY_OF.values())) - {pb.OPEN, pb.OPENED}
    return S.LIVE if state is S.LIVE and kind in data else None


def test_the_table_is_the_proto() -> None:
    """Every pair of a state and a kind."""
    pairs = {(state, kind): expected(state, kind) for state in S for kind in KINDS}
    assert {pair: state for pair, state in pairs.items() if state is not None} == LANE_TABLE


def test_kinds_fall_into_their_ranges() -> None:
    """Requests are 1 to 15, each with a reply of 32 to 47; control frames are the rest, and none is missing."""
    assert all(0 < kind < 16 for kind in REQUESTS)
    assert all(32 <= kind < 48 for kind in REPLIES - {pb.ERROR})
    assert set(KINDS) == REQUESTS | REPLIES | CLIENT_CONTROL | SERVER_CONTROL
    assert {pb.BYE} == CLIENT_CONTROL & SERVER_CONTROL
    assert {kind for kind in KINDS if 16 <= kind < 32} == CLIENT_CONTROL - {pb.BYE}


@pytest.mark.parametrize("fault", [LocalProtocolError, RemoteProtocolError])
def test_after_blames_the_one_who_is_named(fault: type[ProtocolError]) -> None:
    """The error says kind and state."""
    with pytest.raises(fault, match="STEP is illegal while the lane is IDLE"):
        after(S.IDLE, pb.STEP, fault)
    with pytest.raises(fault, match="ERROR is illegal while the lane is CLOSED"):
        after_error(S.CLOSED, 1, fault)


def test_an_error_ends_all_but_a_live_lane_whose_request_it_answers() -> None:
    """Every state, with and without a request."""
    found = {}
    for state in S:
        for seq in (0, 3):
            try:
                found[state, seq] = after_error(state, seq, RemoteProtocolError)
            except RemoteProtocolError:
                found[state, seq] = state
    expected_states = {(state, seq): S.CLOSED for state in S for seq in (0, 3)}
    expected_states |= {(S.LIVE, 3): S.LIVE, (S.DETACHED, 0): S.DETACHED, (S.DETACHED, 3): S.DETACHED}
    assert found == expected_states


def test_only_a_resumable_open_lane_outlives_its_stream() -> None:
    """Every state, resumable or not."""
    assert {state for state in S if after_break(state, True) is S.DETACHED} == {S.LIVE, S.RESUMING, S.DETACHED}
    assert {after_break(state, False) for state in S} == {S.CLOSED}


# ------------------------------------------------------------------------------------------ both ends, in every state


def client_in(state: LaneState) -> ClientLane:
    """A client end with one request unanswered where it can have one."""
    lane = ClientLane(with_crc=False)
    if state is S.IDLE:
        return lane
    if state is S.CLOSED:
        lane.control(pb.BYE)
        return lane
    lane.request(pb.OPEN, b"")
    if state is not S.OPENING:
        lane.receive(Message(pb.OPENED, 1, OPENED))
        lane.request(pb.STEP, b"")
    if state in (S.DETACHED, S.RESUMING):
        lane.stream_broke()
    if state is S.RESUMING:
        lane.resume(0)
    assert lane.state is state
    return lane


def server_in(state: LaneState) -> ServerLane:
    """A server end with one request to answer where there can be one."""
    lane = ServerLane(4, resumable=True)
    if state is S.IDLE:
        return lane
    if state is S.CLOSED:
        lane.receive(Message(pb.BYE, 0, b""))
        return lane
    lane.receive(Message(pb.OPEN, 1, b""))
    if state is not S.OPENING:
        lane.reply(pb.OPENED, OPENED)
        lane.receive(Message(pb.STEP, 2, b"", 1))
    if state in (S.DETACHED, S.RESUMING):
        lane.stream_broke()
    if state is S.RESUMING:
        lane.receive(Message(pb.RESUME, 0, b"", 1))
    assert lane.state is state
    return lane


def snapshot(lane: ClientLane | ServerLane) -> dict[str, Any]:
    return copy.deepcopy(vars(lane))


def outcome(lane: ClientLane | ServerLane, event: Callable[[], Any], fault: type[ProtocolError]) -> LaneState | None:
    """The state that an event led to; None if it was refused, in which case nothing may have changed."""
    before = snapshot(lane)
    try:
        event()
    except fault:
        assert snapshot(lane) == before
        return None
    return lane.state


def next_seq_of(lane: ServerLane, kind: int) -> int:
    return lane.received + 1 if kind in REQUESTS else 0


@pytest.mark.parametrize("state", S)
def test_the_server_receives_what_the_table_allows(state: LaneState) -> None:
    """Every kind in every state: what a client may send moves as the table says, all else changes nothing."""
    for kind in KINDS:
        lane = server_in(state)
        message = Message(kind, next_seq_of(lane, kind), b"", lane.answered)
        found = outcome(lane, lambda lane=lane, message=message: lane.receive(message), RemoteProtocolError)  # type: ignore[misc]
        legal = expected(state, kind) if kind in REQUESTS | CLIENT_CONTROL else None
        assert found == legal, (state, kind)


@pytest.mark.parametrize("state", S)
def test_the_client_receives_what_the_table_allows(state: LaneState) -> None:
    """Every kind in every state: control frames as the table says, replies only where they are due."""
    due = {S.OPENING: pb.OPENED, S.LIVE: pb.STEP_RESULT}
    for kind in KINDS:
        lane = client_in(state)
        is_reply = kind in REPLIES - {pb.ERROR}
        message = Message(kind, lane.received + 1 if is_reply else 0, OPENED if kind == pb.OPENED else b"")
        found = outcome(lane, lambda lane=lane, message=message: lane.receive(message), RemoteProtocolError)  # type: ignore[misc]
        if is_reply:
            legal = S.LIVE if due.get(state) == kind else None
        elif kind == pb.ERROR:
            legal = None if state in (S.DETACHED, S.CLOSED) else S.CLOSED
        else:
            legal = expected(state, kind) if kind in SERVER_CONTROL else None
        assert found == legal, (state, kind)


@pytest.mark.parametrize("state", S)
def test_the_client_sends_what_the_table_allows(state: LaneState) -> None:
    """Requests, control frames and RESUME in every state; a lane without a stream takes requests and sends nothing."""
    waiting = state in (S.DETACHED, S.RESUMING)
    for kind in KINDS:
        lane = client_in(state)
        as_request = outcome(lane, lambda lane=lane, kind=kind: lane.request(kind, b""), LocalProtocolError)  # type: ignore[misc]
        legal = expected(S.LIVE if waiting else state, kind) if kind in REQUESTS else None
        assert as_request == (state if waiting and legal else legal), (state, kind)
        lane = client_in(state)
        as_control = outcome(lane, lambda lane=lane, kind=kind: lane.control(kind), LocalProtocolError)  # type: ignore[misc]
        assert as_control == (expected(state, kind) if kind in CLIENT_CONTROL - {pb.RESUME} else None), (state, kind)
    lane = client_in(state)
    assert outcome(lane, lambda: lane.resume(1), LocalProtocolError) == expected(state, pb.RESUME)


@pytest.mark.parametrize("state", S)
def test_the_server_sends_what_the_table_allows(state: LaneState) -> None:
    """Replies and control frames in every state; without a stream a reply is kept and nothing is sent."""
    due = {S.OPENING: pb.OPENED, S.LIVE: pb.STEP_RESULT, S.DETACHED: pb.STEP_RESULT}
    for kind in KINDS:
        lane = server_in(state)
        found = outcome(lane, lambda lane=lane, kind=kind: lane.reply(kind, b""), LocalProtocolError)  # type: ignore[misc]
        legal: LaneState | None
        if kind == pb.ERROR:
            legal = {S.OPENING: S.CLOSED, S.LIVE: S.LIVE, S.DETACHED: S.DETACHED, S.RESUMING: S.CLOSED}.get(state)
        elif due.get(state) == kind:
            legal = S.DETACHED if state is S.DETACHED else S.LIVE
        else:
            legal = None
        assert found == legal, (state, kind)
        lane = server_in(state)
        as_control = outcome(lane, lambda lane=lane, kind=kind: lane.control(kind), LocalProtocolError)  # type: ignore[misc]
        if kind == pb.ERROR:
            legal = None if state in (S.DETACHED, S.CLOSED) else S.CLOSED
        else:
            legal = expected(state, kind) if kind in SERVER_CONTROL - {pb.RESUMED} else None
        assert as_control == legal, (state, kind)
