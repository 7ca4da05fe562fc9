"""`JoiningLane`: a lane of a server that stays on one core joins it there when its steps turn out to be brief.

Server, client and lane then wait for each other on one core: no message has to wake up another one. Steps that take
much longer than that gain nothing, and may be computed by threads and processes of the environment's own. Those have
all cores in any case: a thread's core is its own, and they are started before it joins.

Invariant: a lane is where the server is only if its steps are brief (test_only_brief_steps_join_the_server).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

STEPS: Final = 64  # that are measured
BRIEF_S: Final = 0.0005  # of a message, on average: a few times what it takes to wake up two threads elsewhere


class JoiningLane:
    """Belongs to the thread that steps. `cores`: those that the server might have had."""

    def __init__(self, cores: Sequence[int]) -> None:
        self._steps = 0
        self._spent_s = 0.0
        self._of_server: set[int] = set()
        if sys.platform == "linux":
            self._of_server = os.sched_getaffinity(0)  # inherited
            os.sched_setaffinity(0, cores)

    def stepped(self, seconds: float) -> bool:
        """Whether that was the last step of interest."""
        self._steps += 1
        self._spent_s += seconds
        if self._steps < STEPS:
            return False
        if self._spent_s < STEPS * BRIEF_S and sys.platform == "linux":
            os.sched_setaffinity(0, self._of_server)
        return True
