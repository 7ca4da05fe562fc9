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


@contextlib.contextmanager
def scheduled(wish: Scheduling) -> Iterator[None]:
    """Applies to the calling thread and to those it starts meanwhile; the calling thread gets its own back at the end.

    Raises OSError for a core that there is not.
    """
    if sys.platform != "linux":
        yield
        return
    policy, cores = os.sched_getscheduler(0), os.sched_getaffinity(0)
    if wish.core is not None:
        os.sched_setaffinity(0, {wish.core})
    if wish.batch and policy == os.SCHED_OTHER:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, os.sched_getparam(0))
        os.sched_setaffinity(0, cores)
