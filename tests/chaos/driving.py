"""`Driver`: plays random actions on a fleet, keeps the ledger, and lets a test watch and break things meanwhile.

async with connect(...) as fleet, Driver(fleet) as driver:
    await driver.transitions(1000)
    server.signal(SIGKILL)
    await driver.until(lambda: driver.losses)
    report = await driver.finish(server.journal)
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from asyncrl.client.connecting import connect
from asyncrl.client.fleet import Fleet
from asyncrl.client.fleet_lane import FleetLane
from asyncrl.errors import AsyncRLError, LaneLost
from asyncrl.wire.handshake import rebuilt_seed
from tests.rig.census import census
from tests.rig.ledger import LaneLedger, Ledger
from tests.rig.ledger_audit import Report
from tests.rig.ledger_env import NUM_ACTIONS
from tests.rig.processes import EnvServerProcess, ledger_option, until


class Driver:
    """See the module. `depth` requests are kept in flight per lane."""

    def __init__(self, fleet: Fleet, depth: int = 1, seed: int = 0) -> None:
        self.fleet = fleet
        self.losses: list[LaneLost] = []
        self.failure: AsyncRLError | None = None  # what stopped the fleet; `until` raises it
        self.rebuilt: Counter[str] = Counter()
        self.rows_of: Counter[int] = Counter()  # transitions, by lane
        self.last_row: dict[int, float] = {}  # monotonic time, by lane
        self.ledger = Ledger(self._seed_of)
        self._depth = depth
        self._rng = np.random.default_rng(seed)
        self._books = [self.ledger.lane(lane.fleet_slots.tolist(), lane.incarnation.tolist()) for lane in fleet.lanes]
        self._acting = True
        self._group = asyncio.TaskGroup()
        self._pump: asyncio.Task[None] | None = None

    def _seed_of(self, slot: int, incarnation: int) -> int:
        seed = self.fleet.config.seed
        assert seed is not None
        return rebuilt_seed(seed, slot, incarnation) if incarnation else seed + slot

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        self._pump = self._group.create_task(self._run(), name="driver")
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stops receiving; the fleet is the caller's to close. What the body raised goes on as it is."""
        assert self._pump is not None
        self._pump.cancel()
        await self._group.__aexit__(None, None, None)

    async def _run(self) -> None:
        try:
            await self._play()
        except AsyncRLError as error:
            self.failure = error

    async def _play(self) -> None:
        while True:
            arrival = await self.fleet.recv()
            lane, book = arrival.lane, self._books[arrival.lane.index]
            if arrival.lost is not None:
                self.losses.append(arrival.lost)
                book.lost(arrival.lost.cause)
                continue
            assert arrival.rows is not None
            before = self.ledger.num_rows
            book.arrived(arrival.rows)
            assert arrival.incarnation.tolist() == book.incarnations
            self.rows_of[lane.index] += self.ledger.num_rows - before
            self.rebuilt.update(each.code for each in arrival.rows.rebuilt)
            self.last_row[lane.index] = time.monotonic()
            while self._acting and lane.in_flight < self._depth and lane.can_step:
                self._act(lane, book)

    def _act(self, lane: FleetLane, book: LaneLedger) -> None:
        action = self._rng.integers(0, NUM_ACTIONS, lane.num_slots)
        if lane.step([action]):
            book.sent(action)

    # ------------------------------------------------------------------ for tests

    async def transitions(self, count: int, within_s: float = 30.0) -> None:
        """Wait until so many more transitions have been stored."""
        target = self.ledger.num_rows + count
        await self.until(lambda: self.ledger.num_rows >= target, within_s, f"{count} transitions")

    async def until(self, condition: Callable[[], object], within_s: float = 30.0, what: str = "") -> float:
        """Wait for a condition while the fleet is driven; seconds it took. A failure of the fleet is raised."""

        def reached() -> object:
            if self.failure is not None:
                raise self.failure
            return condition()

        return await until(reached, within_s, what)

    async def rate(self, lanes: list[int], seconds: float) -> float:
        """Transitions per second of these lanes, measured now."""
        began, before = time.monotonic(), sum(self.rows_of[lane] for lane in lanes)
        await asyncio.sleep(seconds)
        return (sum(self.rows_of[lane] for lane in lanes) - before) / (time.monotonic() - began)

    async def all_lanes_move(self, within_s: float = 30.0) -> float:
        """Wait until every lane has brought transitions after now."""
        before = Counter(self.rows_of)
        lanes = range(len(self.fleet.lanes))
        return await self.until(lambda: all(self.rows_of[lane] > before[lane] for lane in lanes), within_s, "all lanes")

    async def settle(self, within_s: float = 15.0) -> None:
        """Stop acting and wait for every reply that is due."""
        self._acting = False
        books = self._books
        await self.until(lambda: not any(book.steps_in_flight for book in books), within_s, "replies that are due")

    async def finish(self, journal: str) -> Report:
        """Settle and audit."""
        await self.settle()
        return self.ledger.check(journal).raise_if_violated()


@dataclass
class Scene:
    """A server, a fleet on it, and somebody who plays."""

    server: EnvServerProcess
    fleet: Fleet
    driver: Driver

    async def audited(self) -> Report:
        """The books balance, and there was one event per loss."""
        report = await self.driver.finish(self.server.journal)
        assert self.fleet.stats.faults["lane_lost"] == len(self.driver.losses)
        return report


@asynccontextmanager
async def scene(directory: Path, *, steps: int = 300, quotas: str = "", **settings: Any) -> AsyncIterator[Scene]:
    """A server with LedgerEnv (`kwargs`: the owner's) and a fleet (`settings`: FleetConfig's); `steps` were made."""
    kwargs = settings.pop("kwargs", {"mean_length": 40})
    wish: dict[str, Any] = {"env": "ledger", "num_envs": 6, "lanes": 3, "seed": 9} | settings
    options = [word for quota in quotas.split() for word in ("--quota", quota)]
    server = EnvServerProcess(directory, num_envs=wish["num_envs"], envs=[ledger_option(**kwargs)], options=options)
    async with census(), server, connect(server.address, **wish) as fleet, Driver(fleet) as driver:
        await driver.transitions(steps)
        yield Scene(server, fleet, driver)
