"""A small env server in memory, and the faults that it can be given.

It serves one environment: each slot draws a number per step from a generator of its own, and shows a stack of the last
DEPTH states; an episode ends when a draw is small, or is truncated after LIMIT steps. The protocol's order is kept by
`wire.server_lane`; what is wrong on purpose stands where it goes wrong, as `if self.has("fault")`.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from asyncrl.errors import ConnectionFailed, ConnectionLost, RemoteProtocolError
from asyncrl.wire import handshake, requests, step_rows
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.changes import ChangeEncoder
from asyncrl.wire.envelope import FrameReader, Message, error_body, parse_body, to_frames
from asyncrl.wire.flags import FIRST, NO_TRANSITION, TERMINATED, TRUNCATED
from asyncrl.wire.frame_stack import StackEncoder
from asyncrl.wire.lane_table import REQUESTS, LaneState
from asyncrl.wire.server_lane import ServerLane
from asyncrl.wire.spaces import Node, SpaceSpec
from asyncrl.wire.spec import LaneSpec
from asyncrl.wire.step_rows import StepRows
from asyncrl.wire.tensors import Array
from tests.unit.conformance.tiny_looking import looked_ahead

ENV: Final = "tiny"
LIMIT: Final = 12
DEPTH: Final = 3
CAPACITY: Final = 16
F4, F8 = np.dtype("<f4"), np.dtype("<f8")
SPEC: Final = LaneSpec(
    env=ENV,
    observation=SpaceSpec((Node(pb.BOX, dtype=F8, shape=(DEPTH, 3)),)),
    action=SpaceSpec(
        (
            Node(pb.DICT),
            Node(pb.DISCRETE, 0, "choice", np.dtype("<i8"), n=3),
            Node(pb.BOX, 0, "force", F4, (1,)),
        )
    ),
    max_episode_steps=LIMIT,
    render_mode="rgb_array",
    build="tiny 1",
    stack_leaf=0,
)


class TinySlot:
    """One environment."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.t = 0
        self.x = 0.0
        self.ended = False
        self.frames = np.zeros((DEPTH, 3))

    def reset(self, seed: int | None) -> Array:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.t, self.x, self.ended = 0, float(self.rng.random()), False
        self.frames[:] = self._frame()
        return self.obs()

    def step(self, choice: int, force: float) -> tuple[Array, float, int]:
        self.t += 1
        draw = float(self.rng.random())
        self.x += draw * (1 + choice) + force
        self.frames = np.concatenate([self.frames[1:], self._frame()[None]])
        flag = TERMINATED if draw < 0.04 else TRUNCATED if self.t == LIMIT else 0
        return self.obs(), self.x, flag

    def obs(self) -> Array:
        return self.frames.copy()

    def _frame(self) -> Array:
        return np.array([self.x, self.t, 1.0])


@dataclass
class TinyLane:
    """A lane that outlives its streams."""

    lane_id: str
    token: bytes
    open: pb.Open
    protocol: ServerLane
    slots: list[TinySlot]
    obs: Array  # [B, DEPTH, 3]
    stack: StackEncoder | None = None
    changes: ChangeEncoder | None = None
    saved: dict[int, TinySlot] = field(default_factory=dict)
    held_back: list[tuple[int, int, bytes]] = field(default_factory=list)


class TinyServer:
    """Also its own `Connector`. `faults` name what it does wrong."""

    address = "tiny"
    with_crc = True

    def __init__(self, *faults: str) -> None:
        self.faults = frozenset(faults)
        self.lanes: dict[str, TinyLane] = {}
        self.group: asyncio.TaskGroup | None = None
        self.opened = 0
        self.is_dead = False
        self.streams: dict[int, TinyStream] = {}  # by the number of the lane in a fleet of lanes with two slots

    def has(self, fault: str) -> bool:
        return fault in self.faults

    async def __aenter__(self) -> TinyServer:
        self.group = asyncio.TaskGroup()
        await self.group.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        assert self.group is not None
        await self.group.__aexit__(None, None, None)

    # ------------------------------------------------------------------ connector

    async def open_stream(self) -> TinyStream:
        assert self.group is not None
        stream = TinyStream()
        if self.is_dead:
            stream.to_client.put_nowait(ConnectionLost("tiny: gone"))
        else:
            self.group.create_task(TinyHandler(self, stream).run())
        return stream

    async def describe(self, request: pb.DescribeRequest) -> pb.DescribeReply:
        if self.is_dead:
            raise ConnectionFailed("tiny: gone", "tcp")
        used = sum(len(lane.slots) for lane in self.lanes.values())
        reply = pb.DescribeReply(protocol=handshake.version(), boot_id="boot", capacity=CAPACITY, used=used)
        offer = reply.envs.add(alias=ENV)
        if request.env:
            offer.spec.CopyFrom(SPEC.to_proto())
            offer.spec_hash = SPEC.hash()
        if self.has("hides its alias"):
            offer.alias = "other"
        return reply

    async def close(self) -> None:
        pass


class TinyStream:
    """Both ends of one stream."""

    def __init__(self) -> None:
        self.to_server: asyncio.Queue[bytes | None] = asyncio.Queue(4096)
        self.to_client: asyncio.Queue[bytes | Exception | None] = asyncio.Queue(4096)
        self._over = False

    async def send_frame(self, frame: bytes) -> None:
        if self._over:
            raise ConnectionLost("tiny: closed")
        await self.to_server.put(frame)

    async def recv_frame(self) -> bytes | None:
        if self._over:
            return None
        item = await self.to_client.get()
        if item is None or isinstance(item, Exception):
            self._over = True
        if isinstance(item, Exception):
            raise item
        return item

    async def drop(self) -> None:
        """Break the stream as a network does."""
        self.to_client.put_nowait(ConnectionLost("tiny: cut"))
        self.to_server.put_nowait(None)

    async def close(self) -> None:
        if not self._over:
            self._over = True
            self.to_client.put_nowait(None)
        self.to_server.put_nowait(None)


class TinyHandler:
    """The server's side of one stream."""

    def __init__(self, server: TinyServer, stream: TinyStream) -> None:
        self.server, self.has = server, server.has
        self.stream = stream
        self.reader = FrameReader(1 << 20)
        self.lane: TinyLane | None = None

    async def run(self) -> None:
        try:
            while (data := await self.stream.to_server.get()) is not None:
                message = self._read(data)
                if message is not None and self._take(message):
                    break
            end: Exception | None = None
        except RemoteProtocolError as error:
            if self.has("dies of noise"):
                self.server.is_dead = True
            if self.has("ignores noise"):
                await self.run()
                return
            self._control(pb.ERROR, error_body(error.code, str(error)))
            end = ConnectionLost(f"tiny: {error.code}")
            self._release()
        if self.lane is not None:
            self.lane.protocol.stream_broke()
            if not self.lane.protocol.resumable:
                self._release()
        self.stream.to_client.put_nowait(end)

    def _read(self, data: bytes) -> Message | None:
        if self.has("ignores the crc"):
            frame = pb.Frame.FromString(data)
            frame.ClearField("crc")
            data = frame.SerializeToString()
            self.reader.crc = False
        if self.has("has no bounds"):
            self.reader.limit = 1 << 40
        return self.reader.feed(data)

    def _put(self, frames: list[bytes]) -> None:
        for frame in frames:
            self.stream.to_client.put_nowait(frame)

    def _control(self, kind: int, body: bytes, seq: int = 0) -> None:
        self._put(to_frames(Message(kind, seq, body), True))

    def _release(self) -> None:
        if self.lane is not None and not self.has("keeps slots"):
            self.server.lanes.pop(self.lane.lane_id, None)

    # ------------------------------------------------------------------ messages

    def _take(self, message: Message) -> bool:
        """Whether the stream is over."""
        if self.lane is None:
            return self._first(message)
        lane = self.lane
        if self.has("never ends for flow"):
            message = message._replace(ack=lane.protocol.answered)
        known = lane.protocol.received
        taken = lane.protocol.receive(message)
        if taken is None:
            if self.has("executes twice") and message.seq <= known and message.kind == pb.STEP:
                self._execute(lane, message)  # the reply is dropped, what it did is not
            return False
        if message.kind in REQUESTS:
            if self.has("waits for the reset") and message.kind == pb.RESET and message.ack == 0:
                return False
            if self.has("forgets to forget") and message.seq > 10:
                raise RemoteProtocolError("too many", "FLOW_VIOLATION")
            self._answer(lane, message)
        elif message.kind == pb.PING:
            nonce = parse_body(pb.Ping, message.body).nonce + self.has("another nonce")
            pong = pb.Pong(nonce=nonce, executed=lane.protocol.answered)
            self._put(lane.protocol.control(pb.PONG, pong.SerializeToString()))
        elif message.kind == pb.BYE:
            self._release()
            if self.has("falls over a second bye") and not self.stream.to_server.empty() and self._second_bye():
                self.server.is_dead = True
            return True
        return False

    def _second_bye(self) -> bool:
        data = self.stream.to_server.get_nowait()
        return data is not None and pb.Frame.FromString(data).kind == pb.BYE

    def _first(self, message: Message) -> bool:
        if message.kind == pb.RESUME:
            return self._resume(parse_body(pb.Resume, message.body))
        if message.kind == pb.BYE:
            return True
        if message.kind != pb.OPEN:
            raise RemoteProtocolError("OPEN is due")
        request = parse_body(pb.Open, message.body)
        refused = self._refused(request)
        if refused is not None:
            self._control(pb.ERROR, error_body(*refused), message.seq)
            return True
        server = self.server
        server.opened += 1
        slots = [TinySlot() for _ in request.fleet_slots]
        protocol = ServerLane(4, request.resumable)
        token = b"t" * 16 if self.has("one token for all") else hashlib.md5(str(server.opened).encode()).digest()
        self.lane = TinyLane(str(server.opened), token, request, protocol, slots, np.zeros((len(slots), DEPTH, 3)))
        self.lane.stack = StackEncoder() if pb.FRAME_STACK in request.features else None
        self.lane.changes = ChangeEncoder() if pb.CHANGES in request.features else None
        server.lanes[self.lane.lane_id] = self.lane
        server.streams[request.fleet_slots[0] // 2] = self.stream
        protocol.with_crc = True
        protocol.receive(message)
        self._put(protocol.reply(pb.OPENED, self._opened(self.lane).SerializeToString()))
        return False

    def _refused(self, request: pb.Open) -> tuple[str, str] | None:
        skew = handshake.skew(request.protocol, "client")
        if skew is not None and not self.has("takes any version"):
            return ("INTERNAL", skew) if self.has("calls skew internal") else ("VERSION_SKEW", skew)
        if request.env != ENV and not self.has("takes any alias"):
            return "UNKNOWN_ENV", "no" if self.has("keeps its aliases secret") else f"there is {ENV}"
        try:
            requests.from_json(request.kwargs_json, "kwargs")
        except RemoteProtocolError as error:
            return None if self.has("takes any kwargs") else ("BAD_KWARGS", str(error))
        return None

    def _opened(self, lane: TinyLane) -> pb.Opened:
        features = set(lane.open.features) & {pb.RESUME_LANES, pb.FRAME_STACK, pb.SNAPSHOTS, pb.RENDERING, pb.CHANGES}
        spec_hash = hashlib.sha256(lane.token).digest() if self.has("another hash each time") else SPEC.hash()
        return pb.Opened(
            protocol=handshake.version(),
            features=[*features, *([1000] if self.has("claims the future") else [])],  # type: ignore[list-item]
            boot_id="boot",
            lane_id=lane.lane_id,
            token=lane.token,
            host=pb.SLOTS,
            spec=SPEC.to_proto(),
            spec_hash=spec_hash,
            autoreset=lane.open.autoreset,
            max_in_flight=4,
            resume_window_ms=30_000 if lane.open.resumable or self.has("always a window") else 0,
            snapshot_support=pb.SNAPSHOT_EXACT if pb.SNAPSHOTS in features else pb.SNAPSHOT_NONE,
            per_slot_seeds=True,
            masked_reset=True,
        )

    def _resume(self, resume: pb.Resume) -> bool:
        lane = self.server.lanes.get(resume.lane_id)
        fits = lane is not None and (resume.token == lane.token or self.has("asks for no token"))
        if lane is None or not fits or not lane.protocol.resumable:
            self._control(pb.ERROR, error_body("LANE_UNKNOWN", "no such lane"))
            return True
        if lane.protocol.state is not LaneState.DETACHED:
            lane.protocol.stream_broke()
        self.lane = lane
        frames = lane.protocol.resume(resume.ack, True)
        self._put(frames[:1] if self.has("forgets replies") else frames)
        return False

    # ------------------------------------------------------------------ requests

    def _answer(self, lane: TinyLane, message: Message) -> None:
        kind, body = self._execute(lane, message)
        if self.has("answers out of order") and lane.protocol.received - message.ack > 1:
            lane.protocol.reply(kind, body)
            lane.held_back.append((message.seq, kind, body))
            if len(lane.held_back) == 2:
                for seq, held_kind, held_body in reversed(lane.held_back):
                    self._control(held_kind, held_body, seq)
                lane.held_back = []
            return
        self._put(lane.protocol.reply(kind, body))

    def _execute(self, lane: TinyLane, message: Message) -> tuple[int, bytes]:
        """The reply's kind and body."""
        try:
            if message.kind == pb.RESET:
                return pb.STEP_RESULT, self._encode(lane, self._reset(lane, message.body))
            if message.kind == pb.STEP:
                return pb.STEP_RESULT, self._encode(lane, self._step(lane, message.body))
            if message.kind == pb.SNAPSHOT and pb.SNAPSHOTS in lane.open.features:
                wish = parse_body(pb.Snapshot, message.body)
                for row, name in zip(wish.rows, wish.ids, strict=True):
                    lane.saved[name] = copy.deepcopy(lane.slots[row])
                status = [pb.EntryStatus()] * len(wish.ids)
                return pb.SNAPSHOT_RESULT, pb.SnapshotResult(status=status).SerializeToString()
            if message.kind == pb.RESTORE and pb.SNAPSHOTS in lane.open.features:
                return pb.STEP_RESULT, self._encode(lane, self._restore(lane, parse_body(pb.Restore, message.body)))
            if message.kind in (pb.SIMULATE, pb.RELEASE) and pb.SNAPSHOTS in lane.open.features:
                return looked_ahead(lane, message, SPEC, self.server.faults)
            if message.kind == pb.RENDER and pb.RENDERING in lane.open.features:
                image = pb.Image(
                    row=1, height=2, width=2 + self.has("claims a larger image"), channels=3, pixels=bytes(12)
                )
                return pb.RENDERED, pb.Rendered(images=[image]).SerializeToString()
        except RemoteProtocolError as error:
            return pb.ERROR, error_body(error.code, str(error))
        if self.has("ends for what it lacks"):
            raise RemoteProtocolError("not here")
        return pb.ERROR, error_body("UNSUPPORTED", "not here")

    def _encode(self, lane: TinyLane, rows: StepRows) -> bytes:
        if lane.stack is not None and self.has("shows the frame before"):
            rows.obs[0] = np.roll(rows.obs[0], 1, axis=1)
        body = step_rows.encode(rows, SPEC, lane.stack, lane.changes)
        if self.has("tells changes backwards"):
            message = parse_body(pb.StepResult, body)
            for each in message.changed:
                each.words = each.words[::-1]
            body = message.SerializeToString()
        if lane.stack is not None and self.has("sends no stack whole"):
            message = parse_body(pb.StepResult, body)
            message.stack_rows = message.stack_obs = b""
            body = message.SerializeToString()
        return body

    def _reset(self, lane: TinyLane, body: bytes) -> StepRows:
        request = requests.decode_reset(body, len(lane.slots))
        flags = np.full(len(lane.slots), FIRST | NO_TRANSITION, np.uint8)
        for row, slot in enumerate(lane.slots):
            if request.mask is not None and not request.mask[row] and not self.has("ignores the mask"):
                flags[row] = NO_TRANSITION
                continue
            if request.mask is not None and not request.mask[row]:
                flags[row] = NO_TRANSITION
            seed = None if request.seeds is None else request.seeds[row]
            if self.has("ignores seeds"):
                seed = int(np.random.default_rng().integers(1000))
            if self.has("ignores resets") and slot.t:
                continue
            lane.obs[row] = slot.reset(seed)
        if self.has("resets without flags"):
            flags &= ~np.uint8(NO_TRANSITION)
        rewards = np.full(len(flags), 1.0 if self.has("rewards resets") else 0.0)
        return StepRows([lane.obs.copy()], rewards, flags)

    def _step(self, lane: TinyLane, body: bytes) -> StepRows:
        count = len(lane.slots)
        if self.has("pads actions"):
            body = _padded(body, count)
        if self.has("ignores action_crc"):
            body = _padded(body, count)
        action, crc = requests.decode_step(body, SPEC.action.leaves, count)
        wrong = requests.check_actions(action, SPEC.action)
        if wrong is not None and not self.has("takes any choice" if "'choice'" in wrong else "takes NaN"):
            if self.has("executes what it refuses"):
                self._move(lane, action)
            raise RemoteProtocolError(wrong, "BAD_ACTION")
        rows = self._move(lane, action)
        rows.action_crc = crc ^ self.has("echoes another crc")
        return rows

    def _move(self, lane: TinyLane, action: list[Array]) -> StepRows:
        count = len(lane.slots)
        rewards, flags = np.zeros(count), np.zeros(count, np.uint8)
        finals: list[Array] = []
        mode = lane.open.autoreset
        for row, slot in enumerate(lane.slots):
            if slot.ended:
                if mode == pb.NEXT_STEP or self.has("resets unasked"):
                    lane.obs[row] = slot.reset(None)
                    flags[row] = FIRST | NO_TRANSITION
                else:
                    flags[row] = NO_TRANSITION
                continue
            lane.obs[row], rewards[row], flag = slot.step(int(action[0][row]), float(action[1][row, 0]))
            if flag == TRUNCATED and self.has("truncates as terminated"):
                flag = TERMINATED
            if flag == TRUNCATED and self.has("never truncates"):
                flag = 0
            flags[row] = flag
            if not flag:
                continue
            if mode == pb.SAME_STEP:
                last = lane.obs[row].copy()
                lane.obs[row] = slot.reset(None)
                finals.append(lane.obs[row].copy() if self.has("shows the first obs as final") else last)
                if self.has("shows the final obs as first"):
                    lane.obs[row] = last
                flags[row] |= FIRST
            else:
                slot.ended = True
        if self.has("repeats ends"):
            flags[flags == 0] = TERMINATED
        rows = StepRows([lane.obs.copy()], rewards, flags)
        rows.final_rows = step_rows.final_rows_of(flags)
        rows.final_obs = [np.stack(finals)] if finals else []
        return rows

    def _restore(self, lane: TinyLane, wish: pb.Restore) -> StepRows:
        slot = lane.slots[wish.row]
        if (wish.expect_incarnation, wish.expect_t) != (0, slot.t) and not self.has("restores the stale"):
            raise RemoteProtocolError("stale", "STALE")
        if wish.id not in lane.saved:
            raise RemoteProtocolError("gone", "SNAPSHOT_GONE")
        saved = copy.deepcopy(lane.saved[wish.id])
        if self.has("forgets the generator"):
            saved.rng = slot.rng
        lane.slots[wish.row] = saved
        lane.obs[wish.row] = saved.obs()
        flags = np.full(len(lane.slots), FIRST | NO_TRANSITION, np.uint8)
        return StepRows([lane.obs.copy()], np.zeros(len(flags)), flags)


def _padded(body: bytes, count: int) -> bytes:
    """An action whose arrays were cut or filled up with zeros until they fit."""
    parts = [*parse_body(pb.Step, body).action, b"", b""]
    sizes = [8 * count, 4 * count]
    fitting: list[Any] = [part[:size].ljust(size, b"\0") for part, size in zip(parts, sizes, strict=False)]
    leaves = [np.frombuffer(fitting[0], "<i8"), np.frombuffer(fitting[1], "<f4").reshape(count, 1)]
    return requests.encode_step(leaves, SPEC.action.leaves, count)[0]
