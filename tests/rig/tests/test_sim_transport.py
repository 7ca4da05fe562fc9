"""The simulated network keeps the promises of TCP and breaks the ones that it is told to break."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from asyncrl.errors import ConnectionFailed, ConnectionLost
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.envelope import Message, to_frames
from tests.rig.sim_faults import SITES, Fault, FaultPlan
from tests.rig.sim_loop import SimLoop, run_sim
from tests.rig.sim_transport import PIPE_FRAMES, ServerSide, SimNetwork, SimStream

pytestmark = pytest.mark.sim

Talk = Callable[[SimNetwork, SimStream, list[bytes]], Coroutine[Any, Any, None]]


def frame(seq: int) -> bytes:
    return to_frames(Message(pb.STEP, seq, b"body"), with_crc=False)[0]


async def _describe(_: pb.DescribeRequest) -> pb.DescribeReply:
    return pb.DescribeReply(boot_id="b")


def play(talk: Talk, *faults: Fault, seed: int = 0, echo: bool = False) -> list[bytes]:
    """Dial a server that collects (or echoes) frames, and run `talk` at the client's end."""
    received: list[bytes] = []

    async def serve(side: ServerSide) -> None:
        while (data := await side.read()) is not None:
            received.append(data)
            if echo:
                await side.write(data)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        network = SimNetwork(loop, FaultPlan(seed, faults), seed, lambda text: None)
        async with asyncio.TaskGroup() as group:
            network.listen("s:1", group, serve, _describe)
            stream = await network.dial("s:1")
            await talk(network, stream, received)
            await stream.close()

    run_sim(main, seed)
    return received


def test_frames_keep_their_order() -> None:
    """Whatever the latency of each, frames arrive in the order of their sending."""

    async def talk(_: SimNetwork, stream: SimStream, received: list[bytes]) -> None:
        for seq in range(1, 40):
            await stream.send_frame(frame(seq))

    for seed in range(20):
        slow = [Fault("c2s.slow", visit) for visit in (3, 11)]
        assert play(talk, *slow, seed=seed) == [frame(seq) for seq in range(1, 40)]


def test_nothing_arrives_after_a_break() -> None:
    """The frame that was on its way is lost, the reader hears of the break, and so does the next writer."""

    async def talk(_: SimNetwork, stream: SimStream, received: list[bytes]) -> None:
        await stream.send_frame(frame(1))
        assert await stream.recv_frame() == frame(1)
        with pytest.raises(ConnectionLost):
            await stream.send_frame(frame(2))
        with pytest.raises(ConnectionLost):
            await stream.recv_frame()
        with pytest.raises(ConnectionLost):
            await stream.send_frame(frame(3))

    assert play(talk, Fault("c2s.cut", 1), echo=True) == [frame(1)]


def test_a_server_may_notice_a_break_late() -> None:
    """After a half-open break the client knows at once; the server's read ends seconds later."""
    noticed: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)

        async def serve(side: ServerSide) -> None:
            try:
                while (data := await side.read()) is not None:
                    await side.write(data)
            finally:
                noticed.append(loop.time())

        network = SimNetwork(loop, FaultPlan(0, [Fault("s2c.half", 0)]), 0, lambda text: None)
        async with asyncio.TaskGroup() as group:
            network.listen("s:1", group, serve, _describe)
            stream = await network.dial("s:1")
            await stream.send_frame(frame(1))
            with pytest.raises(ConnectionLost):
                await stream.recv_frame()
            assert not noticed

    run_sim(main, 0)
    assert noticed[0] > 0.4


def test_a_repeated_frame_comes_again_later_and_never_inside_a_body() -> None:
    """`twice` makes one more copy of a sequenced frame, behind a later one; OPEN is never repeated."""

    async def talk(_: SimNetwork, stream: SimStream, received: list[bytes]) -> None:
        for data in (to_frames(Message(pb.OPEN, 1, b""), False)[0], *map(frame, range(2, 12))):
            await stream.send_frame(data)

    received = play(talk, Fault("c2s.twice", 0))
    assert len(received) == 12
    assert received.count(frame(2)) == 2
    parts = to_frames(Message(pb.STEP, 2, bytes(1 << 20)), with_crc=False)

    async def large(_: SimNetwork, stream: SimStream, received: list[bytes]) -> None:
        for data in (frame(1), *parts, frame(3)):
            await stream.send_frame(data)

    received = play(large, Fault("c2s.twice", 0))
    first = received.index(parts[0])
    assert received[first : first + len(parts)] == parts


def test_a_full_pipe_makes_its_writer_wait() -> None:
    """Against a reader that does not read no more than a pipe's worth is taken."""

    async def talk(network: SimNetwork, stream: SimStream, received: list[bytes]) -> None:
        stream.c2s.stall(50)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(10):
                for seq in range(1, 1000):
                    await stream.send_frame(frame(seq))
                pytest.fail("a thousand frames fitted")
        assert received == []
        network.release()
        await asyncio.sleep(1)
        assert len(received) == PIPE_FRAMES

    play(talk)


def test_dialling_nobody_shows_at_the_first_read() -> None:
    """As with gRPC: the stream exists, and its first read fails; Describe fails by itself."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        connector = SimNetwork(loop, FaultPlan(0, []), 0, lambda text: None).connector("nobody:1")
        stream = await connector.open_stream()
        with pytest.raises(ConnectionLost):
            await stream.recv_frame()
        with pytest.raises(ConnectionFailed):
            await connector.describe(pb.DescribeRequest())

    run_sim(main, 0)


def test_a_plan_draws_the_same_faults_again_and_replays_a_list() -> None:
    """Draws depend on (seed, site, visit) alone; a list hits exactly where it says; healing ends everything."""

    def hits(plan: FaultPlan) -> list[Fault]:
        for visit in range(400):
            for site in SITES:
                plan.hit(site)
            if visit == 300:
                plan.heal()
        return plan.hits

    drawn = hits(FaultPlan(5))
    assert drawn == hits(FaultPlan(5))
    assert drawn != hits(FaultPlan(6))
    assert max(fault.visit for fault in drawn) <= 300
    assert hits(FaultPlan(9, drawn)) == drawn
    assert [Fault.parse(str(fault)) for fault in drawn] == drawn
    with pytest.raises(ValueError, match="no fault site"):
        Fault.parse("fire:1")
