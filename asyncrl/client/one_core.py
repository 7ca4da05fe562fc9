"""`OneCore`: threads that take turns stay on one core, with the env server and the lane that they take turns with.

Where only one of them has something to do at any time a second core gains nothing, and to wake up a thread there takes
longer than many a step of an environment. But the kernel cannot help them any more when somebody else comes to that
core, another run, say: they notice by how long they wait for it, leave, and come back after a while, to the core where
the kernel has put the loop by then. Elsewhere than on Linux nothing happens.

Invariants: threads that were there before are not touched (test_threads_of_others_stay_where_they_are); all others are
where they were when `shared` ends (test_threads_are_put_back); beside a busy neighbour they and the processes that they
started are back on all cores (test_whoever_has_to_wait_leaves), and together on one after AWAY_S
(test_whoever_left_comes_back); to wait for each other does not count (test_those_that_take_turns_are_no_crowd).
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from asyncrl.client.scheduling import Scheduling, scheduled

log = logging.getLogger("asyncrl.one_core")

LOOK_S: Final = 2.0
AWAY_S: Final = 60.0  # then for LOOK_S beside a neighbour who has stayed
BUSY: Final = 0.05  # of the time: whoever runs less says little
# Waiting over running, of whoever waits least. A learner, for whom all others wait, has 0.01 to 0.05 alone and 1 beside
# a busy neighbour. The loop is not asked: it waits for gRPC's threads, too, for 0.3 to 0.6 of the time that it runs.
CROWDED: Final = 0.5


class Ran(NamedTuple):
    """Of a thread, in nanoseconds: how long it ran, and how long it waited for a core while it might have run."""

    run: int
    wait: int


class OneCore:
    """To be made before there is a fleet, by the thread of the loop."""

    def __init__(self, core: int) -> None:
        self.core = core
        self.is_away = False
        self._others = _threads()
        self._everywhere: set[int] = set()
        self._found: dict[int, set[int]] = {}  # the cores of our threads before
        self._followers: set[int] = set()  # threads of other processes that left the core with us
        self._seen: dict[int, Ran] = {}
        self._timer: asyncio.TimerHandle | None = None

    @staticmethod
    def here() -> OneCore | None:
        """Where the calling thread runs just now; None where threads cannot be kept on a core, or there is only one.

        The kernel moves threads to where least is going on: programs that start together find cores of their own.
        """
        if sys.platform != "linux" or len(os.sched_getaffinity(0)) == 1:
            return None
        core = _this_core()
        return OneCore(core) if core in os.sched_getaffinity(0) else None

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """By the calling thread, those started since this was made, gRPC's too, and those started meanwhile.

        To be called on the loop, which has to turn for anybody to notice a neighbour.
        """
        if sys.platform != "linux":
            yield
            return
        self._everywhere = os.sched_getaffinity(0)
        self._found.clear()  # threads of the last time have ended, and their numbers may be others' by now
        core = _this_core() if self.is_away else self.core
        with scheduled(Scheduling(core=core)):
            self._gather(core)
            try:
                yield
            finally:
                assert self._timer is not None
                self._timer.cancel()
                self._put_back()

    def _gather(self, core: int) -> None:
        """On the loop. Processes that left with us come, too."""
        self.core, self.is_away = core, False
        ours = _threads() - self._others
        for thread in ours:
            with contextlib.suppress(OSError):  # it has ended
                self._found.setdefault(thread, os.sched_getaffinity(thread))
        followers = self._followers & _threads_of_descendants()  # numbers may be somebody else's by now
        _move(ours | {threading.get_native_id()} | followers, {core})
        self._look_later()

    # ------------------------------------------------------------------ neighbours

    def _look_later(self) -> None:
        self._seen = {thread: ran for thread in _threads() - self._others if (ran := _ran(thread)) is not None}
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _look(self) -> None:
        before = self._seen
        self._look_later()
        if is_crowded([Ran(now.run - then.run, now.wait - then.wait) for now, then in _pairs(self._seen, before)]):
            self._leave()

    def _leave(self) -> None:
        assert self._timer is not None
        self._timer.cancel()
        self.is_away = True
        log.info("core %d is somebody else's as well: on all cores for %.0f s", self.core, AWAY_S)
        self._put_back()
        _move([threading.get_native_id()], self._everywhere)
        self._followers = _move(_threads_of_descendants(), self._everywhere, {self.core})
        self._timer = asyncio.get_running_loop().call_later(AWAY_S, self._come_back)

    def _come_back(self) -> None:
        """To the core where the kernel has put the loop, which is one with little to do."""
        self._gather(_this_core())

    def _put_back(self) -> None:
        for thread, cores in self._found.items():
            _move([thread], cores)
        # Those that were started meanwhile: the next time they would be found here, and kept.
        _move(_threads() - self._others - self._found.keys(), self._everywhere, {self.core})


def is_crowded(threads: Sequence[Ran]) -> bool:
    """Whether all that ran for a good part of LOOK_S had to wait for somebody who is none of them."""
    busy = [each.wait / each.run for each in threads if each.run > BUSY * LOOK_S * 1e9]
    return bool(busy) and min(busy) > CROWDED


def _pairs(now: Mapping[int, Ran], then: Mapping[int, Ran]) -> list[tuple[Ran, Ran]]:
    return [(ran, then[thread]) for thread, ran in now.items() if thread in then]


def _ran(thread: int) -> Ran | None:
    """None for one that has ended, or where the kernel does not count."""
    with contextlib.suppress(OSError, ValueError):
        run, wait, _times = map(int, Path(f"/proc/self/task/{thread}/schedstat").read_text().split())
        return Ran(run, wait)
    return None


def _this_core() -> int:
    """Of the calling thread, at this moment."""
    core: int = ctypes.CDLL(None).sched_getcpu()
    return core


def _move(threads: Iterable[int], cores: set[int], only_from: set[int] | None = None) -> set[int]:
    """Those that were moved: not those that have ended, nor those that were elsewhere than on `only_from`."""
    moved: set[int] = set()
    if sys.platform == "linux":
        for thread in threads:
            with contextlib.suppress(OSError):
                if only_from is None or os.sched_getaffinity(thread) == only_from:
                    os.sched_setaffinity(thread, cores)
                    moved.add(thread)
    return moved


def _threads(process: int | str = "self") -> set[int]:
    folder = Path(f"/proc/{process}/task")
    with contextlib.suppress(OSError):
        return {int(each.name) for each in folder.iterdir()}
    return set()


def _threads_of_descendants() -> set[int]:
    """Of all processes that this one, or one of those, started."""
    return set[int]().union(*map(_threads, _descendants("self")))


def _descendants(process: int | str) -> Iterator[int]:
    """Its children, theirs, and so on."""
    for thread in _threads(process):
        children: list[str] = []
        with contextlib.suppress(OSError):
            children = Path(f"/proc/{process}/task/{thread}/children").read_text().split()
        for child in children:
            yield int(child)
            yield from _descendants(int(child))
