"""How threads of OpenMP wait for each other: asleep, and not in a loop.

libgomp, which torch computes with, lets a thread that has nothing to do spin for milliseconds. Learner and acting
thread have helpers of their own, lanes want the same cores, and whoever has to wait for a core waits for a spinning
one: with two busy neighbours on two cores a DQN run did 94 steps a second, and 376 when they fell asleep within 0.1 ms.
But to wake one up takes as long: runs of DQN on Pong with both cores to themselves took 24 and 22 ms a gradient step
with 5000 rounds, 19 with these, 17 with five times as many. Beside one busy neighbour an update of PPO took 2.0 s with
5000, 2.1 to 2.6 with these, up to 3.3 with five times as many.

Invariant: what the user has set is left alone (test_who_waits_sleeps_unless_told_otherwise).
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Final

# Rounds of libgomp's loop, about 70 ns each, for work that is handed out in quick succession.
WAITING: Final = {"GOMP_SPINCOUNT": "20000"}
_OTHERS: Final = ("OMP_WAIT_POLICY", "KMP_BLOCKTIME")  # the standard's and Intel's names for the same wish


def wait_asleep(environ: MutableMapping[str, str]) -> None:
    """To be called before torch is imported; later it has no effect."""
    if not any(name in environ for name in (*WAITING, *_OTHERS)):
        environ.update(WAITING)
