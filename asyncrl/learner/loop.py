"""`LearnerThread`: takes unrolls, updates, publishes, and tells the loop, round after round, in a thread of its own.

In sync and lag modes a list from the hand-off is a round. In async mode a round is a batch of what `Gathering` has, as
large as the configuration wants it, and what is too old by then is left out. An empty list wakes the thread and is no
round.

Guard: `_calls` and `_is_over` belong to `_lock`. `standing`, `failure`, `_busy_since` and `_durations` are written by
the thread and read by the loop, a single reference each. Everything else that both touch is the hand-off's and the
mailbox's own affair.

Invariants: a round is trained on, published and then told of, in this order (test_rounds_are_published_then_told); an
error ends the hand-off with a typed error that reaches the loop (test_an_error_reaches_the_loop); calls run between
updates in the thread, also while it waits for data (test_calls_run_between_updates); stopping ends after the update it
is in, and every call is answered (test_stopping_ends_after_the_update, test_every_call_is_answered); an update that
hangs is told of once (test_a_hang_is_told_of_once), one that was stopped with its process is not
(test_whoever_was_stopped_does_not_hang); in async mode no round is shorter than asked for, and nothing is
trained on that is too old (test_async_gathers_what_is_fresh); after the last round nothing more is trained on
(test_nothing_is_trained_on_after_the_last_round).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from torch import nn

from asyncrl.buffers.gathering import Gathering
from asyncrl.buffers.handoff import Handoff
from asyncrl.buffers.staleness import Staleness, StalenessCounts
from asyncrl.config import RunConfig
from asyncrl.errors import AsyncRLError, LocalProtocolError
from asyncrl.learner.machine import use_threads
from asyncrl.learner.publishing import Published, publish
from asyncrl.params import ParamMailbox
from asyncrl.records import Unroll

R = TypeVar("R")

MAX_CALLS: Final = 64  # that wait at once
_KNOWN: Final = 3  # updates before there is a median to speak of
_KEPT: Final = 64  # durations that the median is of


class LearnerFailed(AsyncRLError):
    """An update, or its publication, raised; `__cause__` is what it raised. Nothing newer was published."""


class Learner(Protocol):
    """What the thread drives. `model` is what is published."""

    @property
    def model(self) -> nn.Module: ...

    def update(self, unrolls: Sequence[Unroll], progress: float) -> dict[str, float]: ...


class Update(NamedTuple):
    """One round, trained on and published."""

    rounds: int  # trained on so far, and the version of the weights that were published
    steps: int  # of this round: transitions
    metrics: dict[str, float]
    update_s: float = 0.0  # spent updating and publishing
    wait_s: float = 0.0  # spent waiting for the round


class Standing(NamedTuple):
    """What the model has been trained on."""

    rounds: int
    steps: int


class Hang(NamedTuple):
    """An update that takes much longer than they do."""

    busy_s: float
    median_s: float


@dataclass(frozen=True)
class ThreadWish:
    """How long the thread runs, and when the loop is told that it hangs."""

    last_round: int | None = None  # None: until the hand-off is stopped
    hang_factor: float = 5.0  # times the median update
    hang_floor_s: float = 10.0
    on_hang: Callable[[Hang], None] = lambda hang: None


class LearnerThread:
    """Belongs to the loop it is made on, and runs from then on; `close` ends it. Callbacks come on the loop."""

    def __init__(
        self,
        handoff: Handoff,
        learner: Learner,
        box: ParamMailbox[Published],
        config: RunConfig,
        on_update: Callable[[Update], None],
        *,
        standing: Standing | None = None,
        wish: ThreadWish | None = None,
    ) -> None:
        self._handoff, self._learner, self._box, self._config = handoff, learner, box, config
        self._on_update = on_update
        self.standing = standing or Standing(0, 0)  # replaced after each round; exact for whoever reads it in a `call`
        self.failure: LearnerFailed | None = None  # what the model holds then is of no whole round
        self._wish = wish or ThreadWish()
        is_async = config.max_ahead is None
        self._staleness = Staleness(config.max_lag if is_async else None)
        self._gathering = Gathering(config.batch_size, self._staleness) if is_async else None
        self._lock = threading.Lock()
        self._calls: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()
        self._is_over = False
        self._busy_since: float | None = None
        self._durations: deque[float] = deque(maxlen=_KEPT)
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._told_of: float | None = None  # `_busy_since` of the hang that was told of
        self._watch = self._loop.call_later(self._wish.hang_floor_s, self._look)
        self._thread = threading.Thread(target=self._run, name="learner", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ on the loop

    @property
    def is_running(self) -> bool:
        """Whether `call` may be used."""
        with self._lock:
            return not self._is_over

    @property
    def staleness(self) -> StalenessCounts:
        """How old the data was; in async mode also what was too old."""
        return self._staleness.counts

    def call(self, function: Callable[[], R]) -> asyncio.Future[R]:
        """Run `function` in the learner's thread, before the next update begins; its result or its exception.

        Raises LocalProtocolError once the thread has ended. A future that is cancelled may or may not have run it.
        """
        future: asyncio.Future[R] = self._loop.create_future()
        with self._lock:
            if self._is_over:
                raise LocalProtocolError("the learner's thread has ended: call the function yourself")
            if len(self._calls) >= MAX_CALLS:
                raise LocalProtocolError(f"{MAX_CALLS} calls wait for the learner already")
            self._calls.append((function, future))
        # Wakes it where it waits for data. Where there is no room it has data, and where the hand-off is stopped it
        # answers what waits before it ends.
        with contextlib.suppress(AsyncRLError):
            self._handoff.put_nowait([])
        return future

    async def close(self) -> None:
        """Stop the hand-off and wait for the end of the update that the thread is in. Every update was told of then.

        Idempotent. Cancelled, the thread ends all the same, and nobody waits for it.
        """
        self._handoff.stop()
        await asyncio.shield(self._ended)
        self._watch.cancel()
        self._thread.join()

    def _look(self) -> None:
        """Whether the update that it is in takes too long."""
        since, wish = self._busy_since, self._wish
        typical = median(self._durations) if len(self._durations) >= _KNOWN else None
        limit = wish.hang_floor_s if typical is None else max(wish.hang_factor * typical, wish.hang_floor_s)
        # A look that comes late says that the process was stopped: what the update lost by it has until the next one.
        was_stopped = self._loop.time() - self._watch.when() > limit / 2
        if since is not None and typical is not None and since != self._told_of and not was_stopped:
            busy = time.monotonic() - since
            if busy > limit:
                self._told_of = since
                wish.on_hang(Hang(busy, typical))
        self._watch = self._loop.call_later(limit / 2, self._look)

    def _tell(self, callback: Callable[..., Any], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:  # the loop was closed: nobody is left to tell
            return

    # ------------------------------------------------------------------ in the thread

    def _run(self) -> None:
        try:
            use_threads(self._config.learner_threads)
            self._learn()
        except BaseException as error:  # whatever it is, the loop has to know
            failure = LearnerFailed(f"round {self.standing.rounds + 1}: {type(error).__name__}: {error}")
            failure.__cause__ = error
            self.failure = failure
            self._handoff.stop(failure)
        finally:
            self._busy_since = None
            with self._lock:
                self._is_over = True
            self._answer_calls()
            self._tell(self._ended.set_result, None)

    def _learn(self) -> None:
        config = self._config
        while self.standing.rounds != self._wish.last_round:
            rounds, steps = self.standing
            began = time.monotonic()
            unrolls = self._gather()
            if unrolls is None:
                return
            self._busy_since = taken = time.monotonic()
            metrics = self._learner.update(unrolls, min(rounds / max(config.num_rounds, 1), 1.0))
            publish(self._learner.model, self._box, rounds + 1)
            of_round = sum(unroll.num_valid for unroll in unrolls)
            self.standing = Standing(rounds + 1, steps + of_round)
            spent = time.monotonic() - taken
            self._busy_since = None
            self._durations.append(spent)
            self._tell(self._on_update, Update(rounds + 1, of_round, metrics, spent, taken - began))

    def _gather(self) -> list[Unroll] | None:
        """A round; None once the hand-off is stopped."""
        gathering = self._gathering
        while not self._handoff.is_stopped:
            self._answer_calls()
            # One list that was taken may be enough for several batches.
            if gathering is not None and (batch := gathering.batch(self.standing.rounds)) is not None:
                return batch
            taken = self._handoff.take()
            if taken is None:
                return None
            self._answer_calls()
            if gathering is not None:
                gathering.add(taken)
            elif taken:
                self._staleness.admit(taken, self.standing.rounds)
                return taken  # lanes that were lost in it belong to the round as well
        return None

    def _answer_calls(self) -> None:
        while True:
            with self._lock:
                if not self._calls:
                    return
                function, future = self._calls.popleft()
            try:
                result = function()
            except BaseException as error:  # it is the caller's
                self._tell(_answer, future, None, error)
            else:
                self._tell(_answer, future, result, None)


def _answer(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.cancelled():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
