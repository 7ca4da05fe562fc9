"""`Collector`: drives a fleet with a policy, and hands unrolls to the learner.

    collector = Collector(fleet, policy, handoff, CollectorConfig(num_steps=128), CollectorState.fresh(fleet.num_envs))
    await collector.run()

When a lane may begin its next unroll is `Rounds`; sync is lag 0, async has no rounds. A hand-off that is full pauses
the lanes whose unrolls it cannot take, and by that their environments.

Invariants: every transition that arrives is in one unroll, in the order of its slot, or is counted as dropped
(test_every_transition_is_in_one_unroll); in sync mode two runs are equal bit for bit, however the lanes arrive
(test_sync_runs_are_equal_bit_for_bit); a slow lane slows no other in async mode (test_a_slow_lane_slows_no_other); a
full hand-off stops the environments (test_a_full_hand_off_pauses_the_lanes); environments that give nothing but NaN
end it (test_environments_that_give_nothing_but_nan_end_it); whatever ends `run`, nothing is left
(test_cancellation_leaves_nothing).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Final

from asyncrl.buffers.handoff import Handoff, HandoffStopped
from asyncrl.client.fleet import Fleet
from asyncrl.collector.act_batcher import ActBatcher
from asyncrl.collector.acting import Actor
from asyncrl.collector.counts import CollectorConfig, CollectorState, CollectorStats, EpisodesEnded
from asyncrl.collector.episodes import EpisodeOrder
from asyncrl.collector.finite import NonFiniteRows
from asyncrl.collector.joining import ActRequest
from asyncrl.collector.lane_driver import LaneDriver, Phase
from asyncrl.collector.rounds import Rounds
from asyncrl.errors import ConfigError, LocalProtocolError
from asyncrl.policy import Acted, Policy
from asyncrl.records import Unroll
from asyncrl.wire.step_rows import StepRows

MAX_EMPTY: Final = 100  # unrolls of each lane, one after the other, of which NaN leaves nothing


class Collector:
    """Of a fleet that is open and whose rows nobody else receives. `run` it once."""

    def __init__(
        self,
        fleet: Fleet,
        policy: Policy,
        handoff: Handoff,
        config: CollectorConfig,
        state: CollectorState,
        on_episodes: Callable[[EpisodesEnded], None] = lambda ended: None,
        make_actor: Callable[[], Actor] | None = None,
    ) -> None:
        """`make_actor`: who acts in place of a batcher of the policy."""
        if fleet.config.autoreset == "disabled":
            raise ConfigError("autoreset disabled leaves every slot at its first end: collect with another")
        if len(state.act_steps) != fleet.num_envs:
            raise ConfigError(f"a state of {len(state.act_steps)} slots for {fleet.num_envs}")
        self.config = config
        self.stats = CollectorStats(state.steps)
        self._fleet = fleet
        self._policy = policy
        self._handoff = handoff
        self._on_episodes = on_episodes
        self._initial = state
        self._rounds = Rounds(len(fleet.lanes), config.lag, state.round)
        self._order = EpisodeOrder(len(fleet.lanes), state.steps, on_episodes) if config.lag is not None else None
        self._drivers = [LaneDriver(lane, config, state, self) for lane in fleet.lanes]
        self._blocked: set[int] = set()  # lanes whose unroll waits for room, in async mode
        self._num_empty = 0  # unrolls without a transition since the last one that had any
        self._outbox: deque[list[Unroll]] = deque()  # at most one unroll a lane and round
        self._posted = asyncio.Event()
        self._make_actor = make_actor or self._make_batcher
        self._actor: Actor | None = None
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # ------------------------------------------------------------------ what its owner does

    async def run(self) -> None:
        """Collect until `stop`, or until the hand-off is stopped.

        Raises what ended it otherwise: an error of the fleet, of the policy, or the one the hand-off was stopped with.
        Then, and when cancelled, no task, thread or pending action is left; the fleet stays open.
        """
        if self._actor is not None:
            raise LocalProtocolError("a collector runs once")
        async with self._make_actor() as self._actor:
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [
                        group.create_task(self._guard(work))
                        for work in (self._receive(), self._put(), self._handoff.stopped())
                    ]
                    await asyncio.wait([self._ended])
                    for task in tasks:
                        task.cancel()
            finally:
                self.stop()
                self._drop_what_is_held()
        error = self._ended.exception()
        if error is not None:
            raise error

    def _make_batcher(self) -> ActBatcher:
        config = self.config
        return ActBatcher(
            self._policy,
            len(self._drivers),
            config.fire_at,
            config.act_deadline_s,
            num_groups=config.act_groups,
            on_loop=config.act_on_loop,
        )

    def stop(self) -> None:
        """`run` returns soon; unrolls that are not complete are dropped."""
        if not self._ended.done():
            self._ended.set_result(None)

    def trained(self, rounds: int) -> None:
        """The learner has finished so many rounds of the run, and published what it learned."""
        self._rounds.num_trained = max(rounds, self._rounds.num_trained)
        self._open_gates()

    def state(self) -> CollectorState:
        """To resume from: the round after the last that was handed over.

        In sync mode it is exact while the learner has that round and `trained` has not been told of it.
        """
        initial, stats = self._initial, self.stats
        carry = [leaf.copy() for leaf in initial.carry]
        act_steps = initial.act_steps.copy()
        for driver in self._drivers:
            act_steps[driver.lane.fleet_slots] = driver.act_steps
            for whole, leaf in zip(carry, driver.carry, strict=True):
                whole[driver.lane.fleet_slots] = leaf
        return CollectorState(act_steps, carry, self._rounds.num_complete, stats.steps)

    # ------------------------------------------------------------------ its tasks

    async def _guard(self, work: Coroutine[object, object, None]) -> None:
        """The first task that ends ends the collector."""
        try:
            await work
        except HandoffStopped:
            self.stop()
        except Exception as error:
            self.fail(error)
        else:
            self.stop()

    async def _receive(self) -> None:
        fleet, drivers = self._fleet, self._drivers
        while True:
            arrival = await fleet.recv()
            drivers[arrival.lane.index].arrived(arrival)

    async def _put(self) -> None:
        while True:
            await self._posted.wait()
            while self._outbox:
                num_steps = _num_steps(self._outbox[0])
                await self._handoff.put(self._outbox[0])
                self._handed(self._outbox.popleft(), num_steps)
            self._posted.clear()

    def _handed(self, unrolls: list[Unroll], num_steps: int) -> None:
        """`num_steps` was counted before: what is in them is the learner's now, who may leave rows out."""
        self.stats.unrolls += len(unrolls)
        self.stats.steps_handed += num_steps
        if self._blocked:
            self._blocked.difference_update(unroll.lane for unroll in unrolls)
            self._open_gates()

    def _drop_what_is_held(self) -> None:
        for driver in self._drivers:
            driver.drop_answer()
        self.stats.steps_dropped = self.stats.steps - self._initial.steps - self.stats.steps_handed

    # ------------------------------------------------------------------ what lanes tell

    def submit(self, request: ActRequest) -> asyncio.Future[Acted]:
        assert self._actor is not None
        return self._actor.submit(request)

    def fail(self, error: BaseException) -> None:
        """`run` raises it."""
        if not self._ended.done():
            self._ended.set_exception(error)

    def lane_at_gate(self, driver: LaneDriver) -> None:
        self._rounds.join(driver.index)
        self._begin([driver])

    def unroll_complete(self, driver: LaneDriver, unroll: Unroll | None) -> None:
        if self._order is not None:
            self._order.finished(driver.index, unroll)
        self._hand_over(self._rounds.finish(driver.index, unroll))
        if unroll is None:
            self._came_to_nothing()
        else:
            self._num_empty = 0
            self._begin([driver])
        if driver.phase is Phase.AT_GATE:
            self._expect(driver, False)

    def _came_to_nothing(self) -> None:
        self._num_empty += 1
        left_out = self.stats.nonfinite_steps
        if left_out and self._num_empty >= MAX_EMPTY * len(self._drivers):
            text = f"{self._num_empty} unrolls in a row have no step that can be trained on"
            self.fail(NonFiniteRows(f"environments give nothing but NaN or infinity: {text}, {left_out} were left out"))
        self._open_gates()  # a round without a transition is one that nobody waits for

    def lane_lost(self, driver: LaneDriver, unroll: Unroll | None, in_round: bool) -> None:
        self.stats.lost_lanes += 1
        self._expect(driver, False)
        if self._order is not None:
            self._order.finished(driver.index, unroll)
        if in_round:
            self._hand_over(self._rounds.finish(driver.index, unroll))
        self._hand_over(self._rounds.leave(driver.index))
        self._open_gates()  # a round without a transition is one that nobody waits for

    def episodes_ended(self, driver: LaneDriver, rows: StepRows) -> None:
        assert rows.stats is not None
        ended = rows.stats
        slots = driver.lane.fleet_slots[ended.rows]
        whole = EpisodesEnded(self.stats.steps, slots, ended.returns, ended.lengths, ended.times)
        if self._order is None:
            self._on_episodes(whole)
        else:
            self._order.ended(driver.index, driver.rows_held - 1, whole)

    # ------------------------------------------------------------------ gates and hand-off

    def _open_gates(self) -> None:
        self._begin(self._drivers)

    def _begin(self, drivers: Iterable[LaneDriver]) -> None:
        """Of these lanes those begin that are at the gate and may."""
        if self._ended.done() or self._actor is None:
            return
        free = [
            driver
            for driver in drivers
            if driver.phase is Phase.AT_GATE
            and driver.index not in self._blocked
            and self._rounds.may_begin(driver.index)
        ]
        for driver in free:  # all of a group are expected before the first of them submits
            self._expect(driver, True)
        for driver in free:
            driver.begin(self._rounds.begin(driver.index))

    def _expect(self, driver: LaneDriver, coming: bool) -> None:
        assert self._actor is not None
        self._actor.expect(driver.index, coming)

    def _hand_over(self, batches: list[list[Unroll]]) -> None:
        for unrolls in batches:
            if self._order is not None:
                self._order.handed(unrolls)
            num_steps = _num_steps(unrolls)
            if not self._outbox and self._handoff.put_nowait(unrolls):
                self._handed(unrolls, num_steps)
                continue
            self._outbox.append(unrolls)
            self._posted.set()
            if self.config.lag is None:
                self._blocked.update(unroll.lane for unroll in unrolls)


def _num_steps(unrolls: list[Unroll]) -> int:
    return sum(unroll.num_valid for unroll in unrolls)
