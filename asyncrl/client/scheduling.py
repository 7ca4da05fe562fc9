"""How the kernel schedules the thread of an event loop, and the threads that it starts: fewer switches, one core.

A lane-step passes through four threads of the client. By default Linux lets each wake-up preempt whoever runs, and
spreads the threads over all cores; each of both costs more here than it gives, because most of them want the GIL.
docs/benchmarks.md has the figures. Elsewhere than on Linux nothing happens.

Invariant: what was changed for a fleet is as before when the fleet is closed (test_scheduling_is_put_back).
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Scheduling:
    """`batch`: SCHED_BATCH, under which waking up preempts nobody. Leave it off where a learner computes on the same
    cores all the time: then the loop should preempt.

    `core`: the loop, gRPC and what the loop's thread starts afterwards share this core; the inference thread of an act
    batcher is one of those. For small networks on machines whose other cores are the env server's.
    """

    batch: bool = True
    core: int | None = None


@dataclass(frozen=True)
class ThreadState:
    """How a thread is scheduled; what it starts inherits that."""

    policy: int
    cores: frozenset[int]

    @staticmethod
    def here() -> ThreadState | None:
        """Of the calling thread; None where nothing is ever changed."""
        if sys.platform != "linux":
            return None
        return ThreadState(os.sched_getscheduler(0), frozenset(os.sched_getaffinity(0)))

    def apply(self, thread: int = 0) -> None:
        """To the calling thread, or to the first one of a process. Raises OSError for cores that there are not."""
        if sys.platform == "linux":
            os.sched_setaffinity(thread, self.cores)
            os.sched_setscheduler(thread, self.policy, os.sched_getparam(thread))


@contextlib.contextmanager
def scheduled(wish: Scheduling) -> Iterator[None]:
    """Applies to the calling thread and to those it starts meanwhile; the calling thread gets its own back at the end.

    Raises OSError for a core that there is not.
    """
    found = ThreadState.here()
    if sys.platform != "linux" or found is None:
        yield
        return
    policy = os.SCHED_BATCH if wish.batch and found.policy == os.SCHED_OTHER else found.policy
    ThreadState(policy, found.cores if wish.core is None else frozenset({wish.core})).apply()
    try:
        yield
    finally:
        found.apply()
