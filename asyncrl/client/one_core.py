"""`OneCore`: threads that take turns stay on one core, with the env server and the lane that they take turns with.

Where only one of them has something to do at any time a second core gains nothing, and to wake up a thread there takes
longer than many a step of an environment. Elsewhere than on Linux nothing happens.

Invariants: threads that were there before are not touched (test_threads_of_others_stay_where_they_are); all others are
where they were when `shared` ends (test_threads_are_put_back).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from asyncrl.client.scheduling import Scheduling, scheduled


class OneCore:
    """To be made before there is a fleet, by the thread of the loop."""

    def __init__(self, core: int) -> None:
        self.core = core
        self._others = _threads()

    @staticmethod
    def here() -> OneCore | None:
        """Where the calling thread runs just now; None where threads cannot be kept on a core, or there is only one.

        The kernel moves threads to where least is going on: programs that start together find cores of their own.
        """
        if sys.platform != "linux" or len(os.sched_getaffinity(0)) == 1:
            return None
        core = ctypes.CDLL(None).sched_getcpu()
        return OneCore(core) if core in os.sched_getaffinity(0) else None

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """By the calling thread, those started since this was made, gRPC's too, and those started meanwhile."""
        found: dict[int, set[int]] = {}
        if sys.platform == "linux":
            for thread in _threads() - self._others:
                with contextlib.suppress(OSError):  # it has ended
                    found[thread] = os.sched_getaffinity(thread)
                    os.sched_setaffinity(thread, {self.core})
        try:
            with scheduled(Scheduling(core=self.core)):
                yield
        finally:
            for thread, cores in found.items():
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(thread, cores)


def _threads() -> set[int]:
    """Of this process."""
    folder = Path("/proc/self/task")
    return {int(each.name) for each in folder.iterdir()} if folder.is_dir() else set()
