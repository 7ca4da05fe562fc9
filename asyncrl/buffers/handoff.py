"""`Handoff`: unrolls on their way from the event loop to the learner's thread, no more than there is room for.

The loop side awaits room, which pauses collection and by that the environments; the learner side blocks its thread.
Either side stops both: `put` raises from then on, `take` returns None. An error given to `stop` is what `put` raises.

Guard: `_changed`'s lock holds for `_queue`, `_held`, `_stopped`, `_error`; it is held for a few instructions only, so
the loop may take it. `_putters` and `_stop_waiters` belong to the loop.

Invariants: what is put is taken once, in order (test_everything_put_is_taken_once_in_order); no more than `capacity`
unrolls wait, or one list that is longer (test_no_more_than_capacity_waits); `stop` frees both sides
(test_stop_frees_both_sides); the learner's error reaches the loop (test_the_learners_error_reaches_the_loop); a
cancelled put has put nothing (test_a_cancelled_put_has_put_nothing).
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Sequence

from asyncrl.errors import AsyncRLError, LocalProtocolError
from asyncrl.records import Unroll


class HandoffStopped(AsyncRLError):
    """The hand-off was stopped; nothing is taken from it any more."""


class Handoff:
    """Belongs to the loop it is made on; `take` and `stop` may be called on any thread."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise LocalProtocolError(f"a hand-off with room for {capacity}")
        self.capacity = capacity  # unrolls
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._changed = threading.Condition()
        self._queue: deque[list[Unroll]] = deque()
        self._held = 0  # unrolls in the queue
        self._stopped = False
        self._error: BaseException | None = None
        self._putters: deque[asyncio.Future[None]] = deque()
        self._stop_waiters: list[asyncio.Future[None]] = []

    @property
    def num_waiting(self) -> int:
        """Unrolls that nobody has taken yet. After a stop: those that nobody will take."""
        with self._changed:
            return self._held

    @property
    def is_stopped(self) -> bool:
        with self._changed:
            return self._stopped

    # ------------------------------------------------------------------ on the loop

    def put_nowait(self, unrolls: Sequence[Unroll]) -> bool:
        """Whether there was room, and nobody who waited for it before. Raises as `put` does."""
        return not self._putters and self._put(unrolls)

    async def put(self, unrolls: Sequence[Unroll]) -> None:
        """Hand over, as one list, as soon as there is room; in the order of the calls.

        Raises the error that stopped the hand-off, else HandoffStopped. Cancelled, it has put nothing.
        """
        if self.put_nowait(unrolls):
            return
        turn: asyncio.Future[None] = self._loop.create_future()
        self._putters.append(turn)
        try:
            # First in line alone may look: the others would take its room.
            while self._putters[0] is not turn or not self._put(unrolls):
                await turn
                turn = self._renewed(turn)
        finally:
            self._putters.remove(turn)
            self._wake()

    async def stopped(self) -> None:
        """Returns when somebody has stopped the hand-off; raises the error if one was given. Cancellation is free."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._stop_waiters.append(waiter)
        try:
            if not self.is_stopped:  # a stop from now on finds the waiter
                await waiter
        finally:
            self._stop_waiters.remove(waiter)
        with self._changed:
            error = self._error
        if error is not None:
            raise error

    def _put(self, unrolls: Sequence[Unroll]) -> bool:
        with self._changed:
            if self._stopped:
                raise self._error or HandoffStopped("the hand-off was stopped")
            if self._held and self._held + len(unrolls) > self.capacity:
                return False
            self._queue.append(list(unrolls))
            self._held += len(unrolls)
            self._changed.notify_all()
            return True

    def _renewed(self, turn: asyncio.Future[None]) -> asyncio.Future[None]:
        renewed: asyncio.Future[None] = self._loop.create_future()
        self._putters[self._putters.index(turn)] = renewed
        return renewed

    def _wake(self) -> None:
        """Room was made, the line moved up, or the hand-off stopped."""
        waiting = [*self._stop_waiters, *self._putters] if self.is_stopped else list(self._putters)[:1]
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    # ------------------------------------------------------------------ on any thread

    def take(self) -> list[Unroll] | None:
        """The oldest list that was put; waits for one. None once the hand-off is stopped."""
        with self._changed:
            while not self._queue and not self._stopped:
                self._changed.wait()
            if self._stopped:
                return None
            unrolls = self._queue.popleft()
            self._held -= len(unrolls)
        self._tell_loop()
        return unrolls

    def stop(self, error: BaseException | None = None) -> None:
        """End both sides. Idempotent; of several errors the first counts."""
        with self._changed:
            self._stopped = True
            self._error = self._error or error
            self._changed.notify_all()
        self._tell_loop()

    def _tell_loop(self) -> None:
        try:
            on_loop = threading.get_ident() == self._loop_thread
            (self._loop.call_soon if on_loop else self._loop.call_soon_threadsafe)(self._wake)
        except RuntimeError:  # the loop was closed: nobody is left to tell
            return
