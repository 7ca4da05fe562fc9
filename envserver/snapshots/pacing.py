"""How often a wave looks whether it has to stop, while it computes one entry.

A simulator may take a microsecond for a step, of which a look would take a third, or a second: then each step needs
one, for the server kills a lane that is past its deadline. So the time between two looks decides how many steps are
taken before the next one.

Invariants: of steps that take LOOK_S or longer each is looked at, and of none are more than MOST_STEPS taken between
two looks, lest a simulator that slows down is found out too late (test_slow_steps_are_looked_at_one_by_one,
test_brief_steps_are_looked_at_together).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

LOOK_S: Final = 0.05
MOST_STEPS: Final = 16

Interrupted = Callable[[], str]  # the code of an interruption; empty: go on


class Stopped(Exception):
    """What is being computed has to end now. `code` says why to programs."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class Pace:
    """Of one wave. Each entry begins with `enter()`; its loops take `steps` steps, and ask `look()` before more."""

    def __init__(self, interrupted: Interrupted, clock: Callable[[], float] = time.monotonic) -> None:
        self._interrupted = interrupted
        self._clock = clock
        self._looked = clock()
        self.steps = 1  # that may be taken without a look

    def enter(self) -> None:
        """Before an entry; Stopped if it should not begin."""
        self._check()
        self._looked = self._clock()

    def look(self) -> int:
        """After so many steps: how many there may be before the next look; Stopped if none."""
        self._check()
        now = self._clock()
        spent_s = now - self._looked  # with what an entry has to do besides, at the worst: then it looks too often
        self._looked = now
        if spent_s >= LOOK_S:
            self.steps = max(1, int(self.steps * LOOK_S / spent_s))
        elif spent_s < LOOK_S / 2:
            self.steps = min(2 * self.steps, MOST_STEPS)
        return self.steps

    def _check(self) -> None:
        code = self._interrupted()
        if code:
            raise Stopped(code)
