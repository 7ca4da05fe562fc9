"""The server's end of the lane protocol, without I/O: dedup of requests, cache of replies, resume.

Invariants: an illegal event raises and changes nothing (test_illegal_event_changes_nothing); a
request is handed out at most once (test_a_request_is_executed_at_most_once); a
reply is kept until acked and no longer (test_cache_holds_exactly_the_unacked); the cache never
holds more than `max_in_flight` replies, because a request whose seq is further ahead of its own
ack is a FLOW_VIOLATION (test_cache_is_bounded_whatever_the_client_acks).
"""

from __future__ import annotations

from collections import deque

from asyncrl.errors import LocalProtocolError, MessageMissing, RemoteProtocolError
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.envelope import Message, kind_name, to_frames
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


class ServerLane:
    """One lane as its server sees it; outlives the streams that carry it."""

    def __init__(self, max_in_flight: int, resumable: bool) -> None:
        if max_in_flight < EARLY_IN_FLIGHT:
            raise LocalProtocolError(f"max_in_flight is at least {EARLY_IN_FLIGHT}: OPEN and one RESET")
        self.state = LaneState.IDLE
        self.resumable = resumable
        self.with_crc = False  # of the stream that carries the lane now
        self.received = 0  # highest seq of a request that arrived whole
        self.answered = 0  # highest seq whose reply exists
        self._max_in_flight = max_in_flight
        self._waiting: deque[int] = deque()  # kinds of the requests answered + 1 .. received
        self._cache: deque[Message] = deque()  # replies acked + 1 .. answered

    @property
    def cached_bytes(self) -> int:
        return sum(len(message.body) for message in self._cache)

    def receive(self, message: Message) -> Message | None:
        """Account for one message of the client; None for a request that had been received before."""
        if message.ack > self.answered:
            raise RemoteProtocolError(f"ack {message.ack} of a reply that was never sent; {self.answered} is the last")
        if message.kind in REQUESTS:
            found = self._request(message)
        elif message.kind not in CLIENT_CONTROL:
            raise RemoteProtocolError(f"{kind_name(message.kind)} is not for a client to send")
        elif message.seq:
            raise RemoteProtocolError(f"{kind_name(message.kind)} is a control frame and has no seq")
        else:
            self.state, found = after(self.state, message.kind, RemoteProtocolError), message
        self._ack(message.ack)
        return found

    def reply(self, kind: int, body: bytes) -> list[bytes]:
        """The reply to the oldest unanswered request; frames to send (none without a stream)."""
        if not self._waiting:
            raise LocalProtocolError(f"{kind_name(kind)} answers no request")
        if kind not in (REPLY_OF[self._waiting[0]], pb.ERROR):
            raise LocalProtocolError(f"{kind_name(kind)} does not answer {kind_name(self._waiting[0])}")
        detached = self.state is LaneState.DETACHED
        if kind == pb.ERROR and not detached:
            self.state = after_error(self.state, 1, LocalProtocolError)
        elif not detached:
            self.state = after(self.state, kind, LocalProtocolError)
        self._waiting.popleft()
        self.answered += 1
        message = Message(kind, self.answered, body)
        self._cache.append(message)
        return [] if detached else to_frames(message, self.with_crc)

    def control(self, kind: int, body: bytes = b"") -> list[bytes]:
        """RESUMED excepted: EVENT, PONG, a final ERROR, or BYE."""
        if kind not in SERVER_CONTROL or kind == pb.RESUMED:
            raise LocalProtocolError(f"{kind_name(kind)} is not a control frame of the server")
        if kind == pb.ERROR:
            self.state = after_error(self.state, 0, LocalProtocolError)
        else:
            self.state = after(self.state, kind, LocalProtocolError)
        return to_frames(Message(kind, 0, body), self.with_crc)

    def stream_broke(self) -> None:
        """The stream ended without BYE: DETACHED if the lane can be resumed, else CLOSED."""
        self.state = after_break(self.state, self.resumable)

    def resume(self, ack: int, with_crc: bool) -> list[bytes]:
        """A new stream carries the lane: RESUMED, then every reply after `ack` again."""
        if not self._acked <= ack <= self.answered:
            raise RemoteProtocolError(f"RESUME acks {ack}; replies {self._acked}..{self.answered} can be resumed")
        self.state = after(self.state, pb.RESUME, RemoteProtocolError)
        self._ack(ack)
        self.with_crc = with_crc
        self.state = after(self.state, pb.RESUMED, LocalProtocolError)
        resumed = pb.Resumed(received=self.received).SerializeToString()
        frames = to_frames(Message(pb.RESUMED, 0, resumed), with_crc)
        for message in self._cache:
            frames += to_frames(message, with_crc)
        return frames

    @property
    def _acked(self) -> int:
        return self.answered - len(self._cache)

    def _ack(self, ack: int) -> None:
        while self._cache and self._cache[0].seq <= ack:
            self._cache.popleft()

    def _request(self, message: Message) -> Message | None:
        if message.seq <= self.received:
            if message.seq and self.state is LaneState.LIVE:
                return None
            raise RemoteProtocolError(f"{kind_name(message.kind)} needs seq {self.received + 1}, not {message.seq}")
        if message.seq != self.received + 1:
            raise MessageMissing(f"request {message.seq} where {self.received + 1} is due")
        allowed = EARLY_IN_FLIGHT if self.state in (LaneState.IDLE, LaneState.OPENING) else self._max_in_flight
        if message.seq - message.ack > allowed:
            raise RemoteProtocolError(f"more than {allowed} requests in flight", "FLOW_VIOLATION")
        self.state = after(self.state, message.kind, RemoteProtocolError)
        self.received = message.seq
        self._waiting.append(message.kind)
        return message
