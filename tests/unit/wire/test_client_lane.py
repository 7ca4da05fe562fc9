"""The client's end alone: replies, illegal events, flow, resume."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from asyncrl.errors import LocalProtocolError, ProtocolError, RemoteProtocolError
from asyncrl.wire import handshake
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.client_lane import ClientLane
from asyncrl.wire.envelope import FrameReader, Message
from asyncrl.wire.lane_table import LaneState

OPENED = pb.Opened(max_in_flight=3, resume_window_ms=1000, lane_id="lane", token=b"t" * 16)


def parsed(frames: list[bytes]) -> list[Message]:
    reader = FrameReader(1 << 30)
    return [message for message in map(reader.feed, frames) if message is not None]


def live(opened: pb.Opened = OPENED) -> ClientLane:
    lane = ClientLane(with_crc=True)
    lane.request(pb.OPEN, b"open")
    lane.receive(Message(pb.OPENED, 1, opened.SerializeToString()))
    return lane


def refused(lane: ClientLane, event: Callable[[], Any], fault: type[ProtocolError], says: str) -> None:
    """The event raises the fault and leaves the lane as it was."""
    before = copy.deepcopy(vars(lane))
    with pytest.raises(fault) as caught:
        event()
    assert says in str(caught.value)
    assert vars(lane) == before


def test_requests_are_numbered_and_carry_the_ack() -> None:
    """seq counts from OPEN, ack is the last reply that has arrived, and the deadline travels."""
    lane = live()
    assert lane.request(pb.STEP, b"a")[0] == 2
    lane.receive(Message(pb.STEP_RESULT, 2, b""))
    seq, frames = lane.request(pb.STEP, b"b", 1500)
    assert parsed(frames) == [Message(pb.STEP, 3, b"b", 2, 1500)]
    assert seq == 3
    assert pb.Frame.FromString(frames[0]).HasField("crc")


def test_replies_arrive_once_in_order() -> None:
    """A reply is handed out the first time; a repeated one is swallowed, and one out of order is refused."""
    lane = live()
    for _ in range(3):
        lane.request(pb.STEP, b"")
    first = Message(pb.STEP_RESULT, 2, b"first")
    assert lane.receive(first) == first
    assert lane.receive(first) is None
    assert lane.receive(Message(pb.ERROR, 2, b"")) is None
    refused(lane, lambda: lane.receive(Message(pb.STEP_RESULT, 4, b"")), RemoteProtocolError, "reply 4 where 3 is due")
    assert lane.receive(Message(pb.ERROR, 3, b"")) is not None
    assert lane.state is LaneState.LIVE
    assert (lane.received, lane.in_flight) == (3, 1)


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (Message(pb.STEP_RESULT, 2, b""), "STEP_RESULT answers RENDER"),
        (Message(pb.OPENED, 2, b""), "OPENED answers RENDER"),
        (Message(pb.RENDERED, 0, b""), "RENDERED answers no request"),
        (Message(pb.RENDERED, 3, b""), "reply 3 where 2 is due"),
        (Message(pb.RENDERED, 2**64 - 1, b""), "where 2 is due"),
        (Message(pb.PONG, 1, b""), "PONG is a control frame and has no seq"),
        (Message(pb.EVENT, 2, b""), "has no seq"),
        (Message(pb.STEP, 2, b""), "STEP is not for a server to send"),
        (Message(pb.PING, 0, b""), "PING is not for a server to send"),
        (Message(pb.RESUMED, 0, b""), "RESUMED is illegal while the lane is LIVE"),
    ],
)
def test_illegal_event_changes_nothing(message: Message, says: str) -> None:
    """Messages that a server may not send now, to a lane that waits for RENDERED."""
    lane = live()
    lane.request(pb.RENDER, b"")
    refused(lane, lambda: lane.receive(message), RemoteProtocolError, says)


@pytest.mark.parametrize("deadline_ms", [-1, 2**32])
def test_a_deadline_that_does_not_fit_changes_nothing(deadline_ms: int) -> None:
    """It would be found out once the request has its number, and leave a gap that no resume can close."""
    lane = live()
    refused(lane, lambda: lane.request(pb.RENDER, b"", deadline_ms), LocalProtocolError, "a deadline of")


def test_release_is_resume_and_bye_on_a_stream_of_its_own() -> None:
    """Also after a BYE that may be lost; a lane that its server does not keep needs none, nor one that never opened."""
    lane = live()
    lane.control(pb.BYE)
    before = copy.deepcopy(vars(lane))
    resume, bye = parsed(lane.release(7))
    assert vars(lane) == before
    assert (resume.kind, bye.kind) == (pb.RESUME, pb.BYE)
    wanted = pb.Resume(lane_id="lane", token=b"t" * 16, ack=1, learner_epoch=7, protocol=handshake.version())
    assert pb.Resume.FromString(resume.body) == wanted
    assert live(pb.Opened(max_in_flight=3, lane_id="lane")).release(7) == []
    assert ClientLane(with_crc=True).release(7) == []


def test_a_reply_to_nothing_is_refused() -> None:
    """A reply with the next seq, of a request that was never made."""
    lane = live()
    refused(lane, lambda: lane.receive(Message(pb.STEP_RESULT, 2, b"")), RemoteProtocolError, "where 2 is due")


@pytest.mark.parametrize("kind", [pb.OPENED, pb.PING, pb.BYE, pb.ERROR, 99])
def test_only_requests_are_requested(kind: int) -> None:
    """Everything else is this side's fault."""
    lane = live()
    refused(lane, lambda: lane.request(kind, b""), LocalProtocolError, "is not a request")


@pytest.mark.parametrize("kind", [pb.RESUME, pb.STEP, pb.PONG, pb.RESUMED])
def test_only_control_frames_are_controls(kind: int) -> None:
    """RESUME has a method of its own; the rest is not the client's."""
    lane = live()
    refused(lane, lambda: lane.control(kind), LocalProtocolError, "is not a control frame of the client")


def test_flow_is_bounded_by_what_the_server_allows() -> None:
    """Two before Opened, then its max_in_flight; one more raises and changes nothing, also without a stream."""
    lane = ClientLane(with_crc=False)
    for kind in (pb.OPEN, pb.RESET):
        assert lane.can_request
        lane.request(kind, b"")
    assert not lane.can_request
    refused(lane, lambda: lane.request(pb.RESET, b""), LocalProtocolError, "2 requests are unanswered")
    lane.receive(Message(pb.OPENED, 1, OPENED.SerializeToString()))
    lane.request(pb.STEP, b"")
    lane.stream_broke()
    assert lane.request(pb.STEP, b"") == (4, [])
    assert not lane.can_request
    refused(lane, lambda: lane.request(pb.STEP, b""), LocalProtocolError, "3 requests are unanswered")


@pytest.mark.parametrize("allowed", [0, 1, 65, 2**32 - 1])
def test_a_senseless_allowance_is_refused(allowed: int) -> None:
    """max_in_flight outside 2..64 would stop the lane or flood the server."""
    lane = ClientLane(with_crc=False)
    lane.request(pb.OPEN, b"")
    opened = pb.Opened(max_in_flight=allowed, lane_id="x", token=b"x").SerializeToString()
    refused(lane, lambda: lane.receive(Message(pb.OPENED, 1, opened)), RemoteProtocolError, "max_in_flight")
    refused(lane, lambda: lane.receive(Message(pb.OPENED, 1, b"\xff")), RemoteProtocolError, "no Opened")


@pytest.mark.parametrize("allowed", [2, 64])
def test_the_limits_of_the_allowance_are_legal(allowed: int) -> None:
    """2 and 64."""
    assert live(pb.Opened(max_in_flight=allowed)).max_in_flight == allowed


def test_a_refused_open_closes_the_lane() -> None:
    """ERROR to OPEN is the end; it is delivered, and nothing more can be asked."""
    lane = ClientLane(with_crc=False)
    lane.request(pb.OPEN, b"")
    lane.request(pb.RESET, b"")
    assert lane.receive(Message(pb.ERROR, 1, b"")) is not None
    assert lane.state is LaneState.CLOSED
    assert not lane.can_request
    refused(lane, lambda: lane.request(pb.STEP, b""), LocalProtocolError, "CLOSED")


def test_an_error_without_a_request_closes_the_lane() -> None:
    """FENCED and its like."""
    lane = live()
    assert lane.receive(Message(pb.ERROR, 0, b"")) is not None
    assert lane.state is LaneState.CLOSED


@pytest.mark.parametrize("window_ms", [0, 1])
def test_a_lane_without_a_window_ends_with_its_stream(window_ms: int) -> None:
    """Only a lane that the server keeps is detached."""
    lane = live(pb.Opened(max_in_flight=2, resume_window_ms=window_ms))
    lane.stream_broke()
    assert lane.state is (LaneState.DETACHED if window_ms else LaneState.CLOSED)


@pytest.mark.parametrize("received", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("answered", [0, 1, 2])
def test_resume_sends_exactly_the_rest(received: int, answered: int) -> None:
    """Of requests 2..4, of which some were answered and one was made without a stream: those after `received` again.

    They carry a fresh ack; RESUMED with a number that cannot be is refused.
    """
    lane = live()
    for number in (2, 3):
        lane.request(pb.STEP, b"%d" % number, 7)
    for number in range(answered):
        lane.receive(Message(pb.STEP_RESULT, 2 + number, b""))
    lane.stream_broke()
    assert lane.request(pb.RESET, b"4") == (4, [])
    (resume,) = parsed(lane.resume(9))
    assert resume == Message(pb.RESUME, 0, resume.body, 1 + answered)
    assert pb.Resume.FromString(resume.body) == pb.Resume(
        lane_id="lane", token=b"t" * 16, ack=1 + answered, learner_epoch=9, protocol=handshake.version()
    )
    lane.receive(Message(pb.RESUMED, 0, b""))
    resumed = pb.Resumed(received=received)
    if not 1 + answered <= received <= 4:
        refused(lane, lambda: lane.frames_after_resume(resumed), RemoteProtocolError, f"{received} arrived")
        return
    bodies = {2: (pb.STEP, b"2", 7), 3: (pb.STEP, b"3", 7), 4: (pb.RESET, b"4", 0)}
    assert parsed(lane.frames_after_resume(resumed)) == [
        Message(kind, seq, body, 1 + answered, deadline)
        for seq, (kind, body, deadline) in bodies.items()
        if seq > received
    ]
    assert lane.state is LaneState.LIVE


def test_replies_wait_for_resumed() -> None:
    """A reply on a stream that has not been resumed yet is refused."""
    lane = live()
    lane.request(pb.STEP, b"")
    lane.stream_broke()
    lane.resume(0)
    refused(lane, lambda: lane.receive(Message(pb.STEP_RESULT, 2, b"")), RemoteProtocolError, "RESUMING")
    refused(lane, lambda: lane.receive(Message(pb.OPENED, 1, b"")), RemoteProtocolError, "answers no request")
