"""One event loop on one thread for everybody in this process who is not asynchronous.

grpc.aio shares its completion queue between all loops of a process, so there is one loop, not one for each vector
environment. It starts with its first use and ends at exit.

Invariants: every caller shares one loop (test_every_caller_shares_one_loop); after a fork the child gets a loop of its
own, because threads do not survive a fork (test_a_forked_child_gets_a_loop_of_its_own).
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from asyncrl.client.loop_factory import new_event_loop
from asyncrl.errors import LocalProtocolError

T = TypeVar("T")
JOIN_S: Final = 5.0

_lock = threading.Lock()
_current: _IoLoop | None = None  # guarded by _lock


class _IoLoop:
    """A running loop and its thread."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = new_event_loop()
        self.thread = threading.Thread(target=self._run, name="asyncrl-io", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(JOIN_S)


def shared_loop() -> asyncio.AbstractEventLoop:
    """The loop; it runs."""
    global _current
    with _lock:
        if _current is None or _current.pid != os.getpid():
            _current = _IoLoop()
        return _current.loop


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the shared loop and wait for its result; KeyboardInterrupt cancels it.

    >>> run_sync(asyncio.sleep(0, "slept"))
    'slept'
    """
    loop = shared_loop()
    if _is_on(loop):
        coroutine.close()
        raise LocalProtocolError("run_sync would wait for the loop that it is called on: await the coroutine instead")
    future = asyncio.run_coroutine_threadsafe(coroutine, loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def _is_on(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def stop() -> None:
    """End the shared loop; the next use starts another. Whoever has streams on it should have closed them."""
    global _current
    with _lock:
        ours, _current = _current, None
    if ours is not None and ours.pid == os.getpid():
        ours.stop()


atexit.register(stop)
