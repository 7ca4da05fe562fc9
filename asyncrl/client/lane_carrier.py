"""The streams that carry one lane, one after another: dial, carry, resume, give up.

Invariants: a resumed stream loses nothing and repeats nothing (test_resume_loses_and_repeats_nothing); a lane whose
streams all break before the reply that is due is given up (test_a_request_that_breaks_every_stream_ends_the_lane);
whatever ends a lane becomes one typed error (test_every_end_is_one_typed_error).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from asyncrl.client.backoff import Backoff
from asyncrl.client.lane_context import LaneContext
from asyncrl.client.lane_stream import LaneStream
from asyncrl.client.lane_watch import LaneWatch
from asyncrl.client.pending import Pending, PendingLine
from asyncrl.client.refusals import as_loss, lane_lost
from asyncrl.client.server_link import ServerLink
from asyncrl.errors import (
    AsyncRLError,
    ConnectionFailed,
    ConnectionLost,
    LaneLost,
    RemoteProtocolError,
    ServerRefused,
)
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.client_lane import ClientLane
from asyncrl.wire.envelope import SMALL_BODY_BYTES, Message, kind_name
from asyncrl.wire.lane_table import LaneState

# Streams in a row that bring a damaged frame and nothing else, before the lane is given up.
MAX_DAMAGED: Final = 3
# Resumes in a row after which the stream breaks again before a reply: what is asked for may be what breaks it.
MAX_VAIN: Final = 8


class LaneCarrier:
    """Of one lane. `take` is called with each whole message, and the time, until the lane is left; it must not raise.

    `error` says, once `is_over`, what ended the lane; None where nobody did but its owner.
    """

    def __init__(
        self,
        link: ServerLink,
        protocol: ClientLane,
        pending: PendingLine,
        context: LaneContext,
        learner_epoch: int,
        take: Callable[[Message, float], None],
    ) -> None:
        self.link = link
        self.opened: pb.Opened | None = None
        self.error: AsyncRLError | None = None
        self._protocol = protocol
        self._pending = pending
        self._context = context
        self._clock = context.clock
        self._now = context.clock.now
        self._timers = context.timers
        self._learner_epoch = learner_epoch
        self._take = take
        self._unsent: list[bytes] = []  # before the first stream
        self._stream: LaneStream | None = None
        self._body_limit = SMALL_BODY_BYTES
        self._watch = LaneWatch(self, context, pending, self._timers.pong_limit_s(link.address))
        self._leaving = False
        self._woken = asyncio.Event()
        self._backoff = Backoff(context.rng)
        self._broke_at: float | None = None
        self._break_cause = ""
        self._damaged = 0
        self._vain = 0  # resumes since the last reply, of a lane that a reply is due to

    @property
    def is_over(self) -> bool:
        """The lane has ended, or is about to: `run` returns or raises soon."""
        return self._leaving or self.error is not None

    # ------------------------------------------------------------------ from the lane

    def send(self, frames: list[bytes], now: float) -> None:
        """Of a request. There are none while the lane is detached: what is unanswered is sent again after RESUMED."""
        if self._stream is None:
            self._unsent += frames
        elif frames:
            self._stream.send(frames)
            self._watch.beat.sent_at = now

    def cancel(self, seq: int) -> None:
        """Ask the server not to go on with a request; without a stream it finds nobody who could stop in time."""
        if self._stream is not None and self._protocol.state is LaneState.LIVE and seq > self._protocol.received:
            self._stream.send(self._protocol.control(pb.CANCEL, pb.Cancel(seq=seq).SerializeToString()))

    def allow(self, body_bytes: int) -> None:
        """From now on replies may be so large."""
        self._body_limit = body_bytes
        if self._stream is not None:
            self._stream.reader.limit = body_bytes

    def answered(self) -> None:
        """A reply that was due came: whatever broke streams before is over."""
        self._damaged = self._vain = 0
        self._backoff.reset()

    def missing(self, error: AsyncRLError) -> None:
        """A message is missing: another stream, resumed, brings it again."""
        assert self._stream is not None
        self._stream.stop(error)

    def resumed(self, resumed: pb.Resumed, now: float) -> str:
        """The server goes on with the lane; what had broken it."""
        assert self._stream is not None
        self._stream.send(self._protocol.frames_after_resume(resumed))
        self._pending.progress(now)
        if len(self._pending):
            self._vain += 1
        else:
            self._backoff.reset()
        cause, self._broke_at, self._break_cause = self._break_cause, None, ""
        return cause

    # ------------------------------------------------------------------ life

    async def run(self) -> None:
        """Carry the lane until it ends: `error` says why. Cancellation drops the stream without BYE and leaves no task
        behind."""
        self._watch.start()
        try:
            await self._over_stream(self._unsent)
            while self._protocol.state is LaneState.DETACHED and not self.is_over:
                await self._reattach()
        finally:
            self._leaving = True
            self._watch.stop()

    def leave(self, fault: AsyncRLError | None = None) -> None:
        """End the lane by BYE, because of `fault` if there is one. Idempotent."""
        if self._leaving:
            return
        self._leaving = True
        if fault is not None and self.error is None:
            self.error = self._typed(fault)
        self._woken.set()
        stream = self._stream
        if stream is None:
            return
        if self._protocol.state in (LaneState.OPENING, LaneState.LIVE, LaneState.RESUMING):
            stream.send(self._protocol.control(pb.BYE))
            stream.finish()
            self._clock.call_later(self._timers.close_s, stream.stop)
        else:
            stream.stop()

    async def release(self) -> None:
        """After `run`, if the server still keeps the lane: give it back over a stream of its own.

        Raises ConnectionFailed. Cancellation leaves the lane to its resume window.
        """
        frames = self._protocol.release(self._learner_epoch)
        if not frames:
            return
        transport = await self.link.open_stream(self._timers.dial_s)
        stream = LaneStream(transport, self.link.connector.with_crc, lambda _: None, self._context.counters)
        stream.send(frames)
        stream.finish()
        timer = self._clock.call_later(self._timers.close_s, stream.stop)
        try:
            await stream.carry()
        finally:
            timer.cancel()

    async def _over_stream(self, first: list[bytes]) -> None:
        """Dial, send `first`, carry the stream to its end, and draw the consequences."""
        try:
            transport = await self.link.open_stream(self._timers.dial_s)
        except ConnectionFailed as error:
            self._broke(error)
            return
        self._stream = LaneStream(
            transport, self.link.connector.with_crc, self._came, self._context.counters, self._part_came
        )
        self._stream.reader.limit = self._body_limit
        self._watch.new_stream()
        self._stream.send(first)
        if self._leaving:
            self._stream.stop()
        try:
            await self._stream.carry()
        finally:
            fault, self._stream = self._stream.fault, None
        if not self._leaving and self._protocol.state is not LaneState.CLOSED:
            self._broke(fault or ConnectionLost(f"{self.link.address}: the stream ended without BYE"))

    def _came(self, message: Message) -> None:
        if not self._leaving:
            now = self._now()
            self._watch.beat.heard_at = now
            self._take(message, now)

    def _part_came(self) -> None:
        """Of a reply that takes long on its way: whoever sends it is alive, and at it."""
        now = self._now()
        self._watch.beat.heard_at = now
        self._pending.progress(now)

    # ------------------------------------------------------------------ without a stream

    def _broke(self, fault: AsyncRLError) -> None:
        """The stream is gone and the lane did not ask for it."""
        self.link.doubt()
        self._protocol.stream_broke()
        if self._broke_at is None:
            self._broke_at = self._now()
            self._break_cause = self._break_cause or "server_lost"
        if self._vain >= MAX_VAIN:
            self._protocol.state = LaneState.CLOSED
            fault = ConnectionLost(f"resumed {self._vain} times, and broken before each reply: {fault}")
        elif isinstance(fault, RemoteProtocolError):
            self._break_cause = "bad_frame"
            self._damaged += 1
            if self._damaged >= MAX_DAMAGED or fault.code != "BAD_FRAME":
                self._protocol.state = LaneState.CLOSED  # asking again would bring the same
        if self._protocol.state is not LaneState.DETACHED:
            self.error = self._typed(fault)

    def _typed(self, fault: AsyncRLError) -> AsyncRLError:
        """`fault` as whoever owns the lane hears of it."""
        if self.opened is None or isinstance(fault, LaneLost):
            return fault
        if isinstance(fault, ServerRefused):
            return as_loss(fault)
        cause = "protocol" if isinstance(fault, RemoteProtocolError) else ""
        text = str(fault) if isinstance(fault, ConnectionFailed) else f"{self.link.address}: {fault}"
        lost = lane_lost(self._break_cause or cause or "server_lost", text)
        lost.__cause__ = fault
        return lost

    async def _reattach(self) -> None:
        """One attempt to resume, after its turn has come."""
        assert self.opened is not None
        assert self._broke_at is not None
        window_s = self.opened.resume_window_ms / 1000
        if self._backoff.failures:
            await self._pause(self._backoff.next_s())
        else:
            self._backoff.next_s()
        if self._now() - self._broke_at > window_s:
            self.error = lane_lost(
                self._break_cause, f"{self.link.address}: not reachable within its resume window of {window_s:g} s"
            )
            return
        try:
            reply = await self.link.describe()
        except (ConnectionFailed, ServerRefused):
            return
        if reply.boot_id != self.opened.boot_id:
            self.error = lane_lost("server_lost", f"{self.link.address}: the server has been restarted")
        elif not self._leaving:
            await self._over_stream(self._protocol.resume(self._learner_epoch))

    async def _pause(self, seconds: float) -> None:
        """Sleep, unless `leave` is called."""
        timer = self._clock.call_later(seconds, self._woken.set)
        try:
            await self._woken.wait()
        finally:
            timer.cancel()
        if not self._leaving:
            self._woken.clear()

    # ------------------------------------------------------------------ what its watch finds

    @property
    def is_carried(self) -> bool:
        return self._stream is not None and not self._stream.over and not self._leaving

    def send_ping(self, now: float) -> None:
        assert self._stream is not None
        self._stream.send(self._protocol.control(pb.PING, pb.Ping(nonce=int(now * 1e6)).SerializeToString()))

    def peer_stalled(self) -> None:
        assert self._stream is not None
        self._break_cause = "stalled"
        self._stream.stop(ConnectionLost(f"{self.link.address}: connected, but silent; pings are not answered"))

    def reply_overdue(self, pending: Pending) -> None:
        limit_s = pending.deadline_s + self._timers.grace_s
        text = f"{self.link.address}: no reply to {kind_name(pending.kind)} within {limit_s:g} s"
        self.leave(ConnectionFailed(text, "open") if self.opened is None else lane_lost("deadline", text))
