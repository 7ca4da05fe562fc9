"""The server's end alone: dedup, cache, flow, resume."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.errors import LocalProtocolError, ProtocolError, RemoteProtocolError
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.envelope import FrameReader, Message
from asyncrl.wire.lane_table import LaneState
from asyncrl.wire.server_lane import ServerLane


def parsed(frames: list[bytes]) -> list[Message]:
    reader = FrameReader(1 << 30)
    return [message for message in map(reader.feed, frames) if message is not None]


def live(max_in_flight: int = 4) -> ServerLane:
    lane = ServerLane(max_in_flight, resumable=True)
    lane.receive(Message(pb.OPEN, 1, b"open"))
    lane.reply(pb.OPENED, b"opened")
    return lane


def step(seq: int, ack: int) -> Message:
    return Message(pb.STEP, seq, b"step", ack)


def cached(lane: ServerLane) -> list[int]:
    return [message.seq for message in lane._cache]


def refused(lane: ServerLane, event: Callable[[], Any], fault: type[ProtocolError], says: str) -> None:
    """The event raises the fault and leaves the lane as it was."""
    before = copy.deepcopy(vars(lane))
    with pytest.raises(fault) as caught:
        event()
    assert says in str(caught.value)
    assert vars(lane) == before


def test_a_request_is_executed_at_most_once() -> None:
    """Handed out the first time, swallowed afterwards, whatever has been answered since."""
    lane = live()
    assert lane.receive(step(2, 1)) is not None
    for answered in (False, True):
        for seq, kind in ((1, pb.OPEN), (2, pb.STEP), (2, pb.RESET)):
            assert lane.receive(Message(kind, seq, b"", 1)) is None
        if not answered:
            lane.reply(pb.STEP_RESULT, b"")
    assert lane.received == 2


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (step(4, 1), "request 4 where 3 is due"),
        (step(0, 1), "STEP needs seq 3, not 0"),
        (step(3, 2), "ack 2 of a reply that was never sent; 1 is the last"),
        (Message(pb.PING, 0, b"", 9), "ack 9"),
        (Message(pb.PING, 1, b"", 1), "PING is a control frame and has no seq"),
        (Message(pb.PONG, 0, b"", 1), "PONG is not for a client to send"),
        (Message(pb.STEP_RESULT, 3, b"", 1), "STEP_RESULT is not for a client to send"),
        (Message(pb.OPEN, 3, b"", 1), "OPEN is illegal while the lane is LIVE"),
        (Message(pb.RESUME, 0, b"", 1), "RESUME is illegal while the lane is LIVE"),
    ],
)
def test_illegal_event_changes_nothing(message: Message, says: str) -> None:
    """A refused frame does not even ack: the cache is as it was."""
    lane = live()
    lane.receive(step(2, 0))
    refused(lane, lambda: lane.receive(message), RemoteProtocolError, says)
    assert cached(lane) == [1]


def test_a_repeated_request_before_opened_is_refused() -> None:
    """Only a lane that was resumed has reason to see a request twice."""
    lane = ServerLane(4, resumable=True)
    lane.receive(Message(pb.OPEN, 1, b""))
    refused(lane, lambda: lane.receive(Message(pb.OPEN, 1, b"")), RemoteProtocolError, "needs seq 2, not 1")


def test_a_lane_that_allows_less_than_two_is_not_made() -> None:
    """OPEN and one RESET travel together."""
    with pytest.raises(LocalProtocolError, match="at least 2"):
        ServerLane(1, resumable=False)
    ServerLane(2, resumable=False)


@pytest.mark.parametrize("kind", [pb.STEP_RESULT, pb.OPENED, pb.PONG, pb.STEP])
def test_a_reply_has_to_answer_the_oldest_request(kind: int) -> None:
    """Another kind than the one that is due, and any without a request."""
    lane = live()
    refused(lane, lambda: lane.reply(kind, b""), LocalProtocolError, "answers no request")
    lane.receive(Message(pb.RENDER, 2, b"", 1))
    refused(lane, lambda: lane.reply(kind, b""), LocalProtocolError, "does not answer RENDER")


@pytest.mark.parametrize("kind", [pb.RESUMED, pb.STEP_RESULT, pb.PING])
def test_only_control_frames_are_controls(kind: int) -> None:
    """RESUMED has a method of its own; the rest is not the server's."""
    lane = live()
    refused(lane, lambda: lane.control(kind), LocalProtocolError, "is not a control frame of the server")


def test_control_frames_have_no_place_in_the_order() -> None:
    """They carry no seq and do not touch the cache; a final ERROR ends the lane."""
    lane = live()
    lane.with_crc = True
    (frame,) = lane.control(pb.PONG, b"body")
    assert pb.Frame.FromString(frame).HasField("crc")
    assert parsed([frame]) == [Message(pb.PONG, 0, b"body")]
    lane.control(pb.ERROR, b"fenced")
    assert lane.state is LaneState.CLOSED
    assert cached(lane) == [1]


def test_an_error_to_open_ends_the_lane() -> None:
    """The reply goes out, with its seq, and the lane is closed."""
    lane = ServerLane(2, resumable=True)
    lane.receive(Message(pb.OPEN, 1, b""))
    assert parsed(lane.reply(pb.ERROR, b"no")) == [Message(pb.ERROR, 1, b"no")]
    assert lane.state is LaneState.CLOSED


@given(st.lists(st.tuples(st.sampled_from(["request", "reply", "ping"]), st.integers(0, 4)), max_size=40))
def test_cache_holds_exactly_the_unacked(operations: list[tuple[str, int]]) -> None:
    """Random requests, replies and acks, late and repeated ones too: the cache is the replies after the highest ack."""
    lane, asked, answered, acked = live(), 1, 1, 0
    for operation, ack_back in operations:
        ack = max(0, answered - ack_back)
        if operation == "request" and asked + 1 - ack <= 4:
            lane.receive(step(asked + 1, ack))
            asked, acked = asked + 1, max(acked, ack)
        elif operation == "reply" and answered < asked:
            answered += 1
            sent = Message(pb.STEP_RESULT, answered, b"%d" % answered)
            assert parsed(lane.reply(pb.STEP_RESULT, sent.body)) == [sent]
        elif operation == "ping":
            lane.receive(Message(pb.PING, 0, b"", ack))
            acked = max(acked, ack)
        assert cached(lane) == list(range(acked + 1, answered + 1))
        assert lane.cached_bytes == sum(len(message.body) for message in lane._cache)


@given(st.integers(2, 6), st.lists(st.one_of(st.none(), st.integers(0, 40)), max_size=60))
def test_cache_is_bounded_whatever_the_client_acks(max_in_flight: int, acks: list[int | None]) -> None:
    """A client that sends requests with any acks at all, true or false: the cache never exceeds what was agreed."""
    lane = live(max_in_flight)
    violations = 0
    for ack in acks:
        if ack is None and lane.answered < lane.received:
            lane.reply(pb.STEP_RESULT, b"")
        else:
            try:
                lane.receive(step(lane.received + 1, ack or 0))
            except RemoteProtocolError as error:
                violations += error.code == "FLOW_VIOLATION"
        assert len(cached(lane)) <= max_in_flight
        assert lane.received - lane.answered <= max_in_flight


@pytest.mark.parametrize(("state", "allowed"), [("opening", 2), ("live", 4)])
def test_one_request_too_many_is_a_flow_violation(state: str, allowed: int) -> None:
    """Two before Opened, then the lane's own number, counted from the request's own ack."""
    lane = ServerLane(4, resumable=True)
    kind = pb.RESET if state == "opening" else pb.STEP
    lane.receive(Message(pb.OPEN, 1, b""))
    seq = 2
    if state == "live":
        lane.reply(pb.OPENED, b"")
    for _ in range(allowed - 1):
        lane.receive(Message(kind, seq, b"", 0))
        seq += 1
    refused(
        lane, lambda: lane.receive(Message(kind, seq, b"", 0)), RemoteProtocolError, f"more than {allowed} requests"
    )
    with pytest.raises(RemoteProtocolError) as caught:
        lane.receive(Message(kind, seq, b"", 0))
    assert caught.value.code == "FLOW_VIOLATION"
    if state == "live":
        assert lane.receive(Message(kind, seq, b"", 1)) is not None


@pytest.mark.parametrize("ack", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("with_crc", [True, False])
def test_resume_repeats_exactly_what_the_client_misses(ack: int, with_crc: bool) -> None:
    """Replies after `ack`, one of them made without a stream; an ack of the future or of what is gone is refused."""
    lane = live()
    for seq in (2, 3):
        lane.receive(step(seq, 1))
    lane.reply(pb.STEP_RESULT, b"2")
    refused(lane, lambda: lane.resume(1, True), RemoteProtocolError, "RESUME is illegal while the lane is LIVE")
    lane.stream_broke()
    assert lane.reply(pb.STEP_RESULT, b"3") == []
    if not 1 <= ack <= 3:
        refused(lane, lambda: lane.resume(ack, with_crc), RemoteProtocolError, "can be resumed")
        return
    frames = lane.resume(ack, with_crc)
    assert all(pb.Frame.FromString(frame).HasField("crc") == with_crc for frame in frames)
    resumed, *replies = parsed(frames)
    assert resumed == Message(pb.RESUMED, 0, pb.Resumed(received=3).SerializeToString())
    assert replies == [Message(pb.STEP_RESULT, seq, b"%d" % seq) for seq in range(ack + 1, 4)]
    assert cached(lane) == list(range(ack + 1, 4))
    assert lane.state is LaneState.LIVE
    assert lane.with_crc == with_crc


def test_a_lane_that_is_not_resumable_ends_with_its_stream() -> None:
    """Closed at once, and no reply goes out any more."""
    lane = ServerLane(4, resumable=False)
    lane.receive(Message(pb.OPEN, 1, b""))
    lane.reply(pb.OPENED, b"")
    lane.receive(step(2, 1))
    lane.stream_broke()
    assert lane.state is LaneState.CLOSED
    refused(lane, lambda: lane.reply(pb.STEP_RESULT, b""), LocalProtocolError, "CLOSED")
