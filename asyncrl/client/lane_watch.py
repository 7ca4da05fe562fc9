"""The timer of one lane: pings, the silence of the peer, overdue requests, and the lag of this side's own loop.

Invariant: a loop that stood still blames nobody else for it (test_a_stalled_loop_blames_nobody).
"""

from __future__ import annotations

from typing import Final, Protocol

from asyncrl.client.lane_context import LaneContext
from asyncrl.client.pending import Pending, PendingLine
from asyncrl.client.seams import TimerHandle
from asyncrl.client.timing import Heartbeat, Verdict

TICK_S: Final = 0.25
# A tick that comes later than this was held up by our own loop.
LATE_S: Final = 0.25


class Watched(Protocol):
    """A lane, as its timer sees it."""

    @property
    def is_carried(self) -> bool:
        """Whether a stream carries it now; without one there is nothing to watch."""
        ...

    def send_ping(self, now: float) -> None: ...

    def peer_stalled(self) -> None: ...

    def reply_overdue(self, pending: Pending) -> None: ...


class LaneWatch:
    """Looks after one lane, four times a second, from `start` to `stop`."""

    def __init__(self, lane: Watched, context: LaneContext, pending: PendingLine, pong_limit_s: float) -> None:
        self._lane = lane
        self._context = context
        self._clock = context.clock
        self._pending = pending
        self._pong_limit_s = pong_limit_s
        self._tick_due = 0.0
        self._timer: TimerHandle | None = None
        self.beat = self._new_beat()

    def start(self) -> None:
        self._tick_due = self._clock.now() + TICK_S
        self._timer = self._clock.call_later(TICK_S, self._tick)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def new_stream(self) -> None:
        """A new stream carries the lane: nothing has been silent on it yet."""
        self.beat = self._new_beat()
        self._pending.progress(self._clock.now())

    def _new_beat(self) -> Heartbeat:
        return Heartbeat(self._clock.now(), self._context.timers.ping_every_s, self._pong_limit_s)

    def _tick(self) -> None:
        now = self._clock.now()
        late_s = now - self._tick_due
        self._context.loop_lag.add(max(0.0, late_s))
        if late_s > LATE_S:
            self.beat.forgive(late_s)
            self._pending.forgive(late_s)
        self._tick_due = now + TICK_S
        self._timer = self._clock.call_later(TICK_S, self._tick)
        if self._lane.is_carried:
            self._check(now)

    def _check(self, now: float) -> None:
        overdue = self._pending.overdue(now, self._context.timers.grace_s)
        if overdue is not None:
            self._lane.reply_overdue(overdue)
            return
        verdict = self.beat.verdict(now)
        if verdict is Verdict.PING:
            self._lane.send_ping(now)
        elif verdict is Verdict.STALLED:
            self._lane.peer_stalled()
