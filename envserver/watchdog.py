"""A thread that ends the server when its event loop stops turning: HTTP/2 keepalive would never tell.

Invariant: a loop that is merely slow is left alone, a stuck one is dumped and ended
(test_a_stuck_loop_is_dumped_and_ended).
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import sys
import threading
from collections.abc import Callable
from typing import Final

EXIT_STALLED: Final = 70
CHECK_S: Final = 1.0


def _dump_and_exit() -> None:
    print("envserver: the event loop stopped turning; stacks of all threads follow", file=sys.stderr, flush=True)
    faulthandler.dump_traceback(sys.__stderr__ or 2, all_threads=True)
    os._exit(EXIT_STALLED)


class Watchdog:
    """Asks the loop for a sign of life every second. `_alive` is set by the loop and cleared by the thread."""

    def __init__(self, stall_s: float, on_stall: Callable[[], None] = _dump_and_exit) -> None:
        self._loop = asyncio.get_running_loop()
        self._stall_s = stall_s
        self._on_stall = on_stall
        self._alive = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()

    def _watch(self) -> None:
        self._ask()
        silent_s = 0.0
        while not self._stop.wait(CHECK_S):
            if self._alive.is_set():
                silent_s = 0.0
                self._ask()
                continue
            silent_s += CHECK_S
            if silent_s >= self._stall_s:
                self._on_stall()
                return

    def _ask(self) -> None:
        self._alive.clear()
        # The loop may have closed while this thread slept.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._alive.set)
