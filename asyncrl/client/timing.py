"""How long the client waits for what, and the heartbeat that tells a slow peer from a dead one.

Invariants: a peer that is heard is never declared stalled, whatever it is slow at (test_whoever_is_heard_is_alive);
time that this side's own loop lost is nobody's silence (test_our_own_lag_is_forgiven).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from asyncrl.client.addresses import is_local

PONG_LOCAL_S = 10.0
# Elsewhere a PONG may queue behind megabytes on a slow link.
PONG_REMOTE_S = 25.0


@dataclass(frozen=True)
class LaneTimers:
    """Seconds. Deadlines travel with each request, and servers grant 600 at most; `grace_s` later the client gives the
    lane up by itself."""

    open_s: float = 300.0  # since the last sign of progress: building 1024 Atari environments takes minutes
    reset_s: float = 60.0
    step_s: float = 30.0
    other_s: float = 30.0
    grace_s: float = 5.0
    dial_s: float = 10.0
    describe_s: float = 10.0  # with the diagnosis of what failed
    ping_every_s: float = 2.0
    pong_within_s: float | None = None  # None: 10, or 25 where the server is on another machine
    close_s: float = 1.0

    def pong_limit_s(self, address: str) -> float:
        if self.pong_within_s is not None:
            return self.pong_within_s
        return PONG_LOCAL_S if is_local(address) else PONG_REMOTE_S


class Verdict(Enum):
    """What the silence of now means."""

    FINE = auto()
    PING = auto()
    STALLED = auto()


class Heartbeat:
    """One stream's silence. `sent_at` and `heard_at` are written by whoever sends and receives on it."""

    def __init__(self, now: float, ping_every_s: float, pong_within_s: float) -> None:
        self.sent_at = now
        self.heard_at = now
        self._ping_every_s = ping_every_s
        self._pong_within_s = pong_within_s
        self._asked_at: float | None = None

    def verdict(self, now: float) -> Verdict:
        """Call it every fraction of `ping_every_s`. PING means: send one now."""
        self._settle()
        if self._asked_at is not None and now - self._asked_at > self._pong_within_s:
            return Verdict.STALLED
        if now - self.sent_at < self._ping_every_s:
            return Verdict.FINE
        # Also while an answer is due: a server that hears nothing for its lease takes us for dead.
        if self._asked_at is None:
            self._asked_at = now
        self.sent_at = now
        return Verdict.PING

    def forgive(self, late_s: float) -> None:
        """This side's loop stood still for `late_s`: answers may be here that nobody has read yet."""
        self._settle()
        if self._asked_at is not None:
            self._asked_at += late_s

    def _settle(self) -> None:
        # Not `>`: a loop's clock may stand still for a millisecond, and the answer come within it.
        if self._asked_at is not None and self.heard_at >= self._asked_at:
            self._asked_at = None
