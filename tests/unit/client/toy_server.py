"""An env server in memory for tests of the client: the wire's own ServerLane around a counting environment.

What it executed stays in `executed`, so that a test can compare it with what arrived. Knobs break it on purpose.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from asyncrl.errors import ConnectionFailed, ConnectionLost, RemoteProtocolError
from asyncrl.wire import handshake, requests, step_rows
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.envelope import FrameReader, Message, error_body, parse_body, to_frames
from asyncrl.wire.flags import FIRST, NO_TRANSITION, TERMINATED
from asyncrl.wire.lane_table import LaneState
from asyncrl.wire.server_lane import ServerLane
from asyncrl.wire.spaces import Node, SpaceSpec
from asyncrl.wire.spec import LaneSpec
from asyncrl.wire.step_rows import StepRows
from asyncrl.wire.tensors import Array

SPEC = LaneSpec(
    "toy",
    SpaceSpec((Node(pb.BOX, dtype=np.dtype("<i8"), shape=(3,)),)),
    SpaceSpec((Node(pb.DISCRETE, dtype=np.dtype("<i8"), n=1000),)),
)
EPISODE = 5


class ToyPipe:
    """One direction of a stream."""

    def __init__(self) -> None:
        self.frames: deque[bytes] = deque()
        self.ended = False
        self.broken = False
        self.held = False  # nothing arrives, and nobody is told
        self._changed = asyncio.Event()

    def put(self, frame: bytes) -> None:
        if not (self.ended or self.broken):
            self.frames.append(frame)
            self._changed.set()

    def change(self, **marks: bool) -> None:
        for name, value in marks.items():
            setattr(self, name, value)
        self._changed.set()

    async def get(self) -> bytes | None:
        while True:
            if self.broken:
                raise ConnectionLost("the toy stream broke")
            if self.frames and not self.held:
                return self.frames.popleft()
            if self.ended and not self.held:
                return None
            self._changed.clear()
            await self._changed.wait()


class ToyStream:
    """The client's Transport, and both pipes for the test."""

    def __init__(self) -> None:
        self.c2s, self.s2c = ToyPipe(), ToyPipe()
        self.closed = False

    async def send_frame(self, frame: bytes) -> None:
        if self.c2s.broken:
            raise ConnectionLost("the toy stream broke")
        self.c2s.put(frame)
        await asyncio.sleep(0.0005)  # time passes, also for lanes that are never idle

    async def recv_frame(self) -> bytes | None:
        try:
            return await self.s2c.get()
        except ConnectionLost:
            if self.closed:
                return None
            raise

    async def close(self) -> None:
        self.closed = True
        self.c2s.change(ended=True)
        self.s2c.change(broken=True)

    def snap(self) -> None:
        """The connection breaks; what is on the way is lost."""
        self.c2s.change(broken=True)
        self.s2c.change(broken=True)

    def hole(self) -> None:
        """Nothing arrives any more, in either direction, and nobody is told."""
        self.c2s.change(held=True)
        self.s2c.change(held=True)


class ToyLane:
    """B slots: obs = (fleet slot, incarnation, steps of the lane), reward = action; ends every EPISODE steps."""

    def __init__(self, server: ToyServer, request: pb.Open, number: int) -> None:
        self.protocol = ServerLane(server.max_in_flight, request.resumable)
        self.request = request
        self.lane_id = f"{server.boot_id}-{number}"
        self.stream: ToyStream | None = None
        self.executed: list[tuple[int, ...]] = []
        self.resets: list[requests.ResetRequest] = []
        self.released: list[list[int]] = []  # ids, by request
        self.waiting: deque[Message] = deque()
        self.count = 0
        self._server = server

    def take(self, message: Message, with_crc: bool) -> None:
        self.protocol.with_crc = with_crc
        delivered = self.protocol.receive(message)
        if delivered is None:
            return
        if delivered.kind == pb.PING:
            pong = pb.Pong(nonce=parse_body(pb.Ping, delivered.body).nonce, executed=self.protocol.answered)
            self.send(self.protocol.control(pb.PONG, pong.SerializeToString()))
        elif delivered.kind == pb.BYE:
            self._server.byes += 1
            self._server.lanes.pop(self.lane_id, None)
        else:
            self.waiting.append(delivered)
            if not self._server.hold_replies:
                self.answer_all()

    def answer_all(self) -> None:
        while self.waiting:
            request = self.waiting.popleft()
            kind, body = self._answer(request)
            if self._server.mangle is not None:
                body = self._server.mangle(kind, body)
            self.send(self.protocol.reply(kind, body))

    def send(self, frames: list[bytes]) -> None:
        for frame in frames:
            if self.stream is not None:
                self.stream.s2c.put(frame)

    def _answer(self, request: Message) -> tuple[int, bytes]:
        if request.kind == pb.OPEN:
            return self._opened()
        if self._server.refuse_next is not None:
            refused, self._server.refuse_next = self._server.refuse_next, None
            return pb.ERROR, refused
        if request.kind == pb.RESET:
            self.resets.append(requests.decode_reset(request.body, self.num_slots))
            flags = np.full(self.num_slots, FIRST | NO_TRANSITION, np.uint8)
            return pb.STEP_RESULT, step_rows.encode(self._rows(flags, np.zeros(self.num_slots)), SPEC)
        if request.kind == pb.RELEASE:
            self.released.append(list(parse_body(pb.Release, request.body).ids))
            return pb.RELEASED, pb.Released(released=len(self.released[-1])).SerializeToString()
        if request.kind == pb.RENDER:
            # Slot 1 has a large picture.
            side = 2000 if pb.Render.FromString(request.body).rows == b"\1\0\0\0" else 1
            image = pb.Image(row=0, height=side, width=side, channels=3, pixels=b"\1\2\3" * side * side)
            return pb.RENDERED, pb.Rendered(images=[image]).SerializeToString()
        (action,), crc = requests.decode_step(request.body, SPEC.action.leaves, self.num_slots)
        wrong = requests.check_actions([action], SPEC.action)
        if wrong is not None:
            return pb.ERROR, error_body("BAD_ACTION", wrong)
        self.count += 1
        self.executed.append(tuple(action.tolist()))
        end = self.count % EPISODE == 0
        rows = self._rows(np.full(self.num_slots, TERMINATED | FIRST if end else 0, np.uint8), action.astype(float))
        rows.action_crc = crc
        if end:
            rows.final_rows, rows.final_obs = step_rows.final_rows_of(rows.flags), [rows.obs[0].copy()]
        for change in self._server.rebuild:
            change(rows)
        self._server.rebuild.clear()
        return pb.STEP_RESULT, step_rows.encode(rows, SPEC)

    @property
    def num_slots(self) -> int:
        return len(self.request.fleet_slots)

    def _rows(self, flags: Array, rewards: Array) -> StepRows:
        count = np.full(self.num_slots, self.count)
        obs = np.stack([np.array(self.request.fleet_slots), np.array(self.request.incarnations), count], axis=1)
        return StepRows([obs.astype("<i8")], rewards.astype("<f8"), flags)

    def _opened(self) -> tuple[int, bytes]:
        server = self._server
        if server.refuse_open is not None:
            return pb.ERROR, server.refuse_open
        resumable = self.request.resumable
        spec = server.spec.to_proto()
        body = pb.Opened(
            protocol=handshake.version(),
            boot_id=server.boot_id,
            lane_id=self.lane_id,
            token=b"t" * 16,
            host=pb.SLOTS,
            spec=spec,
            spec_hash=server.spec.hash(),
            autoreset=pb.SAME_STEP,
            max_in_flight=server.max_in_flight,
            resume_window_ms=30_000 if resumable else 0,
        )
        return pb.OPENED, body.SerializeToString()


@dataclass
class ToyServer:
    """Use it as an async context manager around the client."""

    address: str = "toy:1"
    capacity: int = 64
    cores: int = 2
    max_in_flight: int = 4
    boot_id: str = "boot-1"
    with_crc: bool = True
    up: bool = True
    draining: bool = False
    spec: LaneSpec = SPEC
    alias: str = "toy"
    major: int = handshake.MAJOR
    hold_replies: bool = False
    refuse_open: bytes | None = None
    refuse_next: bytes | None = None  # the body of an ERROR that answers the next request
    mangle: Callable[[int, bytes], bytes] | None = None
    rebuild: list[Callable[[StepRows], None]] = field(default_factory=list)
    lanes: dict[str, ToyLane] = field(default_factory=dict)
    all_lanes: list[ToyLane] = field(default_factory=list)
    streams: list[ToyStream] = field(default_factory=list)
    byes: int = 0
    describes: int = 0
    dials: int = 0

    async def __aenter__(self) -> Self:
        self._group = asyncio.TaskGroup()
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.die()
        await self._group.__aexit__(None, None, None)

    # Connector

    async def open_stream(self) -> ToyStream:
        await asyncio.sleep(0)
        self.dials += 1
        stream = ToyStream()
        if not self.up:
            stream.snap()
            return stream
        self.streams.append(stream)
        self._group.create_task(self._serve(stream))
        return stream

    async def describe(self, _request: pb.DescribeRequest) -> pb.DescribeReply:
        await asyncio.sleep(0.001)
        self.describes += 1
        if not self.up:
            raise ConnectionFailed(f"{self.address}: nobody there", "tcp")
        return pb.DescribeReply(
            protocol=pb.Version(major=self.major),
            boot_id=self.boot_id,
            capacity=self.capacity,
            used=sum(lane.num_slots for lane in self.lanes.values()),
            cores=self.cores,
            envs=[pb.EnvOffer(alias=self.alias)],
            draining=self.draining,
        )

    async def close(self) -> None: ...

    # what tests do to it

    def die(self) -> None:
        """The process is killed: every stream breaks and every lane is gone."""
        self.up = False
        self.lanes.clear()
        for stream in self.streams:
            stream.snap()
        self.streams.clear()

    def restart(self, boot_id: str) -> None:
        self.up, self.boot_id = True, boot_id

    def snap_all(self) -> None:
        for stream in self.streams:
            stream.snap()
        self.streams.clear()

    def push(self, kind: int, body: bytes) -> None:
        """A control frame on every lane that a stream carries."""
        for lane in list(self.lanes.values()):
            if lane.stream is not None:
                lane.send(lane.protocol.control(kind, body))

    def lose_lanes(self, cause: str) -> None:
        self.push(pb.ERROR, error_body("LANE_LOST", "it died", retryable=True, cause=cause))
        self.lanes.clear()

    async def _serve(self, stream: ToyStream) -> None:
        reader = FrameReader(1 << 24)
        lane: ToyLane | None = None
        try:
            while (data := await stream.c2s.get()) is not None:
                message = reader.feed(data)
                if message is None:
                    continue
                if lane is None:
                    lane = self._lane_for(message, stream)
                    if lane is None:
                        refused = Message(pb.ERROR, 0, error_body("LANE_UNKNOWN", "no such lane"))
                        stream.s2c.put(to_frames(refused, bool(reader.crc))[0])
                        continue
                if message.kind == pb.RESUME:
                    lane.send(lane.protocol.resume(parse_body(pb.Resume, message.body).ack, bool(reader.crc)))
                else:
                    lane.take(message, bool(reader.crc))
        except (ConnectionLost, RemoteProtocolError):
            pass
        finally:
            stream.s2c.change(ended=True)
            if lane is not None and lane.stream is stream:
                lane.stream = None
                if lane.protocol.state is not LaneState.CLOSED:
                    lane.protocol.stream_broke()
                if lane.protocol.state is LaneState.CLOSED:
                    self.lanes.pop(lane.lane_id, None)

    def _lane_for(self, first: Message, stream: ToyStream) -> ToyLane | None:
        if first.kind == pb.RESUME:
            lane = self.lanes.get(parse_body(pb.Resume, first.body).lane_id)
        else:
            lane = ToyLane(self, parse_body(pb.Open, first.body), len(self.all_lanes))
            self.lanes[lane.lane_id] = lane
            self.all_lanes.append(lane)
        if lane is not None:
            lane.stream = stream
        return lane
