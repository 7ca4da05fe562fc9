"""The hand-over between the caller's thread and the fleet on the I/O loop.

The caller posts one command and waits for one batch: two crossings of threads a step, however many lanes there are.
Everything else happens on the loop, which alone knows which lane may be stepped: an action that was chosen by the
observations of a lost lane never reaches the lane that replaced it (test_an_action_never_reaches_a_replacement).
A wait ends when the lanes that can answer have answered, or at a deadline (test_a_wait_is_bounded). What the loop holds
for the caller is at most a loss and the first rows of its replacement per lane.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, Final, Literal, NamedTuple, TypeVar

from asyncrl.client.fleet import Fleet
from asyncrl.client.fleet_config import FleetEvent
from asyncrl.client.fleet_lane import Arrival
from asyncrl.errors import AsyncRLError, DeadlineExceeded, LocalProtocolError, ServerRefused
from asyncrl.wire.step_rows import StepRows
from asyncrl.wire.tensors import Array

T = TypeVar("T")

# A loop that does not even give up in time after its own deadline is stuck.
STUCK_S: Final = 10.0


class LaneReset(NamedTuple):
    """One lane's part of a reset; `mask` `[B]`, None for all of its rows."""

    mask: Array | None
    seeds: list[int | None] | None
    options: dict[str, Any] | None


class Answer(NamedTuple):
    """What a lane has for the caller: rows, or None where it has no environments now; or why it refused.

    `replaced`: of a reset, whose rows are the first that the caller gets of another lane in this one's place.
    """

    lane: int
    rows: StepRows | None
    refused: ServerRefused | None = None
    replaced: bool = False


Batch = list[Answer] | AsyncRLError


class Exchange:
    """One fleet, driven from one thread that is not its loop's."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fleet: Fleet, step_s: float, reset_s: float) -> None:
        self.fleet = fleet
        self._loop = loop
        self._step_s = step_s
        self._reset_s = reset_s
        self._box: SimpleQueue[Batch] = SimpleQueue()  # one batch per command that waits
        # Whose batch is on its way: posted, or of a caller that was interrupted (Ctrl-C) while it waited.
        self._owed: Literal["", "call", "take"] = ""
        # The rest belongs to the loop's thread.
        self._stop = asyncio.Event()
        self._refused: deque[int] = deque()  # lanes whose refusal is on its way through the fleet
        self._news: dict[int, list[Answer]] = {}  # what nobody asked for: a loss, first rows of a replacement
        self._away: set[int] = set()  # lanes without environments, as far as the caller knows
        self._due: set[int] = set()  # lanes that owe an answer
        self._resets: dict[int, LaneReset] = {}  # of lanes that are due, in case a replacement needs them
        self._replaced: set[int] = set()  # lanes whose loss a reset has swallowed
        self._ready: list[Answer] = []
        self._wanted = 0  # slots; 0: nobody waits
        self._patient = False  # whether lanes that are away are waited for
        self._timer: asyncio.TimerHandle | None = None
        self._failure: AsyncRLError | None = None
        fleet.on_event = self._heard

    # ------------------------------------------------------------------ the caller's side

    def step(self, actions: Sequence[list[Array]]) -> list[Answer]:
        """Step every lane that has environments; one answer per lane, in order of the lanes."""
        return self._ask(lambda: self._step_all(actions), self._step_s)

    def post_step(self, actions: Sequence[list[Array]]) -> None:
        """As `step`, without waiting: `step_answers` has them. The lanes read the arrays later."""
        self._post("call", lambda: self._step_all(actions), self._step_s)

    def step_answers(self) -> list[Answer]:
        """What `step` gives, of the last step that was posted."""
        if self._owed != "call":
            raise LocalProtocolError("no step is on its way: send one first")
        return self._receive(self._step_s)

    def reset(self, parts: dict[int, LaneReset]) -> list[Answer]:
        """Reset lanes; one answer for each, in order. Waits for the replacements of lost ones."""
        return self._ask(lambda: self._reset_all(parts), self._reset_s)

    def post_resets(self, parts: dict[int, LaneReset]) -> None:
        """As `reset`, without waiting: the answers come by `take`."""
        self._drop_call()
        self._loop.call_soon_threadsafe(self._run_posted, lambda: self._begin_resets(parts))

    def post_steps(self, actions: dict[int, list[Array]]) -> None:
        """Step some lanes without waiting. One without environments answers when it has them again."""
        self._drop_call()
        self._loop.call_soon_threadsafe(self._run_posted, lambda: self._begin_steps(actions))

    def take(self, num_slots: int) -> list[Answer]:
        """Answers of lanes with `num_slots` slots together, or of all that can still answer if those have fewer."""
        within_s = max(self._step_s, self._reset_s)
        if self._owed != "take":
            self._post("take", lambda: self._want(num_slots), within_s)
        return self._receive(within_s)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine on the loop."""
        future: Future[T] = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        return future.result()

    def stop(self) -> None:
        """End `serve`. Idempotent; from any thread."""
        self._loop.call_soon_threadsafe(self._stop.set)

    def _ask(self, command: Callable[[], None], within_s: float) -> list[Answer]:
        self._post("call", command, within_s)
        return self._receive(within_s)

    def _post(self, owed: Literal["call", "take"], command: Callable[[], None], within_s: float) -> None:
        if self._owed:
            # The rows of the call that was interrupted: nobody will see them, but lanes answer one call at a time.
            self._receive(within_s)
        self._owed = owed
        self._loop.call_soon_threadsafe(self._run_asked, command, within_s)

    def _drop_call(self) -> None:
        """Of an interrupted call: `take` would give its rows for those that are posted now."""
        if self._owed == "call":
            self._receive(max(self._step_s, self._reset_s))

    def _receive(self, within_s: float) -> list[Answer]:
        try:
            batch = self._box.get(timeout=within_s + STUCK_S)
        except Empty:
            self.stop()
            raise DeadlineExceeded(f"the I/O loop is blocked: no answer within {within_s + STUCK_S:g} s") from None
        self._owed = ""
        if isinstance(batch, AsyncRLError):
            raise batch
        return batch

    # ------------------------------------------------------------------ the loop's side: commands

    async def serve(self) -> None:
        """Receive until `stop`. Cancellation leaves the fleet to whoever opened it."""
        async with asyncio.TaskGroup() as group:
            pump = group.create_task(self._pump())
            await self._stop.wait()
            pump.cancel()
        self._fail(LocalProtocolError("the environment was closed"))

    def _run_asked(self, command: Callable[[], None], within_s: float) -> None:
        self._timer = self._loop.call_later(within_s, self._give_up)
        if self._failure is not None:
            self._release(self._failure)
            return
        try:
            command()
        except AsyncRLError as error:
            self._release(error)

    def _run_posted(self, command: Callable[[], None]) -> None:
        try:
            command()
        except AsyncRLError as error:
            self._fail(error)

    def _step_all(self, actions: Sequence[list[Array]]) -> None:
        has_news = any(self._news.values())
        for number, action in enumerate(actions):
            if not self._begin_step(number, action):
                self._put(Answer(number, None))
        if has_news or self._due:
            self._want(self.fleet.num_envs)
        else:
            # Every lane was lost before: rows without transitions are worth no busy loop, so wait for news of any.
            self._wanted, self._patient = self.fleet.num_envs + 1, True

    def _begin_steps(self, actions: dict[int, list[Array]]) -> None:
        for number, action in actions.items():
            if not self._begin_step(number, action):
                self._due.add(number)
        self._check()

    def _begin_step(self, number: int, action: list[Array]) -> bool:
        """Whether the lane has answered or will; False where it has no environments."""
        news = self._news.get(number)
        if news:
            answer = news.pop(0)
            if answer.rows is None and not news:
                self._away.add(number)
            self._put(answer)
            return True
        if number not in self._away and self.fleet.lanes[number].step(action):
            self._due.add(number)
            return True
        self._away.add(number)
        return False

    def _reset_all(self, parts: dict[int, LaneReset]) -> None:
        self._begin_resets(parts)
        self._want(self.fleet.num_envs, patient=True)

    def _begin_resets(self, parts: dict[int, LaneReset]) -> None:
        for number, part in parts.items():
            self._due.add(number)
            self._resets[number] = part
            news = self._news.pop(number, [])
            if any(answer.rows is None for answer in news):
                self._replaced.add(number)
            if news and news[-1].rows is None:
                self._away.add(number)
            if number not in self._away and not self.fleet.lanes[number].reset(*part):
                self._away.add(number)  # its replacement is reset instead

    # ------------------------------------------------------------------ the loop's side: arrivals

    async def _pump(self) -> None:
        while self._failure is None:
            try:
                self._arrived(await self.fleet.recv())
            except ServerRefused as error:
                if self._refused:
                    self._settle(Answer(self._refused.popleft(), None, error))
                else:
                    self._fail(error)
            except AsyncRLError as error:
                self._fail(error)

    def _heard(self, event: FleetEvent) -> None:
        if event.kind == "request_refused":
            self._refused.append(event.lane)

    def _arrived(self, arrival: Arrival) -> None:
        number = arrival.lane.index
        if arrival.rows is None:
            self._lost(number)
            return
        was_away = number in self._away
        self._away.discard(number)
        part = self._resets.get(number) if was_away else None
        if part is None or not arrival.lane.reset(*part):
            self._settle(Answer(number, arrival.rows))

    def _lost(self, number: int) -> None:
        if number in self._resets:
            self._away.add(number)  # the reset goes to the replacement
            self._replaced.add(number)
        elif number in self._away:
            return
        elif number in self._due:
            self._away.add(number)
            self._put(Answer(number, None))
        else:
            self._news[number] = [Answer(number, None)]
        self._check()

    def _settle(self, answer: Answer) -> None:
        if answer.lane in self._due:
            self._put(answer)
        elif answer.refused is None:
            self._news.setdefault(answer.lane, []).append(answer)
        self._check()

    # ------------------------------------------------------------------ the loop's side: batches

    def _put(self, answer: Answer) -> None:
        self._due.discard(answer.lane)
        self._resets.pop(answer.lane, None)
        self._ready.append(answer._replace(replaced=answer.lane in self._replaced))
        self._replaced.discard(answer.lane)

    def _want(self, num_slots: int, patient: bool = False) -> None:
        self._wanted, self._patient = num_slots, patient
        self._check()

    def _check(self) -> None:
        """Hand over what is ready, if it is enough, or if nothing more can come soon."""
        if not self._wanted:
            return
        lanes = self.fleet.lanes
        coming = self._due if self._patient else self._due - self._away
        if (self._ready and not coming) or sum(lanes[a.lane].num_slots for a in self._ready) >= self._wanted:
            self._release()

    def _give_up(self) -> None:
        """The deadline: lanes that did not answer have no rows. Should they answer yet, it is news."""
        for number in sorted(self._due):
            self._away.add(number)
            self._put(Answer(number, None))
        self._release()

    def _release(self, error: AsyncRLError | None = None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch, self._ready, self._wanted = self._ready, [], 0
        self._box.put(sorted(batch, key=lambda answer: answer.lane) if error is None else error)

    def _fail(self, error: AsyncRLError) -> None:
        """The fleet is over: whoever waits, and whoever asks from now on, hears why."""
        self._failure = self._failure or error
        if self._wanted:
            self._release(error)
