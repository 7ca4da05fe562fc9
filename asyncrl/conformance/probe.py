"""A lane client that may do wrong things on purpose: it counts for itself and believes nothing.

One permanent reader per stream; waits have deadlines, reads have none (a read that is cancelled breaks the stream).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from asyncrl.client.seams import Transport
from asyncrl.conformance.verdicts import Failed
from asyncrl.errors import ConnectionFailed, RemoteProtocolError
from asyncrl.wire import requests, step_rows
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.changes import ChangeDecoder
from asyncrl.wire.envelope import FrameReader, Message, kind_name, parse_body, to_frames
from asyncrl.wire.flags import RowTracker
from asyncrl.wire.frame_stack import StackDecoder, agreed_decoder
from asyncrl.wire.lane_table import REQUESTS
from asyncrl.wire.requests import ResetRequest
from asyncrl.wire.spec import LaneSpec
from asyncrl.wire.step_rows import StepRows
from asyncrl.wire.tensors import Array

ANSWER_S = 20.0
MAX_BODY: Final = 256 * 1024 * 1024
MAX_QUEUED: Final = 1024  # messages; a server that sends more unasked is stopped from being read


@dataclass(frozen=True)
class Ended:
    """The stream is over; `reason` says how, in words."""

    reason: str


@dataclass
class Probe:
    """One stream. `seq` and `ack` are those of the last request and reply; both may be set to anything."""

    transport: Transport
    with_crc: bool
    seq: int = 0
    ack: int = 0
    opened: pb.Opened = field(default_factory=pb.Opened)
    spec: LaneSpec | None = None
    num_slots: int = 0
    events: list[pb.Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._inbox: asyncio.Queue[Message | Ended] = asyncio.Queue(MAX_QUEUED)
        self.tracker = RowTracker(0)
        self._stack: StackDecoder | None = None
        self._changes: ChangeDecoder | None = None

    # ------------------------------------------------------------------ frames

    async def read(self) -> None:
        """The reader; ends with the stream."""
        reader = FrameReader(MAX_BODY)
        try:
            while (data := await self.transport.recv_frame()) is not None:
                message = reader.feed(data)
                if message is not None:
                    await self._inbox.put(message)
            await self._inbox.put(Ended("the server ended the stream"))
        except (ConnectionFailed, RemoteProtocolError) as error:
            await self._inbox.put(Ended(str(error)))

    async def send(self, kind: int, body: bytes = b"", seq: int | None = None) -> int:
        """One message; requests count `seq` up unless one is given. Gives the seq."""
        if seq is None:
            seq = self.seq + 1 if kind in REQUESTS else 0
            self.seq = max(self.seq, seq)
        for frame in to_frames(Message(kind, seq, body, self.ack, 30_000 if kind in REQUESTS else 0), self.with_crc):
            await self.send_raw(frame)
        return seq

    async def send_raw(self, data: bytes) -> None:
        """Any bytes as one gRPC message. A stream that has ended already is not the sender's business."""
        try:
            await self.transport.send_frame(data)
        except ConnectionFailed:
            return

    async def receive(self, within_s: float | None = None) -> Message | Ended:
        """The next message that is no event, or the end. Failed after `within_s`, ANSWER_S where it is None."""
        within_s = ANSWER_S if within_s is None else within_s
        while True:
            try:
                async with asyncio.timeout(within_s):
                    message = await self._inbox.get()
            except TimeoutError:
                raise Failed(f"nothing came within {within_s:g} s") from None
            if isinstance(message, Message) and message.kind == pb.EVENT:
                self.events.append(parse_body(pb.Event, message.body))
                continue
            if isinstance(message, Message) and message.seq:
                self.ack = max(self.ack, message.seq)
            return message

    async def answer(self, kind: int, seq: int) -> Message:
        """The next message, which has to be the reply `kind` to request `seq`."""
        message = await self.receive()
        if isinstance(message, Ended):
            raise Failed(f"{kind_name(kind)} to request {seq} was due, but the stream ended: {message.reason}")
        if message.kind == pb.ERROR and kind != pb.ERROR:
            error = parse_body(pb.Error, message.body)
            raise Failed(f"{kind_name(kind)} to request {seq} was due, not ERROR {_code(error)}: {error.text}")
        if (message.kind, message.seq) != (kind, seq):
            raise Failed(
                f"{kind_name(kind)} to request {seq} was due, not {kind_name(message.kind)} with seq {message.seq}"
            )
        return message

    async def refusal(self, seq: int, *codes: str) -> pb.Error:
        """The next message, which has to be an ERROR with one of these codes (any, if none is given)."""
        error = parse_body(pb.Error, (await self.answer(pb.ERROR, seq)).body)
        if codes and _code(error) not in codes:
            raise Failed(f"ERROR {' or '.join(codes)} was due, not {_code(error)}: {error.text}")
        if not error.text:
            raise Failed(f"ERROR {_code(error)} without a text: say what happened and what to do")
        return error

    async def end(self) -> str:
        """Read to the end of the stream; the ERROR codes on the way, and how it ended."""
        seen: list[str] = []
        while True:
            message = await self.receive()
            if isinstance(message, Ended):
                return " ".join([*seen, message.reason])
            if message.kind == pb.ERROR:
                seen.append(_code(parse_body(pb.Error, message.body)))

    # ------------------------------------------------------------------ a lane

    async def open(self, request: pb.Open) -> pb.Opened:
        """OPEN and its reply."""
        seq = await self.send(pb.OPEN, request.SerializeToString())
        return self.take_opened(await self.answer(pb.OPENED, seq), len(request.fleet_slots))

    def take_opened(self, message: Message, num_slots: int) -> pb.Opened:
        self.opened = parse_body(pb.Opened, message.body)
        self.spec = LaneSpec.from_proto(self.opened.spec)
        self.num_slots = num_slots
        self.tracker = RowTracker(num_slots)
        self._stack = agreed_decoder(self.opened, self.spec, num_slots)
        self._changes = ChangeDecoder() if pb.CHANGES in self.opened.features else None
        return self.opened

    @property
    def lane_spec(self) -> LaneSpec:
        """Of the lane that was opened here."""
        if self.spec is None:
            raise Failed("the lane never opened")
        return self.spec

    async def reset(self, mask: Array | None = None, seeds: Sequence[int] | None = None) -> StepRows:
        """RESET and its rows, whose flags are checked against the row table."""
        body = requests.encode_reset(ResetRequest(mask, None if seeds is None else list(seeds), None))
        return self.take_rows(await self.answer(pb.STEP_RESULT, await self.send(pb.RESET, body)))

    async def step(self, action: Sequence[Array]) -> StepRows:
        """STEP and its rows, checked as in `reset`; the action's CRC has to come back."""
        seq, crc = await self.send_step(action)
        return self.take_rows(await self.answer(pb.STEP_RESULT, seq), crc)

    async def send_step(self, action: Sequence[Array]) -> tuple[int, int]:
        """STEP without waiting: its seq, and the CRC that its rows must echo."""
        body, crc = requests.encode_step(action, self.lane_spec.action.leaves, self.num_slots)
        return await self.send(pb.STEP, body), crc

    def take_rows(self, message: Message, crc: int | None = None) -> StepRows:
        rows = step_rows.decode(message.body, self.lane_spec, self.num_slots, self._stack, self._changes)
        if crc is not None and rows.action_crc != crc:
            raise Failed(f"action_crc {rows.action_crc:#x} was echoed for an action with {crc:#x}")
        self.tracker.advance(rows.flags)
        return rows


@asynccontextmanager
async def probing(transport: Transport, with_crc: bool) -> AsyncIterator[Probe]:
    """A probe on a stream, which is closed in the end. Cancellation leaves no task behind."""
    probe = Probe(transport, with_crc)
    error: BaseException | None = None
    async with asyncio.TaskGroup() as group:
        reader = group.create_task(probe.read())
        try:
            yield probe
        except Exception as caught:  # leaves as itself, not inside an ExceptionGroup
            error = caught
        finally:
            await transport.close()
            reader.cancel()  # it may wait for room in the inbox; the stream is closed already
    if error is not None:
        raise error


def _code(error: pb.Error) -> str:
    return pb.ErrorCode.Name(error.code) if error.code in pb.ErrorCode.values() else str(error.code)
