"""In-memory ends for tests of the relay: a stream, a client on it, and a lane process that answers when told to."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import numpy as np

from asyncrl.wire import handshake
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.client_lane import ClientLane
from asyncrl.wire.envelope import FrameReader, Message
from asyncrl.wire.lane_table import REPLY_OF
from asyncrl.wire.spaces import Node, SpaceSpec
from asyncrl.wire.spec import LaneSpec

I8 = np.dtype("<i8")
SPEC = LaneSpec("toy", SpaceSpec((Node(pb.DISCRETE, dtype=I8, n=9),)), SpaceSpec((Node(pb.DISCRETE, dtype=I8, n=3),)))


class MemoryBackend:
    """A lane process that only remembers what it was sent; `answer` replies to the oldest request."""

    def __init__(self) -> None:
        self.pid = 0
        self.on_message: Callable[[int, int, bytes], None] = lambda *_: None
        self.exited: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.requests: list[tuple[int, int, bytes]] = []
        self.deadlines_ms: list[int] = []  # of the requests
        self.unanswered: deque[tuple[int, int]] = deque()
        self.cancelled: list[bytes] = []
        self.dumps = 0
        self.called = ""
        self.closed = False

    def send(self, kind: int, seq: int, body: bytes, deadline_ms: int = 0) -> None:
        if kind == pb.CANCEL:
            self.cancelled.append(body)
            return
        self.requests.append((kind, seq, body))
        self.deadlines_ms.append(deadline_ms)
        self.unanswered.append((kind, seq))
        if kind == pb.OPEN:
            self.answer(pb.Opened(spec=SPEC.to_proto()).SerializeToString())

    def answer(self, body: bytes = b"", kind: int | None = None) -> None:
        asked, seq = self.unanswered.popleft()
        self.on_message(REPLY_OF[asked] if kind is None else kind, seq, body)

    def die(self, cause: str) -> None:
        if not self.exited.done():
            self.exited.set_result(cause)

    def call(self, lane: str) -> None:
        self.called = lane

    def log_tail(self) -> bytes:
        return b"the last words"

    def dump_stacks(self) -> None:
        self.dumps += 1

    def kill(self) -> None:
        self.die("crash(SIGKILL)")

    def close(self) -> None:
        self.closed = True
        self.die("exit(0)")


class MemoryStream:
    """The server's view of a stream whose client is the test."""

    needs_crc = False

    def __init__(self) -> None:
        self.to_server: asyncio.Queue[bytes | None] = asyncio.Queue(1000)
        self.to_client: asyncio.Queue[bytes] = asyncio.Queue(1000)
        self.aborted: tuple[str, str] | None = None

    async def read(self) -> bytes | None:
        return await self.to_server.get()

    async def write(self, frame: bytes) -> None:
        self.to_client.put_nowait(frame)

    async def abort(self, code: str, text: str) -> None:
        self.aborted = (code, text)


class MemoryClient:
    """A `ClientLane` on the other side of a `MemoryStream`."""

    def __init__(self, with_crc: bool = False) -> None:
        self.lane = ClientLane(with_crc)
        self.stream = MemoryStream()
        self.reader = FrameReader(1 << 24, with_crc)
        self.delivered: list[Message] = []

    def open(self, *, resumable: bool = True, **fields: object) -> None:
        body = open_request(resumable=resumable, **fields)
        _, frames = self.lane.request(pb.OPEN, body.SerializeToString())
        self.send(frames)

    def step(self) -> None:
        _, frames = self.lane.request(pb.STEP, b"")
        self.send(frames)

    def send(self, frames: list[bytes]) -> None:
        for frame in frames:
            self.stream.to_server.put_nowait(frame)

    def hang_up(self) -> None:
        self.lane.stream_broke()
        self.stream.to_server.put_nowait(None)

    def dial_again(self, epoch: int = 0) -> None:
        self.stream = MemoryStream()
        self.reader = FrameReader(1 << 24, self.reader.crc)
        self.send(self.lane.resume(epoch))

    def pump(self) -> list[Message]:
        """Take in what the server has written so far; the messages that were new."""
        fresh: list[Message] = []
        while not self.stream.to_client.empty():
            message = self.reader.feed(self.stream.to_client.get_nowait())
            received = self.lane.receive(message) if message is not None else None
            if received is None:
                continue
            if received.kind == pb.RESUMED:
                self.send(self.lane.frames_after_resume(pb.Resumed.FromString(received.body)))
            fresh.append(received)
        self.delivered += fresh
        return fresh


def open_request(resumable: bool = True, **fields: object) -> pb.Open:
    request = pb.Open(
        protocol=handshake.version(), run_id="run", env="toy", fleet_slots=[0], incarnations=[0], resumable=resumable
    )
    for name, value in fields.items():
        if isinstance(value, list):
            del getattr(request, name)[:]
            getattr(request, name).extend(value)
        elif name == "protocol":
            assert isinstance(value, pb.Version)
            request.protocol.CopyFrom(value)
        else:
            setattr(request, name, value)
    return request


async def settle(turns: int = 20) -> None:
    """Let every callback run that is due."""
    for _ in range(turns):
        await asyncio.sleep(0)
