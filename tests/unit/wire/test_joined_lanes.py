"""Both ends joined in memory, under random operations: breaks at any frame boundary, resumes, breaks in a resume."""

from __future__ import annotations

from unittest import mock

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from asyncrl.wire import envelope
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.lane_table import LaneState
from tests.unit.wire.joined import Joined

KINDS = [pb.RESET, pb.STEP, pb.STEP, pb.RESTORE, pb.SIMULATE, pb.RENDER]


class JoinedLanes(RuleBasedStateMachine):
    """Chunks are 8 bytes here, so that most messages have several frames and a break can fall between them."""

    joined: Joined

    @initialize(
        max_in_flight=st.integers(2, 5), with_crc=st.booleans(), early_reset=st.booleans(), chunk=st.integers(8, 40)
    )
    def open(self, max_in_flight: int, with_crc: bool, early_reset: bool, chunk: int) -> None:
        self.chunk = mock.patch.object(envelope, "CHUNK_BYTES", chunk)
        self.chunk.start()
        self.joined = Joined(max_in_flight, with_crc)
        self.joined.request(pb.OPEN, b"open")
        if early_reset:
            self.joined.request(pb.RESET, b"early")
        while not self.joined.delivered:
            self.joined.deliver_to_server()
            if self.joined.waiting:
                self.joined.execute()
                while self.joined.to_client and not self.joined.delivered:
                    self.joined.deliver_to_client()

    @precondition(lambda self: self.joined.client.can_request)
    @rule(kind=st.sampled_from(KINDS), body=st.binary(max_size=60))
    def request(self, kind: int, body: bytes) -> None:
        self.joined.request(kind, body)

    @precondition(lambda self: self.joined.waiting)
    @rule()
    def execute(self) -> None:
        self.joined.execute()

    @precondition(lambda self: self.joined.to_server)
    @rule(count=st.integers(1, 12))
    def deliver_to_server(self, count: int) -> None:
        for _ in range(min(count, len(self.joined.to_server))):
            self.joined.deliver_to_server()

    @precondition(lambda self: self.joined.to_client)
    @rule(count=st.integers(1, 12))
    def deliver_to_client(self, count: int) -> None:
        for _ in range(min(count, len(self.joined.to_client))):
            self.joined.deliver_to_client()

    @precondition(lambda self: self.joined.client.state is LaneState.LIVE)
    @rule(kind=st.sampled_from([pb.PING, pb.CANCEL]))
    def control(self, kind: int) -> None:
        self.joined.to_server += self.joined.client.control(kind)

    @precondition(lambda self: self.joined.server.state is LaneState.LIVE)
    @rule()
    def event(self) -> None:
        self.joined.to_client += self.joined.server.control(pb.EVENT, b"building")

    @rule()
    def break_stream(self) -> None:
        self.joined.break_stream()

    @precondition(lambda self: self.joined.client.state is LaneState.DETACHED)
    @rule()
    def resume(self) -> None:
        self.joined.resume()

    @invariant()
    def exactly_once_and_in_order(self) -> None:
        self.joined.check()

    def teardown(self) -> None:
        """Healed, every request has been executed once and every reply has arrived once."""
        if not hasattr(self, "joined"):
            return
        try:
            self.joined.heal()
            self.joined.check()
            assert len(self.joined.delivered) == len(self.joined.executed) == len(self.joined.requested)
            assert self.joined.client.in_flight == 0
        finally:
            self.chunk.stop()


JoinedLanes.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=60,
    phases=set(Phase) - {Phase.explain},  # it traces every line, and a failure would run into the timeout
)
TestJoinedLanes = JoinedLanes.TestCase
