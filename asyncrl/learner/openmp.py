"""How threads of OpenMP wait for each other: asleep, and not in a loop.

libgomp, which torch computes with, lets a thread that has nothing to do spin for milliseconds. Learner and acting
thread have helpers of their own, lanes want the same cores, and whoever has to wait for a core waits for a spinning
one: with two busy neighbours on two cores a DQN run did 94 steps a second, and 376 since. Alone a thread that sleeps
at once costs a fifth of an update of many short operations; after a third of a millisecond, nothing.

Invariant: what the user has set is left alone (test_who_waits_sleeps_unless_told_otherwise).
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Final

# Rounds of libgomp's loop, about 70 ns each, for work that is handed out in quick succession.
WAITING: Final = {"GOMP_SPINCOUNT": "5000"}
_OTHERS: Final = ("OMP_WAIT_POLICY", "KMP_BLOCKTIME")  # the standard's and Intel's names for the same wish


def wait_asleep(environ: MutableMapping[str, str]) -> None:
    """To be called before torch is imported; later it has no effect."""
    if not any(name in environ for name in (*WAITING, *_OTHERS)):
        environ.update(WAITING)
