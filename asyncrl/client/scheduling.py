"""How the kernel schedules the thread of an event loop, and the threads that it starts: fewer switches, fewer cores.

A lane-step passes through four threads of the client. By default Linux lets each wake-up preempt whoever runs, and
spreads the threads over all cores; each of both costs more here than it gives, because most of them want the GIL.
docs/benchmarks.md has the figures. Elsewhere than on Linux nothing happens.

Invariant: what was changed for fleets is as before when the last of them is closed (test_scheduling_is_put_back,
test_two_wishes_end_in_any_order).
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from asyncrl.errors import ConfigError


@dataclass(frozen=True)
class Scheduling:
    """`batch`: SCHED_BATCH, under which waking up preempts nobody. Leave it off where a learner computes on the same
    cores all the time: then the loop should preempt.

    `core`: the loop, gRPC and what the loop's thread starts afterwards share this core; the inference thread of an act
    batcher is one of those. For small networks on machines whose other cores are the env server's.

    `alone`: only those that want the GIL are on that core, the loop's thread and what it starts afterwards; gRPC's
    threads and an embedded server have the others. For a client that has as much to do as its env server.
    """

    batch: bool = True
    core: int | None = None
    alone: bool = False

    def __post_init__(self) -> None:
        if self.alone and self.core is None:
            raise ConfigError("Scheduling(alone=True): alone on which core? say core=0")


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


@dataclass
class _Wishes:
    """Of one thread: how it was found, and what is wished for it now, oldest first."""

    found: ThreadState
    now: list[ThreadState]


_of_thread: Final[dict[int, _Wishes]] = {}  # a thread touches its own entry alone


@contextlib.contextmanager
def scheduled(wish: Scheduling, *, beside: bool = False) -> Iterator[None]:
    """Applies to the calling thread and to those it starts meanwhile; the calling thread gets its own back once the
    last of its wishes has ended, in whatever order they end. `beside`: on all cores; where the wish is to have one
    alone, on the others, if there are any.

    Raises OSError for a core that there is not.
    """
    here = ThreadState.here()
    if sys.platform != "linux" or here is None:
        yield
        return
    policy = os.SCHED_BATCH if wish.batch and here.policy == os.SCHED_OTHER else here.policy
    state = ThreadState(policy, _cores(here.cores, wish, beside))
    state.apply()
    thread = threading.get_ident()
    wishes = _of_thread.setdefault(thread, _Wishes(here, []))
    wishes.now.append(state)
    try:
        yield
    finally:
        _take_back(thread, wishes, state)


def _cores(there: frozenset[int], wish: Scheduling, beside: bool) -> frozenset[int]:
    if wish.core is None:
        return there
    if not beside:
        return frozenset({wish.core})
    return (there - {wish.core} or there) if wish.alone else there


def _take_back(thread: int, wishes: _Wishes, state: ThreadState) -> None:
    is_newest = wishes.now[-1] is state
    wishes.now[:] = [other for other in wishes.now if other is not state]
    if not wishes.now:
        del _of_thread[thread]
        wishes.found.apply()
    elif is_newest:
        wishes.now[-1].apply()
