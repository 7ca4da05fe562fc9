"""The requests of one lane whose replies are due, and how long the first of them has been waited for.

Invariants: the deadline of a request runs from the moment it is first in line (test_deadlines_run_from_head_of_line);
whoever waits for a reply gets one or the error that ended the lane (test_every_waiter_hears_of_the_end).
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple


class Pending(NamedTuple):
    """One request. `action_crc`: of a STEP; `waiter`: of a request whose reply is not rows."""

    kind: int
    deadline_s: float
    action_crc: int | None = None
    waiter: asyncio.Future[bytes] | None = None

    def resolve(self, body: bytes) -> None:
        """A cancelled waiter's reply is dropped."""
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(body)

    def fail(self, error: Exception) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_exception(error)


class PendingLine:
    """Requests in order."""

    def __init__(self, now: float) -> None:
        self._line: deque[Pending] = deque()
        self._head_since = now
        self._shorter = asyncio.Event()

    def __len__(self) -> int:
        return len(self._line)

    def add(self, pending: Pending, now: float) -> None:
        if not self._line:
            self._head_since = now
        self._line.append(pending)

    @property
    def first(self) -> Pending:
        """The one whose reply is due."""
        return self._line[0]

    def answered(self, now: float) -> Pending:
        """The first in line has its reply."""
        self._head_since = now
        self._shorter.set()
        return self._line.popleft()

    async def shortened(self) -> None:
        """Returns when the line gets shorter. Cancellation harms nothing."""
        self._shorter.clear()
        await self._shorter.wait()

    def progress(self, now: float) -> None:
        """The first in line is being worked on: its deadline starts again."""
        self._head_since = now

    def forgive(self, late_s: float) -> None:
        """Time that this side's own loop lost."""
        self._head_since += late_s

    def overdue(self, now: float, grace_s: float) -> Pending | None:
        """The first in line if its deadline is over."""
        if self._line and now - self._head_since > self._line[0].deadline_s + grace_s:
            return self._line[0]
        return None

    def fail_all(self, error: Exception) -> int:
        """The lane is over; how many replies never came."""
        count = len(self._line)
        for pending in self._line:
            pending.fail(error)
        self._line.clear()
        self._shorter.set()
        return count
