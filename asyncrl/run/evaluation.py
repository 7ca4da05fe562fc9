"""Evaluation: whole episodes of a policy on lanes of its own.

Every slot plays the same number of episodes, and of each slot the first ones count: whoever took the first N to end
would prefer short ones.

Invariants: exactly as many episodes count as were asked for, evenly over the slots
(test_every_slot_plays_its_share); two evaluations of one policy on deterministic environments are equal
(test_an_evaluation_repeats_itself); a lost lane plays its unfinished episodes again
(test_a_lost_lane_plays_again); an episode that never ends ends the evaluation
(test_an_episode_that_never_ends_ends_the_evaluation).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np

from asyncrl.client.fleet import Fleet
from asyncrl.client.fleet_lane import FleetLane
from asyncrl.collector.act_batcher import ActBatcher
from asyncrl.collector.acting import Actor
from asyncrl.collector.joining import ActRequest
from asyncrl.errors import AsyncRLError
from asyncrl.keyed_noise import row_keys
from asyncrl.policy import Acted, Policy
from asyncrl.wire.flags import FIRST
from asyncrl.wire.step_rows import StepRows
from asyncrl.wire.tensors import Array

MAX_EPISODE_STEPS: Final = 1_000_000  # an Atari game has 27,000 at most

OnEpisode = Callable[[float, int], None]  # return and length


class EndlessEpisode(AsyncRLError):
    """An episode has more steps than an evaluation waits for."""


@dataclass(frozen=True)
class Evaluation:
    """Raw returns of whole games, in order of slot."""

    returns: tuple[float, ...]
    lengths: tuple[int, ...]

    @property
    def mean(self) -> float:
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        return float(np.std(self.returns))


@dataclass
class _LaneScore:
    """What the slots of one lane have played."""

    wanted: list[int]
    returns: list[list[float]]
    lengths: list[list[int]]
    ages: Array  # i8, steps since the slot's last whole game
    steps: int = 0
    carry: Sequence[Array] = field(default_factory=tuple)

    @staticmethod
    def of(wanted: Sequence[int]) -> _LaneScore:
        return _LaneScore(list(wanted), [[] for _ in wanted], [[] for _ in wanted], np.zeros(len(wanted), np.int64))

    @property
    def complete(self) -> bool:
        return all(len(got) >= want for got, want in zip(self.returns, self.wanted, strict=True))

    def add(self, rows: StepRows, on_episode: OnEpisode) -> None:
        self.ages += 1
        if self.ages.max() > MAX_EPISODE_STEPS:
            raise EndlessEpisode(
                f"an episode has not ended after {MAX_EPISODE_STEPS:,} steps: limit it in the environment"
            )
        if rows.stats is None:
            return
        stats = rows.stats
        self.ages[stats.rows] = 0
        for row, value, length in zip(stats.rows.tolist(), stats.returns.tolist(), stats.lengths.tolist(), strict=True):
            if len(self.returns[row]) < self.wanted[row]:
                self.returns[row].append(value)
                self.lengths[row].append(length)
                on_episode(value, length)


def shares(episodes: int, num_slots: int) -> list[int]:
    """Episodes per slot, as even as can be, the first slots playing the remainder."""
    return [episodes // num_slots + (slot < episodes % num_slots) for slot in range(num_slots)]


async def evaluate(fleet: Fleet, policy: Policy, episodes: int, seed: int) -> Evaluation:
    """Play `episodes` episodes; slot i is reset with `seed + i`. The fleet must not be stepped by anybody else.

    Cancelled, it leaves the fleet with requests in flight: close it. Raises what the fleet and the policy raise, and
    EndlessEpisode.
    """
    async with ActBatcher(policy, len(fleet.lanes)) as batcher:
        return await evaluate_actor(fleet, batcher, episodes, seed)


async def evaluate_actor(
    fleet: Fleet, actor: Actor, episodes: int, seed: int, on_episode: OnEpisode = lambda ret, length: None
) -> Evaluation:
    """`evaluate` of whoever acts for all lanes of the fleet; `on_episode` hears of those that count, as they end."""
    return await _Game(fleet, actor, shares(episodes, fleet.num_envs), seed, on_episode).play()


class _Game:
    """One evaluation."""

    def __init__(self, fleet: Fleet, actor: Actor, wanted: Sequence[int], seed: int, on_episode: OnEpisode) -> None:
        self._fleet = fleet
        self._actor = actor
        self._on_episode = on_episode
        self._seed = seed
        self._scores = [_LaneScore.of([wanted[slot] for slot in lane.fleet_slots]) for lane in fleet.lanes]
        self._answers: dict[int, asyncio.Future[Acted]] = {}  # what each lane waits for
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def play(self) -> Evaluation:
        for lane in self._fleet.lanes:
            if self._scores[lane.index].complete:
                self._actor.expect(lane.index, False)
            else:
                lane.reset(seeds=[self._seed + int(slot) for slot in lane.fleet_slots])
        async with asyncio.TaskGroup() as group:
            receiving = group.create_task(self._receive())
            try:
                await asyncio.wait([self._over])
            finally:
                receiving.cancel()
                self._answers.clear()
        self._over.result()
        by_slot = [
            pair
            for lane in self._fleet.lanes
            for pair in zip(self._scores[lane.index].returns, self._scores[lane.index].lengths, strict=True)
        ]
        returns = tuple(value for values, _ in by_slot for value in values)
        return Evaluation(returns, tuple(length for _, lengths in by_slot for length in lengths))

    async def _receive(self) -> None:
        try:
            while not all(score.complete for score in self._scores):
                arrival = await self._fleet.recv()
                if arrival.rows is None:
                    self._lost(arrival.lane)
                else:
                    self._take(arrival.lane, arrival.rows)
        except Exception as error:
            self._end(error)
        else:
            self._end(None)

    def _lost(self, lane: FleetLane) -> None:
        answer = self._answers.pop(lane.index, None)
        if answer is not None:
            answer.cancel()  # actions for a lane that is no more
        self._actor.expect(lane.index, False)

    def _end(self, error: Exception | None) -> None:
        if self._over.done():
            return
        if error is None:
            self._over.set_result(None)
        else:
            self._over.set_exception(error)

    def _take(self, lane: FleetLane, rows: StepRows) -> None:
        score = self._scores[lane.index]
        score.add(rows, self._on_episode)
        if score.complete:
            self._actor.expect(lane.index, False)
            return
        keys = row_keys(lane.fleet_slots, np.full(lane.num_slots, score.steps))
        score.steps += 1
        first = (rows.flags & FIRST) != 0
        self._actor.expect(lane.index, True)  # it may have been lost before
        answer = self._actor.submit(ActRequest(lane.index, rows.obs, first, rows.mask, score.carry, keys, rows.to_play))
        self._answers[lane.index] = answer
        answer.add_done_callback(partial(self._acted, lane))

    def _acted(self, lane: FleetLane, answer: asyncio.Future[Acted]) -> None:
        if answer.cancelled() or self._answers.get(lane.index) is not answer:
            # Nobody waits for it any more. Looking at its error says so.
            _ = answer.cancelled() or answer.exception()
            return
        try:
            acted = answer.result()
            self._scores[lane.index].carry = acted.carry
            lane.step(acted.sent_action)
        except Exception as error:  # a callback has nobody to raise to
            self._end(error)
