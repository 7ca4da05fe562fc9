"""One stream: reader, writer, outbox, and its three ways to end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from asyncrl.client.lane_stream import LaneStream, WireCounters
from asyncrl.errors import ConnectionLost, RemoteProtocolError
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.envelope import Message, to_frames
from tests.rig.sim_loop import run_sim
from tests.unit.client.toy_server import ToyStream


def frames(count: int) -> list[bytes]:
    return [frame for seq in range(count) for frame in to_frames(Message(pb.PONG, 0, b"%d" % seq), True)]


class Rig:
    def __init__(self, transport: ToyStream | None = None) -> None:
        self.transport = transport or ToyStream()
        self.taken: list[bytes] = []
        self.counters = WireCounters()
        self.stream = LaneStream(self.transport, True, self.take, self.counters)

    def take(self, message: Message) -> None:
        self.taken.append(message.body)

    async def carried(self, *meanwhile: Callable[[], None]) -> None:
        """Carry the stream to its end while each of `meanwhile` happens, 0.1 s apart."""
        loop = asyncio.get_running_loop()
        for number, call in enumerate(meanwhile):
            loop.call_later(0.1 * (number + 1), call)
        await self.stream.carry()


def sim(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    for seed in range(5):
        run_sim(main, seed)


def test_finish_flushes_the_outbox() -> None:
    """BYE is the last of what was queued, and it still travels."""

    async def main() -> None:
        rig = Rig()
        rig.stream.send(frames(20))

        def finish() -> None:
            rig.stream.send(frames(3))
            rig.stream.finish()

        asyncio.get_running_loop().call_soon(finish)
        await rig.carried()
        assert len(rig.transport.c2s.frames) == 23
        assert rig.counters.frames_out == 23
        assert rig.counters.bytes_out == sum(map(len, rig.transport.c2s.frames))
        assert rig.stream.fault is None

    sim(main)


def test_stop_sends_no_more() -> None:
    """A stream that is given up leaves its outbox unsent, and ends at once."""

    async def main() -> None:
        rig = Rig()
        rig.stream.send(frames(1000))
        await rig.carried(lambda: rig.stream.stop(ConnectionLost("stalled")))
        assert len(rig.transport.c2s.frames) < 1000
        assert str(rig.stream.fault) == "stalled"

    sim(main)


def test_a_stop_in_any_moment_ends_the_writer() -> None:
    """Between two frames, during one, or while it waits for more."""

    async def main() -> None:
        for moment in range(12):
            rig = Rig()
            rig.stream.send(frames(2))
            asyncio.get_running_loop().call_later(moment * 0.00025, rig.stream.stop)
            await rig.carried()
            assert rig.transport.closed

    sim(main)


def test_messages_are_taken_in_order() -> None:
    """And counted with their bytes."""

    async def main() -> None:
        rig = Rig()
        sent = frames(30)
        for frame in sent:
            rig.transport.s2c.put(frame)
        rig.transport.s2c.change(ended=True)
        await rig.carried()
        assert rig.taken == [b"%d" % seq for seq in range(30)]
        assert (rig.counters.frames_in, rig.counters.bytes_in) == (30, sum(map(len, sent)))
        assert rig.stream.fault is None

    sim(main)


def test_frames_after_the_end_are_ignored() -> None:
    """A damaged frame ends the stream; what follows is drained, not parsed."""

    async def main() -> None:
        rig = Rig()
        good = frames(2)
        for frame in (good[0], b"garbage", good[1]):
            rig.transport.s2c.put(frame)
        await rig.carried()
        assert rig.taken == [b"0"]
        assert isinstance(rig.stream.fault, RemoteProtocolError)

    sim(main)


def test_a_break_is_a_fault_and_an_end_is_none() -> None:
    """What the transport says of itself decides."""

    async def main() -> None:
        broken, ended = Rig(), Rig()
        await broken.carried(broken.transport.snap)
        assert isinstance(broken.stream.fault, ConnectionLost)
        await ended.carried(lambda: ended.transport.s2c.change(ended=True))
        assert ended.stream.fault is None
        assert ended.stream.over

    sim(main)


def test_a_failed_write_hides_no_last_words() -> None:
    """The peer said why and hung up; that our next write fails must not keep us from reading it."""

    async def main() -> None:
        rig = Rig()
        rig.transport.c2s.change(broken=True)
        rig.stream.send(frames(1))

        def last_words() -> None:
            rig.transport.s2c.put(frames(1)[0])
            rig.transport.s2c.change(ended=True)

        await rig.carried(last_words)
        assert rig.taken == [b"0"]
        assert isinstance(rig.stream.fault, ConnectionLost)

    sim(main)


class Recorder(ToyStream):
    """Notes whether anybody cancelled a read or a write."""

    cancelled = 0

    async def recv_frame(self) -> bytes | None:
        try:
            return await super().recv_frame()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def send_frame(self, frame: bytes) -> None:
        try:
            await super().send_frame(frame)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


def test_nothing_is_cancelled_on_a_clean_end() -> None:
    """A cancelled read leaks inside gRPC, a cancelled write breaks the stream: ends go through the transport."""

    async def main() -> None:
        for end in ("finish", "stop", "snap"):
            transport = Recorder()
            rig = Rig(transport)
            rig.stream.send(frames(3))
            call = transport.snap if end == "snap" else getattr(rig.stream, end)
            await rig.carried(call)
            assert transport.cancelled == 0

    sim(main)
