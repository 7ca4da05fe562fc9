"""When a broken slot may be created anew: at once, after a backoff, or after a quarantine.

A fault after MIN_LIFE transitions is an accident: the slot is rebuilt at once. Faults that follow
each other sooner, and rebuilds that fail, are a streak: waits double from 0.1 to 30 s. Five of them
within a minute put the slot into quarantine, for 30 s at first and twice as long after each further
fault of the streak.

Invariant: an environment that always fails is tried less than 20 times in its first minute
(test_a_slot_that_always_fails_is_not_tried_in_a_busy_loop).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

MIN_LIFE: Final = 100
FIRST_WAIT_S: Final = 0.1
MAX_WAIT_S: Final = 30.0
STREAK: Final = 5
WINDOW_S: Final = 60.0
FIRST_QUARANTINE_S: Final = 30.0
MAX_QUARANTINE_S: Final = 3600.0


class SlotKeeper:
    """The faults of one slot, and when it may be tried again. `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._faults: deque[float] = deque(maxlen=STREAK)
        self._streak = 0
        self._quarantines = 0
        self._retry_at = clock()
        self.quarantined = False

    def fault(self, transitions: int) -> None:
        """The slot broke after so many transitions of its life; 0 where it could not be created."""
        now = self._clock()
        if transitions >= MIN_LIFE:
            self._faults.clear()
            self._streak = self._quarantines = 0
            self._retry_at = now
            return
        self._faults.append(now)
        self._streak += 1
        self._retry_at = now + (0.0 if self._streak == 1 else self._wait())
        many = len(self._faults) == STREAK and now - self._faults[0] <= WINDOW_S
        self.quarantined = many or self._quarantines > 0
        if self.quarantined:
            wait = min(FIRST_QUARANTINE_S * 2.0 ** min(self._quarantines, 32), MAX_QUARANTINE_S)
            self._quarantines += 1
            self._retry_at = now + wait

    def _wait(self) -> float:
        return float(min(FIRST_WAIT_S * 2.0 ** min(self._streak - 2, 32), MAX_WAIT_S))

    def retry_in_s(self) -> float:
        """Seconds until the slot may be tried; 0 when it may be now."""
        return max(0.0, self._retry_at - self._clock())

    def restored(self) -> None:
        """The slot was created anew. The streak ends only by a long enough life."""
        self.quarantined = False
