"""The client's end of the lane protocol, without I/O: requests in, frames out; frames in, replies out.

Invariants: a reply is delivered at most once and in order (test_replies_arrive_once_in_order);
an illegal event raises and changes nothing (test_illegal_event_changes_nothing); what was not
answered when a stream broke is sent again, and only that (test_resume_sends_exactly_the_rest).
"""

from __future__ import annotations

from collections import deque
from typing import Final

from asyncrl.errors import LocalProtocolError, MessageMissing, RemoteProtocolError
from asyncrl.wire import handshake
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.envelope import Message, kind_name, parse_body, to_frames
from asyncrl.wire.lane_table import (
    CLIENT_CONTROL,
    EARLY_IN_FLIGHT,
    REPLY_OF,
    REQUESTS,
    SERVER_CONTROL,
    LaneState,
    after,
    after_break,
    after_error,
)

MAX_DEADLINE_MS: Final = 2**32 - 1


class ClientLane:
    """One lane as its client sees it; outlives the streams that carry it."""

    def __init__(self, with_crc: bool) -> None:
        self.state = LaneState.IDLE
        self.max_in_flight = EARLY_IN_FLIGHT
        self.resumable = False
        self.lane_id = ""
        self.received = 0  # highest seq whose reply has arrived whole: the `ack` of every frame
        self._token = b""
        self._with_crc = with_crc
        self._last_seq = 0
        self._unanswered: deque[Message] = deque()

    @property
    def in_flight(self) -> int:
        return len(self._unanswered)

    @property
    def can_request(self) -> bool:
        """Whether `request` would be within what the server allows."""
        return self.state is not LaneState.CLOSED and len(self._unanswered) < self.max_in_flight

    def request(self, kind: int, body: bytes, deadline_ms: int = 0) -> tuple[int, list[bytes]]:
        """A sequenced request: its seq, and the frames to send now (none while no stream carries the lane)."""
        if kind not in REQUESTS:
            raise LocalProtocolError(f"{kind_name(kind)} is not a request")
        if not 0 <= deadline_ms <= MAX_DEADLINE_MS:
            raise LocalProtocolError(f"a deadline of {deadline_ms} ms: 0 to {MAX_DEADLINE_MS}")
        waiting = self.state in (LaneState.DETACHED, LaneState.RESUMING)
        # Without a stream the request only queues, as one of a live lane.
        following = after(LaneState.LIVE if waiting else self.state, kind, LocalProtocolError)
        if len(self._unanswered) >= self.max_in_flight:
            raise LocalProtocolError(f"{self.max_in_flight} requests are unanswered; that is all the server allows")
        self._last_seq += 1
        message = Message(kind, self._last_seq, body, self.received, deadline_ms)
        self._unanswered.append(message)
        if waiting:
            return message.seq, []
        self.state = following
        return message.seq, to_frames(message, self._with_crc)

    def control(self, kind: int, body: bytes = b"") -> list[bytes]:
        """PING, CANCEL or BYE."""
        if kind not in CLIENT_CONTROL or kind == pb.RESUME:
            raise LocalProtocolError(f"{kind_name(kind)} is not a control frame of the client")
        self.state = after(self.state, kind, LocalProtocolError)
        return to_frames(Message(kind, 0, body, self.received), self._with_crc)

    def stream_broke(self) -> None:
        """The stream ended without BYE: DETACHED if the lane can be resumed, else CLOSED."""
        self.state = after_break(self.state, self.resumable)

    def resume(self, learner_epoch: int) -> list[bytes]:
        """The first frames of a new stream for a detached lane."""
        self.state = after(self.state, pb.RESUME, LocalProtocolError)
        return self._resume_frames(learner_epoch)

    def release(self, learner_epoch: int) -> list[bytes]:
        """All frames of a new stream that gives the lane back, whose BYE may have been lost with the old one; none
        where the server does not keep it. The state stays as it is."""
        if not self.resumable:
            return []
        return self._resume_frames(learner_epoch) + to_frames(Message(pb.BYE, 0, b"", self.received), self._with_crc)

    def _resume_frames(self, learner_epoch: int) -> list[bytes]:
        body = pb.Resume(
            lane_id=self.lane_id,
            token=self._token,
            ack=self.received,
            learner_epoch=learner_epoch,
            protocol=handshake.version(),
        )
        return to_frames(Message(pb.RESUME, 0, body.SerializeToString(), self.received), self._with_crc)

    def receive(self, message: Message) -> Message | None:
        """Account for one message of the server; None for a reply that has been delivered before."""
        if message.kind in REPLY_OF.values() or (message.kind == pb.ERROR and message.seq):
            return self._reply(message)
        if message.kind not in SERVER_CONTROL:
            raise RemoteProtocolError(f"{kind_name(message.kind)} is not for a server to send")
        if message.seq:
            raise RemoteProtocolError(f"{kind_name(message.kind)} is a control frame and has no seq")
        if message.kind == pb.ERROR:
            self.state = after_error(self.state, 0, RemoteProtocolError)
        else:
            self.state = after(self.state, message.kind, RemoteProtocolError)
        return message

    def frames_after_resume(self, resumed: pb.Resumed) -> list[bytes]:
        """What the server has not received, again. Call it on RESUMED, before anything else is sent."""
        if not self.received <= resumed.received <= self._last_seq:
            raise RemoteProtocolError(
                f"RESUMED: {resumed.received} arrived, {self.received} were answered, {self._last_seq} made"
            )
        frames: list[bytes] = []
        for message in self._unanswered:
            if message.seq > resumed.received:
                frames += to_frames(message._replace(ack=self.received), self._with_crc)
        return frames

    def _reply(self, message: Message) -> Message | None:
        if message.seq <= self.received:
            if message.seq and self.state is LaneState.LIVE:
                return None
            raise RemoteProtocolError(f"{kind_name(message.kind)} answers no request")
        if self.received + 1 < message.seq <= self._last_seq:
            raise MessageMissing(f"reply {message.seq} where {self.received + 1} is due")
        if message.seq != self.received + 1 or not self._unanswered:
            raise RemoteProtocolError(f"reply {message.seq} where {self.received + 1} is due")
        wanted = REPLY_OF[self._unanswered[0].kind]
        if message.kind == pb.ERROR:
            following = after_error(self.state, message.seq, RemoteProtocolError)
        elif message.kind == wanted:
            following = after(self.state, message.kind, RemoteProtocolError)
        else:
            raise RemoteProtocolError(f"{kind_name(message.kind)} answers {kind_name(self._unanswered[0].kind)}")
        if message.kind == pb.OPENED:
            self._opened(parse_body(pb.Opened, message.body))
        self._unanswered.popleft()
        self.received = message.seq
        self.state = following
        return message

    def _opened(self, opened: pb.Opened) -> None:
        if not EARLY_IN_FLIGHT <= opened.max_in_flight <= 64:
            raise RemoteProtocolError(f"max_in_flight {opened.max_in_flight} is not within {EARLY_IN_FLIGHT}..64")
        self.max_in_flight = opened.max_in_flight
        self.lane_id = opened.lane_id
        self._token = opened.token
        self.resumable = opened.resume_window_ms > 0
