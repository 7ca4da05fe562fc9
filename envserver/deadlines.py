"""When an answer of a lane is overdue.

Invariants: the deadline of a request runs from the moment when nothing is ahead of it
(test_a_deadline_runs_from_head_of_line); progress starts it again (test_progress_starts_a_deadline_again).
"""

from __future__ import annotations

from collections import deque


class Deadlines:
    """Of the requests that a lane has not answered yet; as many as may be in flight, so bounded by the lane."""

    def __init__(self) -> None:
        self._line: deque[float] = deque()  # seconds, in the order of the requests
        self._head_since = 0.0

    @property
    def idle(self) -> bool:
        """Every request is answered."""
        return not self._line

    def asked(self, deadline_s: float, now: float) -> None:
        """A request went to the lane."""
        if not self._line:
            self._head_since = now
        self._line.append(deadline_s)

    def progressed(self, now: float) -> None:
        """The lane is at work on its oldest request, as when it reports how much is built."""
        self._head_since = now

    def forgive(self, late_s: float) -> None:
        """Time that the server itself stood still."""
        self._head_since += late_s

    def answered(self, now: float) -> None:
        """The oldest request has its answer, and the next one its turn."""
        self._line.popleft()
        self._head_since = now

    def overdue(self, now: float) -> bool:
        """Whether the oldest request should have been answered by `now`."""
        return bool(self._line) and now - self._head_since > self._line[0]

    def clear(self) -> None:
        """Nothing will be answered any more."""
        self._line.clear()
