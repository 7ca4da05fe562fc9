"""A fleet on env servers in memory, on virtual time: what the tests of the fleet stand on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import numpy as np

from asyncrl.client.fleet import Fleet
from asyncrl.client.fleet_config import FleetConfig, FleetEvent
from asyncrl.client.fleet_lane import Arrival, FleetLane
from asyncrl.wire.flags import NO_TRANSITION, RowTracker
from tests.rig.sim_loop import run_sim
from tests.unit.client.toy_server import ToyServer


class Rig:
    """Servers, a fleet on them, and everything that it said."""

    def __init__(self, servers: list[ToyServer], **settings: Any) -> None:
        self.servers = servers
        self.events: list[FleetEvent] = []
        self.arrivals: list[Arrival] = []
        config = FleetConfig(**{"env": "toy", "num_envs": 4, "seed": 100, "lanes": 1, **settings})
        self.fleet = Fleet(servers, config, rng=random.Random(7), on_event=self.events.append)
        self.trackers: dict[FleetLane, RowTracker] = {}
        self.actions = 0

    async def recv(self) -> Arrival:
        """The next arrival, checked by a tracker of our own that knows nothing of losses."""
        arrival = await self.fleet.recv()
        self.arrivals.append(arrival)
        if arrival.rows is not None:
            tracker = self.trackers.setdefault(arrival.lane, RowTracker(arrival.lane.num_slots))
            moved = (arrival.rows.flags & NO_TRANSITION) == 0
            assert np.array_equal(arrival.episode[moved], tracker.episode[moved])
            assert np.array_equal(arrival.t[moved], tracker.t[moved])
            tracker.advance(arrival.rows.flags)
        return arrival

    def step(self, lane: FleetLane) -> bool:
        self.actions += 1
        return lane.step([np.full(lane.num_slots, self.actions % 1000, np.int64)])

    async def drive(self, replies: int) -> None:
        """Answer so many arrivals with rows."""
        while replies:
            arrival = await self.recv()
            if arrival.rows is not None:
                self.step(arrival.lane)
                replies -= 1

    async def drain(self) -> None:
        """Receive until the fleet has nothing more to give, which raises."""
        while True:
            await self.recv()

    def faults(self) -> list[tuple[str, str]]:
        return [
            (event.kind, event.cause)
            for event in self.events
            if event.kind not in ("lane_opened", "draining", "building", "server_log")
        ]


Main = Callable[[Rig], Coroutine[Any, Any, None]]


def sim(main: Main, servers: list[dict[str, Any]] | None = None, seeds: int = 3, **settings: Any) -> None:
    """Open a fleet, run `main`, close; under several schedules. Nothing may be left."""

    async def whole() -> None:
        async with AsyncExitStack() as stack:
            toys = [await stack.enter_async_context(ToyServer(**each)) for each in servers or [{}]]
            before = asyncio.all_tasks()
            rig = Rig(toys, **settings)
            async with rig.fleet:
                await main(rig)
            await asyncio.sleep(2.0)
            left = {task for task in asyncio.all_tasks() - before if not task.get_name().startswith("ToyServer")}
            assert not left
            assert all(not toy.lanes for toy in toys)

    for seed in range(seeds):
        run_sim(whole, seed)


def seeds_of(lane: Any) -> list[tuple[int, int | None]]:
    (reset,) = lane.resets
    return list(zip(lane.request.fleet_slots, reset.seeds or [None] * lane.num_slots, strict=True))
