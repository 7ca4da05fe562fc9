"""One lane, over as many streams as it takes: requests out, checked rows in, deadlines, heartbeat, resume.

The lane protocol itself is `wire.client_lane`; this is the shell that gives it streams and time.

Invariants: rows reach the owner once, in order and checked (test_rows_arrive_once_and_in_order); a resumed stream
loses nothing and repeats nothing (test_resume_loses_and_repeats_nothing); a lane whose streams all break before the
reply that is due is given up (test_a_request_that_breaks_every_stream_ends_the_lane); whatever ends a lane becomes one
typed error, raised by `run` (test_every_end_is_one_typed_error), and by whoever waits for a reply
(test_whoever_asks_hears_of_a_reply_that_ends_the_lane).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from typing import Final

from asyncrl.client.backoff import Backoff
from asyncrl.client.lane_context import LaneContext, LaneOwner
from asyncrl.client.lane_stream import LaneStream
from asyncrl.client.lane_watch import LaneWatch
from asyncrl.client.pending import Pending, PendingLine
from asyncrl.client.refusals import CALLERS_FAULT, as_loss, lane_lost, refusal
from asyncrl.client.row_reader import RowReader
from asyncrl.client.server_link import ServerLink
from asyncrl.errors import (
    AsyncRLError,
    ConnectionFailed,
    ConnectionLost,
    LaneLost,
    MessageMissing,
    RemoteProtocolError,
    ServerRefused,
)
from asyncrl.wire import handshake, requests
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.client_lane import MAX_DEADLINE_MS, ClientLane
from asyncrl.wire.envelope import Message, kind_name, parse_body
from asyncrl.wire.flags import RowTracker
from asyncrl.wire.lane_table import LaneState
from asyncrl.wire.requests import ResetRequest
from asyncrl.wire.spec import LaneSpec
from asyncrl.wire.tensors import Array

log = logging.getLogger("asyncrl.lane")

# Streams in a row that bring a damaged frame and nothing else, before the lane is given up.
MAX_DAMAGED: Final = 3
# Resumes in a row after which the stream breaks again before a reply: what is asked for may be what breaks it.
MAX_VAIN: Final = 8

FEATURES: Final = (pb.RESUME_LANES, pb.FRAME_STACK, pb.SNAPSHOTS, pb.EXPORTS, pb.RENDERING, pb.SOFT_ENDS, pb.CHANGES)


class LaneClient:
    """`run` carries it; until `run` returns or raises, `step`, `reset` and `ask` send requests and the owner hears of
    the rows. `tracker` may have seen rows of an earlier lane of the same slots."""

    def __init__(
        self, link: ServerLink, request: pb.Open, owner: LaneOwner, context: LaneContext, tracker: RowTracker
    ) -> None:
        self.num_slots = len(request.fleet_slots)
        self.opened: pb.Opened | None = None
        self.unanswered = 0  # after `run`: requests whose replies never came
        self._link = link
        self._owner = owner
        self._context = context
        self._rows = RowReader(self.num_slots, tracker)
        self._learner_epoch = request.learner_epoch
        self._clock = context.clock
        self._now = context.clock.now
        self._timers = context.timers
        self._backoff = Backoff(context.rng)
        self._protocol = ClientLane(link.connector.with_crc)
        self._pending = PendingLine(self._now())
        self._unsent: list[bytes] = []  # before the first stream
        self._stream: LaneStream | None = None
        self._watch = LaneWatch(self, context, self._pending, self._timers.pong_limit_s(link.address))
        self._error: AsyncRLError | None = None
        self._leaving = False
        self._woken = asyncio.Event()
        self._broke_at: float | None = None
        self._break_cause = ""
        self._damaged = 0
        self._vain = 0  # resumes since the last reply, of a lane that a reply is due to
        self._request(Pending(pb.OPEN, self._timers.open_s), request.SerializeToString())

    # ------------------------------------------------------------------ requests

    @property
    def in_flight(self) -> int:
        return len(self._pending)

    @property
    def can_request(self) -> bool:
        return not self.is_over and self._protocol.can_request

    @property
    def can_spare(self) -> bool:
        """Whether one more request would leave a place for a step, of a lane that has any."""
        kept = 1 if self.num_slots else 0
        return self.can_request and self._protocol.in_flight + kept < self._protocol.max_in_flight

    async def place(self) -> None:
        """Returns once a place can be spared, or the lane is over. Cancellation harms nothing.

        Replies of requests that were cancelled are due all the same.
        """
        while not self.is_over and not self.can_spare:
            await self._pending.shortened()

    @property
    def is_over(self) -> bool:
        """The lane has ended, or is about to: `run` returns or raises soon."""
        return self._leaving or self._error is not None

    def reset(self, request: ResetRequest) -> None:
        """Ask for first observations. May be called once before Opened: both then travel together."""
        self._request(Pending(pb.RESET, self._timers.reset_s), requests.encode_reset(request))

    def step(self, action: Sequence[Array]) -> None:
        """Send one action array `[B, *shape]` per leaf; the rows come to the owner."""
        body, crc = requests.encode_step(action, self._rows.spec.action.leaves, self.num_slots)
        self._request(Pending(pb.STEP, self._timers.step_s, crc), body)

    async def ask(self, kind: int, body: bytes, reply_bytes: int = 0, deadline_s: float | None = None) -> bytes:
        """A request of any other kind, and the body of its reply, which may be as large as `reply_bytes`. Of RESTORE,
        whose rows come to the owner, the body is empty.

        Raises ServerRefused, or LaneLost with the lane. Cancellation asks the server to cancel the request too; what
        is executed of it all the same has its reply dropped.
        """
        waiter: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._rows.expect(reply_bytes)
        if self._stream is not None:
            self._stream.reader.limit = self._rows.body_limit
        seq = self._request(
            Pending(kind, self._timers.other_s if deadline_s is None else deadline_s, waiter=waiter), body
        )
        try:
            return await waiter
        except asyncio.CancelledError:
            self._cancel(seq)
            raise

    def _cancel(self, seq: int) -> None:
        """Ask the server not to go on with a request; without a stream it finds nobody who could stop in time."""
        if self._stream is not None and self._protocol.state is LaneState.LIVE and seq > self._protocol.received:
            self._stream.send(self._protocol.control(pb.CANCEL, pb.Cancel(seq=seq).SerializeToString()))

    def tell(self, kind: int, body: bytes) -> None:
        """A request whose reply nobody waits for, whatever it is."""
        waiter: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        waiter.add_done_callback(lambda replied: replied.exception())
        self._request(Pending(kind, self._timers.other_s, waiter=waiter), body)

    def _request(self, pending: Pending, body: bytes) -> int:
        seq, frames = self._protocol.request(pending.kind, body, _in_ms(pending.deadline_s))
        now = self._now()
        self._pending.add(pending, now)
        if self._stream is None:
            self._unsent += frames  # none, if the lane is detached: they are sent again after RESUMED
        elif frames:
            self._stream.send(frames)
            self._watch.beat.sent_at = now
        return seq

    # ------------------------------------------------------------------ life

    async def run(self) -> None:
        """Open the lane and carry it until it ends. Returns after `leave()`; raises what ended the lane otherwise.

        Raises LaneLost once the lane was open; before that ConnectionFailed, ServerRefused, SpecMismatch or
        RemoteProtocolError. Cancellation drops the stream without BYE and leaves no task behind.
        """
        self._watch.start()
        try:
            await self._over_stream(self._unsent)
            while self._protocol.state is LaneState.DETACHED and self._error is None and not self._leaving:
                await self._reattach()
        finally:
            self._leaving = True
            self._watch.stop()
            gone = self._error or lane_lost("closed", "the lane was closed")
            self.unanswered = self._pending.fail_all(gone)
        if self._error is not None:
            raise self._error

    def leave(self, loss: AsyncRLError | None = None) -> None:
        """End the lane by BYE; `run` then returns, or raises `loss`. Idempotent."""
        if self._leaving:
            return
        self._leaving = True
        self._error = self._error or loss
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

    def was_at(self, link: ServerLink, boot_id: str) -> bool:
        """Whether this lane was opened at that server, by the process that runs there now."""
        return link is self._link and self.opened is not None and self.opened.boot_id == boot_id

    async def release(self) -> None:
        """After `run`, if the server still keeps the lane: give it back over a stream of its own.

        Raises ConnectionFailed. Cancellation leaves the lane to its resume window.
        """
        frames = self._protocol.release(self._learner_epoch)
        if not frames:
            return
        transport = await self._link.open_stream(self._timers.dial_s)
        stream = LaneStream(transport, self._link.connector.with_crc, lambda _: None, self._context.counters)
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
            transport = await self._link.open_stream(self._timers.dial_s)
        except ConnectionFailed as error:
            self._broke(error)
            return
        self._stream = LaneStream(
            transport, self._link.connector.with_crc, self._take, self._context.counters, self._part_came
        )
        self._stream.reader.limit = self._rows.body_limit
        self._watch.new_stream()
        self._stream.send(first)
        if self._leaving:
            self._stream.stop()
        try:
            await self._stream.carry()
        finally:
            fault, self._stream = self._stream.fault, None
        if not self._leaving and self._protocol.state is not LaneState.CLOSED:
            self._broke(fault or ConnectionLost(f"{self._link.address}: the stream ended without BYE"))

    def _broke(self, fault: AsyncRLError) -> None:
        """The stream is gone and the lane did not ask for it."""
        self._link.doubt()
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
            self._error = self._typed(fault)

    def _typed(self, fault: AsyncRLError) -> AsyncRLError:
        """What `run` raises for `fault`."""
        if self.opened is None or isinstance(fault, LaneLost):
            return fault
        if isinstance(fault, ServerRefused):
            return as_loss(fault)
        cause = "protocol" if isinstance(fault, RemoteProtocolError) else ""
        text = str(fault) if isinstance(fault, ConnectionFailed) else f"{self._link.address}: {fault}"
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
            self._error = lane_lost(
                self._break_cause, f"{self._link.address}: not reachable within its resume window of {window_s:g} s"
            )
            return
        try:
            reply = await self._link.describe()
        except (ConnectionFailed, ServerRefused):
            return
        if reply.boot_id != self.opened.boot_id:
            self._error = lane_lost("server_lost", f"{self._link.address}: the server has been restarted")
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

    # ------------------------------------------------------------------ replies

    def _part_came(self) -> None:
        """Of a reply that takes long on its way: whoever sends it is alive, and at it."""
        now = self._now()
        self._watch.beat.heard_at = now
        self._pending.progress(now)

    def _take(self, message: Message) -> None:
        if self._leaving:
            return
        now = self._now()
        self._watch.beat.heard_at = now
        try:
            delivered = self._protocol.receive(message)
            if delivered is None:
                self._context.duplicates += 1
            elif delivered.kind == pb.STEP_RESULT:
                self._owner.rows_arrived(*self._rows.read(delivered.body, self._pending.first.action_crc))
                self._answered(now).resolve(b"")
                self._owner.replied()
            elif delivered.seq:
                self._take_reply(delivered, now)
            else:
                self._take_control(delivered, now)
        except MessageMissing as error:
            assert self._stream is not None
            self._stream.stop(error)  # a resumed stream brings it again
        except AsyncRLError as error:
            self.leave(self._typed(error))
        except Exception as error:
            # Whatever a peer manages to upset in here costs its lane, not the fleet.
            log.exception("lane at %s: reply of kind %s", self._link.address, kind_name(message.kind))
            self.leave(self._typed(RemoteProtocolError(f"{type(error).__name__}: {error}")))

    def _answered(self, now: float) -> Pending:
        """The first in line has its reply. Until it has been read it stays in line: what ends the lane ends it, too."""
        self._damaged = self._vain = 0
        self._backoff.reset()
        return self._pending.answered(now)

    def _take_reply(self, message: Message, now: float) -> None:
        if message.kind == pb.OPENED:
            self._take_opened(parse_body(pb.Opened, message.body))
            self._answered(now)
        elif message.kind == pb.ERROR:
            self._take_error(refusal(parse_body(pb.Error, message.body)), now)
        else:
            self._answered(now).resolve(message.body)
        self._owner.replied()

    def _take_error(self, error: ServerRefused, now: float) -> None:
        if self.opened is None or isinstance(error, LaneLost):
            raise error
        if self._pending.first.waiter is not None:
            self._answered(now).fail(error)
        elif error.code in CALLERS_FAULT:
            self._answered(now)
            self._owner.request_refused(error)
        else:
            raise error

    def _take_opened(self, opened: pb.Opened) -> None:
        skew = handshake.skew(opened.protocol, "server")
        if skew is not None:
            raise ServerRefused("VERSION_SKEW", f"{self._link.address}: {skew}")
        spec = LaneSpec.from_proto(opened.spec)
        self._owner.lane_opened(opened, spec)
        self._rows.open(opened, spec)
        self.opened = opened
        if self._stream is not None:
            self._stream.reader.limit = self._rows.body_limit

    def _take_control(self, message: Message, now: float) -> None:
        if message.kind == pb.ERROR:
            raise refusal(parse_body(pb.Error, message.body))
        if message.kind == pb.BYE:
            reason = parse_body(pb.Bye, message.body).reason
            raise lane_lost("server_closed", f"{self._link.address}: the server said bye: {reason}")
        if message.kind == pb.EVENT:
            event = parse_body(pb.Event, message.body)
            if event.kind == pb.BUILDING:
                self._pending.progress(now)
            self._owner.lane_event(event)
        elif message.kind == pb.RESUMED:
            assert self._stream is not None
            self._stream.send(self._protocol.frames_after_resume(parse_body(pb.Resumed, message.body)))
            self._pending.progress(now)
            if len(self._pending):
                self._vain += 1
            else:
                self._backoff.reset()
            cause, self._broke_at, self._break_cause = self._break_cause, None, ""
            self._owner.lane_resumed(cause)

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
        self._stream.stop(ConnectionLost(f"{self._link.address}: connected, but silent; pings are not answered"))

    def reply_overdue(self, pending: Pending) -> None:
        limit_s = pending.deadline_s + self._timers.grace_s
        text = f"{self._link.address}: no reply to {kind_name(pending.kind)} within {limit_s:g} s"
        self.leave(ConnectionFailed(text, "open") if self.opened is None else lane_lost("deadline", text))


def _in_ms(deadline_s: float) -> int:
    """As it travels, where 0 would be the server's own: whoever comes late has a millisecond."""
    return max(1, math.ceil(1000 * min(deadline_s, MAX_DEADLINE_MS / 1000)))
