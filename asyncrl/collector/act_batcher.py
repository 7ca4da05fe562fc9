"""`ActBatcher`: lanes that wait for actions become one forward on one inference thread.

The loop submits, the thread acts, the loop gets the results back in one wake-up per batch. A batch holds every lane
that waits when the thread takes it, in order of lane; it is fired when `fire_at` of them wait, or as many as can come
at all, or when the first of them has waited for `deadline_s`. While a forward runs, those that arrive gather.

Where nothing else computes in this process while lanes are stepped (evaluation, collection that alternates with
learning), `on_loop` saves the way to the thread and back, which is two wake-ups a batch. Beside a learner it would
hold up the loop.

Invariants: every submitted lane gets its own rows back, once (test_many_producers_get_their_own_rows_back); rows of a
batch are in order of lane (test_a_batch_is_in_order_of_lane); an error of the policy reaches every waiter of its batch
and no other (test_an_error_reaches_every_waiter_of_its_batch); closing fails whoever still waits and joins the thread
(test_close_fails_the_waiters_and_joins); no more lanes wait than there are (test_submissions_are_bounded).
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from queue import SimpleQueue
from typing import NamedTuple

from asyncrl.collector.joining import ActRequest, Joiner
from asyncrl.errors import AsyncRLError, LocalProtocolError
from asyncrl.policy import Acted, Policy


class ActingStopped(AsyncRLError):
    """The act batcher was closed before these rows were acted upon."""


class _Waiter(NamedTuple):
    request: ActRequest
    answer: asyncio.Future[Acted]


_Outcome = list[Acted] | BaseException


class ActBatcher:
    """Belongs to the loop it is made on. Use it as an async context manager, or call `close`."""

    def __init__(
        self, policy: Policy, max_lanes: int, fire_at: int = 1, deadline_s: float = 0.002, *, on_loop: bool = False
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._policy = policy
        self._max_lanes = max_lanes
        self._fire_at = fire_at
        self._deadline_s = deadline_s
        self._lanes = max_lanes
        self._answers: dict[int, asyncio.Future[Acted]] = {}  # by lane; loop only
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        # Shared with the thread; deque and SimpleQueue are their own guards. `_fired` is set by the loop after an
        # append and cleared by the thread before it takes: who finds it set has been seen by that very taking.
        self._waiting: deque[_Waiter] = deque()
        self._fired = False
        self._tokens: SimpleQueue[bool] = SimpleQueue()  # at most one True (take what waits) and one False (stop)
        self._joiner = Joiner()  # of whoever acts
        self._stopped: asyncio.Future[None] = self._loop.create_future()
        self._thread: threading.Thread | None = None
        if not on_loop:
            self._thread = threading.Thread(target=self._run, name="asyncrl-inference", daemon=True)
            self._thread.start()

    @property
    def num_waiting(self) -> int:
        """Lanes that no forward has taken yet."""
        return len(self._waiting)

    def submit(self, request: ActRequest) -> asyncio.Future[Acted]:
        """The future of this lane's rows. Cancelling it drops the rows if no forward has taken them."""
        if self._closed:
            raise ActingStopped("the act batcher is closed")
        if not 0 <= request.lane < self._max_lanes:
            raise LocalProtocolError(f"lane {request.lane} of {self._max_lanes}")
        earlier = self._answers.get(request.lane)
        if earlier is not None and not earlier.done():
            raise LocalProtocolError(f"lane {request.lane} waits for its actions already")
        answer: asyncio.Future[Acted] = self._loop.create_future()
        self._answers[request.lane] = answer
        self._waiting.append(_Waiter(request, answer))
        self._fire_or_wait()
        return answer

    def set_lanes(self, can_arrive: int) -> None:
        """How many lanes there are to wait for now: without those that are lost, paused or finished."""
        self._lanes = can_arrive
        if self._waiting:
            self._fire_or_wait()

    async def close(self) -> None:
        """Fails whoever waits, ends the thread after the forward it is in. Cancelled, it leaves that to the thread."""
        if not self._closed:
            self._closed = True
            self._stop_timer()
            self._tokens.put(False)
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(ActingStopped("the act batcher was closed"))
            self._answers.clear()
            self._waiting.clear()
        if self._thread is not None:
            await asyncio.shield(self._stopped)
            self._thread.join()  # it has nothing left to do

    async def __aenter__(self) -> ActBatcher:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    # ------------------------------------------------------------------------------------------------ on the loop

    def _fire_or_wait(self) -> None:
        if self._fired:
            return
        if len(self._waiting) >= min(self._fire_at, self._lanes):
            self._fire()
        elif self._timer is None and self._waiting:
            self._timer = self._loop.call_later(self._deadline_s, self._fire)

    def _fire(self) -> None:
        self._stop_timer()
        if not self._fired:
            self._fired = True
            if self._thread is None:
                # Not at once: lanes whose rows came in the same turn of the loop share the forward.
                self._loop.call_soon(self._act_on_loop)
            else:
                self._tokens.put(True)

    def _act_on_loop(self) -> None:
        self._fired = False
        batch = self._take()
        if batch:
            self._deliver(batch, self._act(batch))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _deliver(self, batch: list[_Waiter], outcome: _Outcome) -> None:
        if self._closed:
            return
        for index, (request, answer) in enumerate(batch):
            if answer.done():  # cancelled
                continue
            del self._answers[request.lane]
            if isinstance(outcome, BaseException):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome[index])

    # ---------------------------------------------------------------------------------------------- on the thread

    def _run(self) -> None:
        try:
            while self._tokens.get():
                self._fired = False
                batch = self._take()
                if batch:
                    self._loop.call_soon_threadsafe(self._deliver, batch, self._act(batch))
            self._loop.call_soon_threadsafe(self._finish)
        except RuntimeError:  # the loop was closed under us: nobody is left to tell
            return

    def _finish(self) -> None:
        if not self._stopped.done():
            self._stopped.set_result(None)

    def _take(self) -> list[_Waiter]:
        batch: list[_Waiter] = []
        while True:
            try:
                waiter = self._waiting.popleft()
            except IndexError:
                break
            if not waiter.answer.cancelled():
                batch.append(waiter)
        if len(batch) > 1:
            batch.sort(key=_lane_of)
        return batch

    def _act(self, batch: list[_Waiter]) -> _Outcome:
        try:
            return self._joiner.act(self._policy, [request for request, _answer in batch])
        except StopIteration as error:  # the one exception that a future refuses
            return RuntimeError(f"the policy raised {error!r}")
        except BaseException as error:  # whatever it is, the waiters must hear of it
            return error


def _lane_of(waiter: _Waiter) -> int:
    return waiter.request.lane
