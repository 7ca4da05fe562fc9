"""The life of a vector environment's fleet on the shared I/O loop, from the thread that wants it.

Invariants: a session that did not come to be leaves nothing behind, whether it was refused
(test_a_refused_session_leaves_nothing) or interrupted (test_an_interrupted_beginning_leaves_nothing); every open
session is closed at the exit of the interpreter, before the loop is
(test_the_interpreter_exits_with_an_open_environment).
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
import weakref
from concurrent.futures import CancelledError, Future
from typing import Any, Final

from asyncrl.client import io_loop
from asyncrl.client.connecting import Addresses, connect
from asyncrl.client.credentials import Access
from asyncrl.client.fleet import Fleet
from asyncrl.client.timing import LaneTimers
from asyncrl.vector.exchange import Exchange

CLOSE_S: Final = 20.0
# The fleet finds out by itself, after its own deadline and grace, that a lane does not answer.
MARGIN_S: Final = 2.0


class Session:
    """An open fleet and the exchange with it. Close it from any thread; it closes itself at exit."""

    def __init__(self, servers: Addresses, access: Access | None, timers: LaneTimers, settings: dict[str, Any]) -> None:
        self._loop = io_loop.shared_loop()
        self._pid = os.getpid()
        self._closed = False
        self._lock = threading.Lock()
        opened: Future[Exchange] = Future()
        over = threading.Event()
        life = _life(opened, over, servers, access, {"timers": timers, **settings})
        self._life = asyncio.run_coroutine_threadsafe(life, self._loop)
        self._life.add_done_callback(lambda life: _fail_if_pending(opened, life))
        try:
            self.exchange = opened.result()
        except BaseException:
            # Ctrl-C, for one. Behind the callback that starts it: cancelled before, it would never say that it is over.
            self._loop.call_soon_threadsafe(self._loop.call_soon, self._life.cancel)
            # Nobody else waits for it: at exit its loop would be gone before its streams and its server are.
            over.wait(CLOSE_S)
            raise
        _open.add(self)

    @property
    def fleet(self) -> Fleet:
        return self.exchange.fleet

    def close(self) -> None:
        """Say BYE on every lane and wait for the ends, unless called on the loop itself. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if os.getpid() != self._pid:
            return  # a forked child has neither the loop's thread nor the right to end its parent's lanes
        with contextlib.suppress(RuntimeError):  # the loop is closed: so are its streams
            self.exchange.stop()
            if not _is_current(self._loop):
                with contextlib.suppress(TimeoutError, CancelledError):
                    self._life.result(CLOSE_S)


async def _life(
    opened: Future[Exchange],
    over: threading.Event,
    servers: Addresses,
    access: Access | None,
    settings: dict[str, Any],
) -> None:
    timers: LaneTimers = settings["timers"]
    try:
        async with connect(servers, access=access, **settings) as fleet:
            margin_s = timers.grace_s + MARGIN_S
            loop = asyncio.get_running_loop()
            exchange = Exchange(loop, fleet, timers.step_s + margin_s, timers.reset_s + margin_s)
            opened.set_result(exchange)
            await exchange.serve()
    finally:
        over.set()


def _fail_if_pending(opened: Future[Exchange], life: Future[None]) -> None:
    if not opened.done():
        error = None if life.cancelled() else life.exception()
        opened.set_exception(error or CancelledError())


def _is_current(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


_open: weakref.WeakSet[Session] = weakref.WeakSet()


def _close_all() -> None:
    for session in list(_open):
        session.close()


# Registered after that of io_loop, which this module imports: so it runs before it.
atexit.register(_close_all)
