"""A collector on a fleet in memory, on virtual time: what the tests of the collector stand on.

The environments are the toy server's: obs is (fleet slot, incarnation, steps of the lane), the reward is the action,
episodes have five steps. Acting is on the loop: the simulation has no threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import numpy as np

from asyncrl.buffers.handoff import Handoff
from asyncrl.collector.collector import Collector
from asyncrl.collector.counts import CollectorConfig, CollectorState, EpisodesEnded
from asyncrl.keyed_noise import uniform
from asyncrl.policy import Acted
from asyncrl.records import Unroll
from asyncrl.wire.tensors import Array
from tests.unit.client.fleet_rig import Rig, sim

RUN_SEED = 11


class NoisyPolicy:
    """Actions are noise of the rows' keys; value and log-prob tell in which place of which forward a row was.

    What a row gets depends on who shares its forward, as it does to the last bit in a network.
    """

    def __init__(self) -> None:
        self.version = 0
        self.keys: list[int] = []
        self.sizes: list[int] = []
        self.error: Exception | None = None

    def act(
        self, obs: Sequence[Array], mask: Array | None, first: Array, carry: Sequence[Array], keys: Array | None
    ) -> Acted:
        if self.error is not None:
            raise self.error
        assert keys is not None
        self.keys += keys.tolist()
        self.sizes.append(len(first))
        action = (uniform(RUN_SEED, keys, 1)[:, 0] * 1000).astype(np.int64)
        value = (np.arange(len(first)) + 0.001 * len(first)).astype(np.float32)
        moved = [np.where(first[:, None], 0.0, leaf) + 1.0 for leaf in carry]
        return Acted([action], (obs[0][:, 2] + 0.5).astype(np.float32), value, self.version, moved)


class Collecting:
    """A collector that runs, and a learner that takes what it hands over."""

    def __init__(self, rig: Rig, capacity: int = 64, state: CollectorState | None = None, **config: Any) -> None:
        self.rig = rig
        self.policy = NoisyPolicy()
        self.handoff = Handoff(capacity)
        self.taken: list[list[Unroll]] = []
        self.episodes: list[EpisodesEnded] = []
        self.collector = Collector(
            rig.fleet,
            self.policy,
            self.handoff,
            CollectorConfig(**{"num_steps": 7, "act_on_loop": True, **config}),
            state or CollectorState.fresh(rig.fleet.num_envs, [np.zeros((rig.fleet.num_envs, 2))]),
            self.episodes.append,
        )

    @property
    def unrolls(self) -> list[Unroll]:
        return [unroll for unrolls in self.taken for unroll in unrolls]

    def take(self) -> bool:
        """Take a list if there is one."""
        if not self.handoff.num_waiting:
            return False
        unrolls = self.handoff.take()
        assert unrolls is not None
        self.taken.append(unrolls)
        return True

    async def learn(self, rounds: int, within_s: float = 100.0, *, train: bool = True) -> None:
        """Take so many lists more, and train on each."""
        async with asyncio.timeout(within_s):
            for _ in range(rounds):
                while not self.take():
                    await asyncio.sleep(0.003)
                if train:
                    self.policy.version += 1
                    self.collector.trained(self.taken[-1][0].round + 1)

    async def during(self, work: Coroutine[Any, Any, None]) -> None:
        """The collector runs while `work` does, and is stopped then."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.collector.run())
            await work
            self.collector.stop()


def collecting(main: Callable[[Rig], Coroutine[Any, Any, None]], seeds: int = 3, **settings: Any) -> None:
    """`main` with a fleet of 4 slots in 2 lanes, under several schedules."""
    sim(main, seeds=seeds, **{"lanes": 2, **settings})
