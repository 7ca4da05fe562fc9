"""An in-memory network on the simulated clock: streams of frames between clients and env servers, and what goes wrong.

`SimNetwork.connector(address)` is a client's `Connector`; `listen(address, ...)` is where a server's handler stands.
Frames of one direction never overtake each other and never repeat, as in TCP; a *protocol* duplicate (a reply or
request that arrives again, as after a resume) is made on purpose where no other copy can do harm.

Invariants: frames arrive in order or not at all (test_frames_keep_their_order); after a break nothing arrives any more
(test_nothing_arrives_after_a_break); a writer waits while the pipe is full (test_a_full_pipe_makes_its_writer_wait).
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from google.protobuf.message import DecodeError

from asyncrl.errors import ConnectionFailed, ConnectionLost
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.lane_table import REPLIES, REQUESTS
from tests.rig.sim_faults import FaultPlan
from tests.rig.sim_loop import SimLoop

PIPE_FRAMES: Final = 64
LATENCY_S: Final = (0.0002, 0.002)
Log = Callable[[str], None]


class SimPipe:
    """One direction of one stream."""

    def __init__(self, network: SimNetwork, name: str, number: int) -> None:
        self.broken = False
        self._label = f"{name} {number}"
        self._network = network
        self._name = name  # "c2s" or "s2c"
        self._on_road: deque[tuple[float, bytes]] = deque()
        self._inbox: deque[bytes] = deque()
        self._again: list[tuple[int, bytes]] = []  # frames to go before the copy, copy
        self._latest = 0.0
        self._stalled_until = 0.0
        self._ended = False
        self._changed = asyncio.Event()

    async def put(self, frame: bytes) -> None:
        """Waits while the pipe is full; frames after a break vanish."""
        while len(self._on_road) + len(self._inbox) >= PIPE_FRAMES and not self.broken:
            self._changed.clear()
            await self._changed.wait()
        if self.broken or self._ended:
            return
        plan, name = self._network.plan, self._name
        late = plan.amount(f"{name}.slow", 0.05, 2.0) if plan.hit(f"{name}.slow") else 0.0
        if plan.hit(f"{name}.stall"):
            self.stall(plan.amount(f"{name}.stall", 0.5, 40.0))
        if plan.hit(f"{name}.flip"):
            where = int(plan.amount(f"{name}.flip", 0, len(frame)))
            frame = frame[:where] + bytes([frame[where] ^ 0x40]) + frame[where + 1 :]
        self._dispatch(frame, late)
        if not _has_more(frame):
            self._repeat_late()
            if _is_sequenced(frame) and plan.hit(f"{name}.twice"):
                self._again.append((int(plan.amount(f"{name}.twice", 0, 4)), frame))

    def stall(self, seconds: float) -> None:
        """Nothing arrives for a while; what is sent meanwhile waits on the road."""
        loop = self._network.loop
        self._stalled_until = max(self._stalled_until, loop.time() + seconds)
        self._network.log(f"{self._label} stalls until {self._stalled_until:.3f}")
        loop.call_at(self._stalled_until, self._arrive)

    def release(self) -> None:
        """End a stall."""
        self._stalled_until = 0.0
        self._arrive()

    def end(self) -> None:
        """The writer is through: after what is on the road comes the end."""
        self._ended = True
        self._changed.set()

    def shatter(self) -> None:
        """The stream broke: what is on the road is lost."""
        self.broken = True
        self._on_road.clear()
        self._changed.set()

    async def get(self) -> bytes | None:
        """The next frame; None at the end. A broken pipe first gives what had arrived, then ConnectionLost."""
        while True:
            if self._inbox:
                self._changed.set()
                return self._inbox.popleft()
            if self.broken:
                raise ConnectionLost("the simulated stream broke", "stream")
            if self._ended and not self._on_road:
                return None
            self._changed.clear()
            await self._changed.wait()

    def _repeat_late(self) -> None:
        """Send the copies whose time has come; never between two parts of one body."""
        waiting, self._again = self._again, []
        for left, copy in waiting:
            if left:
                self._again.append((left - 1, copy))
            else:
                self._dispatch(copy, 0.0)

    def _dispatch(self, frame: bytes, late: float) -> None:
        loop = self._network.loop
        head = _head(frame)
        self._network.log(f"{self._label} {head.kind}.{head.seq} {len(frame)} B")
        self._latest = max(self._latest, loop.time() + self._network.latency() + late)
        self._on_road.append((self._latest, frame))
        loop.call_at(self._latest, self._arrive)

    def _arrive(self) -> None:
        # Timers of one moment run in any order: each delivers whatever is due from the front of the road.
        now = self._network.loop.time()
        if self.broken or now < self._stalled_until:
            return
        while self._on_road and self._on_road[0][0] <= now + 1e-9:
            self._inbox.append(self._on_road.popleft()[1])
        self._changed.set()


def _has_more(frame: bytes) -> bool:
    return _head(frame).more


def _head(frame: bytes) -> pb.Frame:
    """The envelope; an empty one where a byte was flipped in it."""
    try:
        return pb.Frame.FromString(frame)
    except DecodeError:
        return pb.Frame()


def _is_sequenced(frame: bytes) -> bool:
    """Whether a second copy of this frame is a duplicate that the protocol promises to drop."""
    head = _head(frame)
    opening = head.kind in (pb.OPEN, pb.OPENED) or (head.kind == pb.RESET and head.seq == 2)
    return head.seq > 0 and head.kind in REQUESTS | REPLIES and not head.more and not opening


class SimStream:
    """Two pipes and the handler at the server's end. Client side: `Transport`; `server_side`: `FrameStream`."""

    def __init__(self, network: SimNetwork, number: int) -> None:
        self.number = number
        self.c2s = SimPipe(network, "c2s", number)
        self.s2c = SimPipe(network, "s2c", number)
        self.handler: asyncio.Task[None] | None = None
        self._network = network
        self._closed = False

    async def send_frame(self, frame: bytes) -> None:
        if self.c2s.broken:
            raise ConnectionLost("the simulated stream broke", "stream")
        if self._network.plan.hit("c2s.cut"):
            self.break_both("c2s.cut")
            raise ConnectionLost("the simulated stream broke", "stream")
        await self.c2s.put(frame)

    async def recv_frame(self) -> bytes | None:
        """See Transport."""
        try:
            return await self.s2c.get()
        except ConnectionLost:
            if self._closed:
                return None
            raise

    async def close(self) -> None:
        """See Transport. A frame that arrives now is not read any more."""
        if not self._closed:
            self._closed = True
            self.c2s.end()
            self.s2c.shatter()

    def break_both(self, why: str, server_notices_s: float = 0.0) -> None:
        """The connection is gone; the server may find out later."""
        self._network.log(f"stream {self.number} breaks: {why}")
        self.s2c.shatter()
        if server_notices_s:
            self.c2s.stall(1e9)
            self._network.loop.call_later(server_notices_s, self._server_notices)
        else:
            self._server_notices()

    def _server_notices(self) -> None:
        self.c2s.shatter()
        # gRPC cancels the handler of a stream that broke, a moment after its read has ended.
        if self.handler is not None:
            self._network.loop.call_later(self._network.latency(), self.handler.cancel)


class ServerSide:
    """A stream as the env server's `FrameStream`."""

    needs_crc = False

    def __init__(self, stream: SimStream, network: SimNetwork) -> None:
        self._stream = stream
        self._network = network

    async def read(self) -> bytes | None:
        """As gRPC has it: a broken stream looks like one that has ended."""
        try:
            return await self._stream.c2s.get()
        except ConnectionLost:
            return None

    async def write(self, frame: bytes) -> None:
        if self._network.plan.hit("s2c.cut"):
            self._stream.break_both("s2c.cut")
        elif self._network.plan.hit("s2c.half"):
            self._stream.break_both("s2c.half", self._network.plan.amount("s2c.half", 0.5, 15.0))
        await self._stream.s2c.put(frame)

    async def abort(self, code: str, text: str) -> None:
        self._network.log(f"stream {self._stream.number} aborted by the server: {code} {text}")
        self._stream.s2c.shatter()
        self._stream.c2s.shatter()


Handler = Callable[[ServerSide], Awaitable[None]]
Describe = Callable[[pb.DescribeRequest], Awaitable[pb.DescribeReply]]


class SimNetwork:
    """Addresses, the servers that stand there, and all streams between."""

    def __init__(self, loop: SimLoop, plan: FaultPlan, seed: int, log: Log) -> None:
        self.loop = loop
        self.plan = plan
        self.log = log
        self._rng = random.Random(seed)
        self._servers: dict[str, tuple[asyncio.TaskGroup, Handler, Describe]] = {}
        self._streams_of: dict[str, list[SimStream]] = {}
        self._number = 0

    def latency(self) -> float:
        return self._rng.uniform(*LATENCY_S)

    def duration(self, low: float, high: float) -> float:
        """A duration from the run's seed."""
        return self._rng.uniform(low, high)

    def listen(self, address: str, group: asyncio.TaskGroup, handler: Handler, describe: Describe) -> None:
        """A server stands at `address`; its handlers run in `group`."""
        self._servers[address] = (group, handler, describe)

    def unlisten(self, address: str) -> None:
        """The server is gone, with every stream to it."""
        self._servers.pop(address, None)
        for stream in self._streams_of.pop(address, []):
            if not stream.c2s.broken:  # also one that the client has left, unheard behind a stall
                stream.break_both("server gone")

    def release(self) -> None:
        """End every stall; the server of a stream that broke unnoticed notices now."""
        for stream in [each for streams in self._streams_of.values() for each in streams]:
            stream.c2s.release()
            stream.s2c.release()

    def open_streams(self, address: str) -> list[SimStream]:
        return [stream for stream in self._streams_of.get(address, []) if not stream.s2c.broken]

    def connector(self, address: str, with_crc: bool = True) -> SimConnector:
        return SimConnector(self, address, with_crc)

    async def dial(self, address: str) -> SimStream:
        """A new stream. As with gRPC, only reading it shows that nobody was there."""
        self._number += 1
        stream = SimStream(self, self._number)
        server = self._servers.get(address)
        if server is None or self.plan.hit("dial.refused"):
            self.log(f"stream {stream.number} to {address} finds nobody")
            self.loop.call_later(self.latency(), stream.s2c.shatter)
            return stream
        await asyncio.sleep(self.latency())
        if self.plan.hit("dial.slow"):
            stream.c2s.stall(self.plan.amount("dial.slow", 0.5, 8.0))
        alive = [each for each in self._streams_of.get(address, []) if each.handler and not each.handler.done()]
        self._streams_of[address] = [*alive, stream]
        group, handler, _ = server
        stream.handler = group.create_task(self._handle(handler, stream), name=f"handler {stream.number}")
        return stream

    async def describe(self, address: str, request: pb.DescribeRequest) -> pb.DescribeReply:
        await asyncio.sleep(2 * self.latency())
        server = self._servers.get(address)
        if server is None or self.plan.hit("describe.fails"):
            raise ConnectionFailed(f"{address}: nobody there", "connect")
        return await server[2](request)

    async def _handle(self, handler: Handler, stream: SimStream) -> None:
        try:
            await handler(ServerSide(stream, self))
        except (asyncio.CancelledError, ExceptionGroup):
            if not stream.c2s.broken:
                stream.break_both("the handler gave up")
        finally:
            stream.s2c.end()


class SimConnector:
    """A client's way to one simulated env server."""

    def __init__(self, network: SimNetwork, address: str, with_crc: bool) -> None:
        self.address = address
        self.with_crc = with_crc
        self._network = network

    async def open_stream(self) -> SimStream:
        return await self._network.dial(self.address)

    async def describe(self, request: pb.DescribeRequest) -> pb.DescribeReply:
        return await self._network.describe(self.address, request)

    async def close(self) -> None:
        """Nothing is held."""
