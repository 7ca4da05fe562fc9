"""`ActBatcher`: lanes that wait for actions become one forward on one inference thread.

The loop submits, the thread acts, the loop gets the results back in one wake-up per batch. There are two rules for who
shares a forward.

* Whoever is ready: a batch holds every lane that waits when the thread takes it. It is fired when `fire_at` of them
  wait, or as many as are expected at all, or when the first of them has waited for `deadline_s`. While a forward runs,
  those that arrive gather.
* Fixed groups (`num_groups`): neighbouring lanes act together, and a group acts when all of its expected lanes wait.
  Who shares a forward then does not depend on who arrives when, so that acting is reproducible bit for bit.

Where nothing else computes in this process while lanes are stepped (evaluation, collection that alternates with
learning), `on_loop` saves the way to the thread and back, which is two wake-ups a batch. Beside a learner it would
hold up the loop.

Invariants: every submitted lane gets its own rows back, once (test_many_producers_get_their_own_rows_back); rows of a
batch are in order of lane (test_a_batch_is_in_order_of_lane); groups do not depend on the order of arrival
(test_groups_act_alike_in_whatever_order_lanes_arrive); an error of the policy reaches every waiter of its batch
and no other (test_an_error_reaches_every_waiter_of_its_batch); closing fails whoever still waits and joins the thread
(test_close_fails_the_waiters_and_joins); no more lanes wait than there are (test_submissions_are_bounded).
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from queue import SimpleQueue
from typing import Final, NamedTuple

from asyncrl.collector.joining import ActRequest, Joiner
from asyncrl.errors import AsyncRLError, LocalProtocolError
from asyncrl.policy import Acted, Policy


class ActingStopped(AsyncRLError):
    """The act batcher was closed before these rows were acted upon."""


class _Waiter(NamedTuple):
    request: ActRequest
    answer: asyncio.Future[Acted]


_Batch = list[_Waiter]
_Outcome = list[Acted] | BaseException
_WHOEVER_WAITS: Final[_Batch] = []


class ActBatcher:
    """Belongs to the loop it is made on. Use it as an async context manager, or call `close`."""

    def __init__(
        self,
        policy: Policy,
        max_lanes: int,
        fire_at: int = 1,
        deadline_s: float = 0.002,
        *,
        num_groups: int = 0,
        on_loop: bool = False,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._policy = policy
        self._max_lanes = max_lanes
        self._fire_at = fire_at
        self._deadline_s = deadline_s
        self._expected = set(range(max_lanes))
        self._num_groups = min(num_groups, max_lanes)  # 0: whoever is ready
        self._groups: list[_Batch] = [[] for _ in range(self._num_groups)]  # those that wait; loop only
        self._num_coming = [0] * self._num_groups  # lanes expected, by group
        for lane in self._expected if num_groups else ():
            self._num_coming[self.group_of(lane)] += 1
        self._answers: dict[int, asyncio.Future[Acted]] = {}  # by lane; loop only
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        # Shared with the thread; deque and SimpleQueue are their own guards. `_fired` is set by the loop after an
        # append and cleared by the thread before it takes: who finds it set has been seen by that very taking.
        self._waiting: deque[_Waiter] = deque()
        self._fired = False
        self._tokens: SimpleQueue[_Batch | None] = SimpleQueue()  # at most one a group, or one in all; None: stop
        self._joiner = Joiner()  # of whoever acts
        self._stopped: asyncio.Future[None] = self._loop.create_future()
        self._thread: threading.Thread | None = None
        if not on_loop:
            self._thread = threading.Thread(target=self._run, name="asyncrl-inference", daemon=True)
            self._thread.start()

    @property
    def num_waiting(self) -> int:
        """Lanes that no forward has taken yet."""
        return len(self._waiting) + sum(map(len, self._groups))

    def group_of(self, lane: int) -> int:
        """Groups are of neighbouring lanes, as equal as they can be."""
        return lane * self._num_groups // self._max_lanes

    def submit(self, request: ActRequest) -> asyncio.Future[Acted]:
        """The future of this lane's rows, which may have its result already. Cancelling it drops the rows if no forward
        has taken them."""
        lane = request.lane
        if self._closed:
            raise ActingStopped("the act batcher is closed")
        if not 0 <= lane < self._max_lanes:
            raise LocalProtocolError(f"lane {lane} of {self._max_lanes}")
        earlier = self._answers.get(lane)
        if earlier is not None and not earlier.done():
            raise LocalProtocolError(f"lane {lane} waits for its actions already")
        answer: asyncio.Future[Acted] = self._loop.create_future()
        self._answers[lane] = answer
        waiter = _Waiter(request, answer)
        if self._num_groups:
            group = self.group_of(lane)
            self._groups[group].append(waiter)
            self._fire_group(group)
        else:
            self._waiting.append(waiter)
            self._fire_or_wait()
        return answer

    def expect(self, lane: int, coming: bool) -> None:
        """Whether this lane will submit. At first all are expected; those lost, paused or finished are not.

        Of lanes that come back together all are expected before the first of them submits.
        """
        if coming is (lane in self._expected):
            return
        (self._expected.add if coming else self._expected.remove)(lane)
        if self._num_groups:
            group = self.group_of(lane)
            self._num_coming[group] += 1 if coming else -1
            self._fire_group(group)
        elif self._waiting:
            self._fire_or_wait()

    async def close(self) -> None:
        """Fails whoever waits, ends the thread after the forward it is in. Cancelled, it leaves that to the thread."""
        if not self._closed:
            self._closed = True
            self._stop_timer()
            self._tokens.put(None)
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(ActingStopped("the act batcher was closed"))
            self._answers.clear()
            self._waiting.clear()
            self._groups = [[] for _ in self._groups]
        if self._thread is not None:
            await asyncio.shield(self._stopped)
            self._thread.join()  # it has nothing left to do

    async def __aenter__(self) -> ActBatcher:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    # ------------------------------------------------------------------------------------------------ on the loop

    def _fire_group(self, group: int) -> None:
        waiting, coming = self._groups[group], self._num_coming[group]
        if not waiting or len(waiting) < coming:
            return
        waiting = [waiter for waiter in waiting if not waiter.answer.done()]
        if len(waiting) < coming:
            return
        self._groups[group] = []
        waiting.sort(key=_lane_of)
        if self._thread is None:
            self._act_on_loop(waiting)  # at once: nobody else belongs to this forward
        else:
            self._tokens.put(waiting)

    def _fire_or_wait(self) -> None:
        if self._fired:
            return
        if len(self._waiting) >= min(self._fire_at, len(self._expected)):
            self._fire()
        elif self._timer is None and self._waiting:
            self._timer = self._loop.call_later(self._deadline_s, self._fire)

    def _fire(self) -> None:
        self._stop_timer()
        if not self._fired:
            self._fired = True
            if self._thread is None:
                # Not at once: lanes whose rows came in the same turn of the loop share the forward.
                self._loop.call_soon(self._act_on_loop, _WHOEVER_WAITS)
            else:
                self._tokens.put(_WHOEVER_WAITS)

    def _act_on_loop(self, batch: _Batch) -> None:
        batch = self._taken(batch)
        if batch and not self._closed:
            self._deliver(batch, self._act(batch))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _deliver(self, batch: _Batch, outcome: _Outcome) -> None:
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
            while (batch := self._tokens.get()) is not None:
                batch = self._taken(batch)
                if batch:
                    self._loop.call_soon_threadsafe(self._deliver, batch, self._act(batch))
            self._loop.call_soon_threadsafe(self._finish)
        except RuntimeError:  # the loop was closed under us: nobody is left to tell
            return

    def _finish(self) -> None:
        if not self._stopped.done():
            self._stopped.set_result(None)

    def _taken(self, batch: _Batch) -> _Batch:
        if batch is not _WHOEVER_WAITS:
            return batch
        self._fired = False
        batch = []
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

    def _act(self, batch: _Batch) -> _Outcome:
        try:
            return self._joiner.act(self._policy, [request for request, _answer in batch])
        except StopIteration as error:  # the one exception that a future refuses
            return RuntimeError(f"the policy raised {error!r}")
        except BaseException as error:  # whatever it is, the waiters must hear of it
            return error


def _lane_of(waiter: _Waiter) -> int:
    return waiter.request.lane
