"""`SimLoop`: asyncio on a virtual clock with a seeded scheduler, so that a run can be repeated from its seed.

The clock jumps to the next timer when nothing is ready. The order of what is ready at one moment is drawn from the
seed, or kept with `fifo=True`, which tells a bug of scheduling order from a bug of logic. There is no selector, no
socket and no thread: whoever asks for one gets an error.

Invariants: one seed gives one order of events (test_a_seed_repeats_its_order); waiting for nothing is an error
(test_a_deadlock_names_who_waits); time passes only by timers (test_hours_pass_in_no_time); running without end at one
moment is an error (test_a_livelock_is_an_error).
"""

from __future__ import annotations

import asyncio
import contextvars
import io
import itertools
import random
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final, NoReturn, TypeVar

T = TypeVar("T")
Steps = Generator[Any, None, T] | Coroutine[Any, Any, T]

MAX_TURNS_AT_ONE_MOMENT: Final = 20_000


class SimDeadlock(RuntimeError):
    """Every task waits and no timer is armed."""


class SimLivelock(RuntimeError):
    """The loop turns and turns without the clock moving."""


class SimTimeOver(RuntimeError):
    """The virtual time limit of the run was reached."""


class _SimTask(asyncio.Task[T]):
    """Hashes by its number: sets of tasks, which asyncio iterates, then have the same order in every run."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class _SimFuture(asyncio.Future[T]):
    """As _SimTask."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class _Clock:
    """Stands where asyncio has its selector: instead of waiting for files it moves the time."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        self._loop.pass_time(timeout)
        return []


class SimLoop(asyncio.BaseEventLoop):
    """See the module. `limit_s` ends a run that goes on for longer on the virtual clock."""

    def __init__(self, seed: int, fifo: bool = False, limit_s: float = 3600.0) -> None:
        super().__init__()
        # asyncio's private names, pinned by test_the_private_names_of_asyncio_are_there.
        self._selector = _Clock(self)
        self._now = 0.0
        self._limit_s = limit_s
        self._turns = 0
        self._order = None if fifo else random.Random(seed)
        self._numbers = itertools.count(1)
        self.set_task_factory(self._make_task)

    def time(self) -> float:
        return self._now

    def pass_time(self, timeout: float | None) -> None:
        """Jump by `timeout` seconds to the next timer; None is asked for where there is none."""
        if timeout is None:
            raise SimDeadlock(f"every task waits and no timer is armed, at {self._now:.6f} s\n{self.who_waits()}")
        if timeout > 0:
            self._turns = 0
            self._now += timeout
            if self._now > self._limit_s:
                raise SimTimeOver(f"the run goes on after {self._limit_s:.0f} virtual seconds\n{self.who_waits()}")
            return
        self._turns += 1
        if self._turns > MAX_TURNS_AT_ONE_MOMENT:
            raise SimLivelock(f"{self._turns} turns at {self._now:.6f} s\n{self.who_waits()}")

    def who_waits(self) -> str:
        """Where each task stands, for people."""
        text = io.StringIO()
        for task in sorted(asyncio.all_tasks(self), key=hash):
            print(f"{task.get_name()}:", file=text)
            task.print_stack(limit=3, file=text)
        return text.getvalue()

    def create_future(self) -> asyncio.Future[Any]:
        future: _SimFuture[Any] = _SimFuture(loop=self)
        future.number = next(self._numbers)
        return future

    def call_soon_threadsafe(self, *_args: object, **_kwargs: object) -> NoReturn:
        raise RuntimeError("there are no threads in the simulation")

    def run_in_executor(self, *_args: object) -> NoReturn:
        raise RuntimeError("there are no threads in the simulation")

    def _run_once(self) -> None:
        ready: deque[asyncio.Handle] = self._ready  # type: ignore[attr-defined]
        if self._order is not None and len(ready) > 1:
            handles = list(ready)
            self._order.shuffle(handles)
            ready.clear()
            ready.extend(handles)
        super()._run_once()  # type: ignore[misc]

    def _process_events(self, event_list: list[Any]) -> None:
        """Nothing comes from outside."""

    def _write_to_self(self) -> None:
        """Nobody else could be waking this loop."""

    def _make_task(
        self,
        loop: asyncio.AbstractEventLoop,
        coro: Steps[T],
        context: contextvars.Context | None = None,
        **options: Any,
    ) -> asyncio.Task[T]:
        task: _SimTask[T] = _SimTask(coro, loop=loop, context=context, **options)
        task.number = next(self._numbers)
        if not options.get("name"):
            task.set_name(f"{getattr(coro, '__qualname__', 'task')}#{task.number}")
        return task


def run_sim(main: Callable[[], Coroutine[Any, Any, T]], seed: int, fifo: bool = False, limit_s: float = 3600.0) -> T:
    """`asyncio.run` on a SimLoop. An exception that a task or callback left to the loop's handler fails the run."""
    unhandled: list[dict[str, Any]] = []

    def loop_factory() -> SimLoop:
        loop = SimLoop(seed, fifo, limit_s)
        loop.set_exception_handler(lambda _, context: unhandled.append(context))
        return loop

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        result = runner.run(main())
    if unhandled:
        cause = unhandled[0].get("exception")
        raise AssertionError(f"{len(unhandled)} unhandled: {unhandled[0].get('message')}: {cause!r}") from cause
    return result
