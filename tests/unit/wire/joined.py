"""Both ends of a lane joined in memory by pipes that lose what is in them when they break."""

from __future__ import annotations

from collections import deque

from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.client_lane import ClientLane
from asyncrl.wire.envelope import FrameReader, Message
from asyncrl.wire.lane_table import REPLY_OF, LaneState
from asyncrl.wire.server_lane import ServerLane

LIMIT = 1 << 20


class Joined:
    """`executed` is what a lane process would have run, `delivered` what the client's owner would have seen."""

    def __init__(self, max_in_flight: int, with_crc: bool) -> None:
        self.max_in_flight = max_in_flight
        self.with_crc = with_crc
        self.client = ClientLane(with_crc)
        self.server = ServerLane(max_in_flight, resumable=True)
        self.requested: list[bytes] = []
        self.executed: list[Message] = []
        self.delivered: list[Message] = []
        self.waiting: deque[Message] = deque()
        self._connect()

    def _connect(self) -> None:
        self.to_server: deque[bytes] = deque()
        self.to_client: deque[bytes] = deque()
        self.client_reader = FrameReader(LIMIT, self.with_crc)
        self.server_reader = FrameReader(LIMIT)

    # -------------------------------------------------------------------------------------------------------- requests

    def request(self, kind: int, body: bytes) -> None:
        seq, frames = self.client.request(kind, body, 5)
        self.requested.append(body)
        assert seq == len(self.requested)
        self.to_server += frames

    def execute(self) -> None:
        """The lane process answers its oldest request."""
        message = self.waiting.popleft()
        kind, body = REPLY_OF[message.kind], b"reply to " + message.body
        if message.kind == pb.OPEN:
            opened = pb.Opened(max_in_flight=self.max_in_flight, resume_window_ms=9, lane_id="l", token=b"t")
            body = opened.SerializeToString()
        elif len(message.body) % 5 == 4:
            kind = pb.ERROR
        self.to_client += self.server.reply(kind, body)

    # ---------------------------------------------------------------------------------------------------------- frames

    def deliver_to_server(self) -> None:
        message = self.server_reader.feed(self.to_server.popleft())
        if message is None:
            return
        if message.kind == pb.RESUME:
            resume = pb.Resume.FromString(message.body)
            assert (resume.lane_id, resume.token) == ("l", b"t")
            self.to_client += self.server.resume(resume.ack, bool(self.server_reader.crc))
            return
        self.server.with_crc = bool(self.server_reader.crc)
        found = self.server.receive(message)
        if found is None:
            return
        if found.kind == pb.PING:
            self.to_client += self.server.control(pb.PONG, found.body)
        elif found.kind in REPLY_OF:
            self.executed.append(found)
            self.waiting.append(found)

    def deliver_to_client(self) -> None:
        message = self.client_reader.feed(self.to_client.popleft())
        found = None if message is None else self.client.receive(message)
        if found is None:
            return
        if found.kind == pb.RESUMED:
            self.to_server += self.client.frames_after_resume(pb.Resumed.FromString(found.body))
        elif found.seq:
            self.delivered.append(found)

    # ---------------------------------------------------------------------------------------------------------- faults

    def break_stream(self) -> None:
        """What is in the pipes is lost, a half-read body too."""
        self.client.stream_broke()
        self.server.stream_broke()
        self._connect()

    def resume(self) -> None:
        self.to_server += self.client.resume(1)

    def heal(self) -> None:
        """Everything that can happen without a further request happens."""
        if self.client.state is LaneState.DETACHED:
            self.resume()
        while self.to_server or self.to_client or self.waiting:
            if self.to_server:
                self.deliver_to_server()
            if self.waiting:
                self.execute()
            if self.to_client:
                self.deliver_to_client()

    # ------------------------------------------------------------------------------------------------------- the oracle

    def check(self) -> None:
        """Exactly once and in order, at every moment; never more in flight or in the cache than was agreed."""
        seqs = list(range(1, len(self.requested) + 1))
        assert [message.seq for message in self.executed] == seqs[: len(self.executed)]
        assert [message.body for message in self.executed] == self.requested[: len(self.executed)]
        assert [message.seq for message in self.delivered] == seqs[: len(self.delivered)]
        assert len(self.delivered) <= len(self.executed)
        for message, request in zip(self.delivered[1:], self.requested[1:], strict=False):
            assert message.body == b"reply to " + request
        assert self.client.in_flight == len(self.requested) - len(self.delivered) <= self.max_in_flight
        assert self.client.received == len(self.delivered)
        cached = [message.seq for message in self.server._cache]
        assert cached == list(range(self.server.answered - len(cached) + 1, self.server.answered + 1))
        assert len(cached) <= self.max_in_flight
        # Nothing that the client still misses has left the cache.
        assert self.server.answered - len(cached) <= len(self.delivered)
        assert self.server.cached_bytes == sum(len(message.body) for message in self.server._cache)
