"""One lane as its owner uses it: requests out, checked rows in.

The lane protocol itself is `wire.client_lane`; `LaneCarrier` gives it streams and time.

Invariants: rows reach the owner once, in order and checked (test_rows_arrive_once_and_in_order); whatever ends a lane
is raised by `run` (test_every_end_is_one_typed_error), and by whoever waits for a reply
(test_whoever_asks_hears_of_a_reply_that_ends_the_lane).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from typing import Final

from asyncrl.client.lane_carrier import LaneCarrier
from asyncrl.client.lane_context import LaneContext, LaneOwner
from asyncrl.client.pending import Pending, PendingLine
from asyncrl.client.refusals import CALLERS_FAULT, lane_lost, refusal
from asyncrl.client.row_reader import RowReader
from asyncrl.client.server_link import ServerLink
from asyncrl.errors import AsyncRLError, LaneLost, MessageMissing, RemoteProtocolError, ServerRefused
from asyncrl.wire import handshake, requests
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.client_lane import MAX_DEADLINE_MS, ClientLane
from asyncrl.wire.envelope import Message, kind_name, parse_body
from asyncrl.wire.flags import RowTracker
from asyncrl.wire.requests import ResetRequest
from asyncrl.wire.spec import LaneSpec
from asyncrl.wire.tensors import Array

log = logging.getLogger("asyncrl.lane")

FEATURES: Final = (pb.RESUME_LANES, pb.FRAME_STACK, pb.SNAPSHOTS, pb.EXPORTS, pb.RENDERING, pb.SOFT_ENDS, pb.CHANGES)


class LaneClient:
    """`run` carries it; until `run` returns or raises, `step`, `reset` and `ask` send requests and the owner hears of
    the rows. `tracker` may have seen rows of an earlier lane of the same slots."""

    def __init__(
        self, link: ServerLink, request: pb.Open, owner: LaneOwner, context: LaneContext, tracker: RowTracker
    ) -> None:
        self.num_slots = len(request.fleet_slots)
        self.unanswered = 0  # after `run`: requests whose replies never came
        self._owner = owner
        self._context = context
        self._rows = RowReader(self.num_slots, tracker)
        self._now = context.clock.now
        self._timers = context.timers
        self._protocol = ClientLane(link.connector.with_crc)
        self._pending = PendingLine(self._now())
        self._carrier = LaneCarrier(link, self._protocol, self._pending, context, request.learner_epoch, self._take)
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
        self._carrier.allow(self._rows.body_limit)
        seq = self._request(
            Pending(kind, self._timers.other_s if deadline_s is None else deadline_s, waiter=waiter), body
        )
        try:
            return await waiter
        except asyncio.CancelledError:
            self._carrier.cancel(seq)
            raise

    def tell(self, kind: int, body: bytes) -> None:
        """A request whose reply nobody waits for, whatever it is."""
        waiter: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        waiter.add_done_callback(lambda replied: replied.exception())
        self._request(Pending(kind, self._timers.other_s, waiter=waiter), body)

    def _request(self, pending: Pending, body: bytes) -> int:
        seq, frames = self._protocol.request(pending.kind, body, _in_ms(pending.deadline_s))
        now = self._now()
        self._pending.add(pending, now)
        self._carrier.send(frames, now)
        return seq

    # ------------------------------------------------------------------ life

    @property
    def opened(self) -> pb.Opened | None:
        return self._carrier.opened

    @property
    def is_over(self) -> bool:
        """The lane has ended, or is about to: `run` returns or raises soon."""
        return self._carrier.is_over

    async def run(self) -> None:
        """Open the lane and carry it until it ends. Returns after `leave()`; raises what ended the lane otherwise.

        Raises LaneLost once the lane was open; before that ConnectionFailed, ServerRefused, SpecMismatch or
        RemoteProtocolError. Cancellation drops the stream without BYE and leaves no task behind.
        """
        carrier = self._carrier
        try:
            await carrier.run()
        finally:
            self.unanswered = self._pending.fail_all(carrier.error or lane_lost("closed", "the lane was closed"))
        if carrier.error is not None:
            raise carrier.error

    def leave(self, loss: AsyncRLError | None = None) -> None:
        """End the lane by BYE; `run` then returns, or raises `loss`. Idempotent."""
        self._carrier.leave(loss)

    async def release(self) -> None:
        """After `run`, if the server still keeps the lane: give it back over a stream of its own.

        Raises ConnectionFailed. Cancellation leaves the lane to its resume window.
        """
        await self._carrier.release()

    def was_at(self, link: ServerLink, boot_id: str) -> bool:
        """Whether this lane was opened at that server, by the process that runs there now."""
        return link is self._carrier.link and self.opened is not None and self.opened.boot_id == boot_id

    # ------------------------------------------------------------------ replies

    def _take(self, message: Message, now: float) -> None:
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
            self._carrier.missing(error)
        except AsyncRLError as error:
            self._carrier.leave(error)
        except Exception as error:
            # Whatever a peer manages to upset in here costs its lane, not the fleet.
            log.exception("lane at %s: reply of kind %s", self._carrier.link.address, kind_name(message.kind))
            self._carrier.leave(RemoteProtocolError(f"{type(error).__name__}: {error}"))

    def _answered(self, now: float) -> Pending:
        """The first in line has its reply. Until it has been read it stays in line: what ends the lane ends it, too."""
        self._carrier.answered()
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
            raise ServerRefused("VERSION_SKEW", f"{self._carrier.link.address}: {skew}")
        spec = LaneSpec.from_proto(opened.spec)
        self._owner.lane_opened(opened, spec)
        self._rows.open(opened, spec)
        self._carrier.opened = opened
        self._carrier.allow(self._rows.body_limit)

    def _take_control(self, message: Message, now: float) -> None:
        if message.kind == pb.ERROR:
            raise refusal(parse_body(pb.Error, message.body))
        if message.kind == pb.BYE:
            reason = parse_body(pb.Bye, message.body).reason
            raise lane_lost("server_closed", f"{self._carrier.link.address}: the server said bye: {reason}")
        if message.kind == pb.EVENT:
            event = parse_body(pb.Event, message.body)
            if event.kind == pb.BUILDING:
                self._pending.progress(now)
            self._owner.lane_event(event)
        elif message.kind == pb.RESUMED:
            self._owner.lane_resumed(self._carrier.resumed(parse_body(pb.Resumed, message.body), now))


def _in_ms(deadline_s: float) -> int:
    """As it travels, where 0 would be the server's own: whoever comes late has a millisecond."""
    return max(1, math.ceil(1000 * min(deadline_s, MAX_DEADLINE_MS / 1000)))
