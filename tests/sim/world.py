"""One simulated run: a real `Fleet` against one to four real `EnvServer`s, faults, healing, convergence, audit.

`run_world(World(seed))` raises with the schedule in its text if anything is wrong; it returns an `Outcome` otherwise.
Everything that varies is drawn from the seed: servers, lanes, pipelining, autoreset, resume, and the faults.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from asyncrl.client.fleet import Fleet
from asyncrl.client.fleet_config import Autoreset, FleetConfig
from asyncrl.client.fleet_lane import Arrival, FleetLane
from asyncrl.client.timing import LaneTimers
from asyncrl.errors import AsyncRLError
from asyncrl.wire.handshake import rebuilt_seed
from tests.rig.ledger import LaneLedger, Ledger
from tests.rig.ledger_audit import Report
from tests.rig.ledger_env import NUM_ACTIONS
from tests.rig.ledger_rules import Journal
from tests.rig.sim_faults import Fault, FaultPlan, describe
from tests.rig.sim_loop import SimLoop, run_sim
from tests.rig.sim_server import ALIAS, SimServer
from tests.rig.sim_transport import SimNetwork

CONVERGE_S: Final = 60.0
PATIENCE_S: Final = 300.0  # of the faulty part
GIVE_BACK_S: Final = 45.0
TIMERS: Final = LaneTimers(open_s=20, reset_s=5, step_s=5, grace_s=2, dial_s=5, ping_every_s=1, pong_within_s=5)


@dataclass(frozen=True)
class World:
    """What one run is made of. `only`: replay these faults instead of drawing some."""

    seed: int
    only: tuple[Fault, ...] | None = None
    fifo: bool = False
    steps: int = 0  # 0: drawn from the seed
    resumable: bool | None = None  # None: drawn
    calm_end: bool = False  # wait for what is in flight before closing


@dataclass
class Outcome:
    """What one run gave."""

    report: Report
    hits: list[Fault]
    trace: list[str]
    virtual_s: float
    faults: dict[str, int] = field(default_factory=dict)
    duplicates: int = 0


class WorldFailed(AssertionError):
    """A run went wrong; `hits` are its faults and `trace` all of its events."""

    def __init__(self, world: World, hits: list[Fault], trace: list[str], cause: BaseException) -> None:
        while isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
        text = f"seed {world.seed}: {type(cause).__name__}: {cause}\nfaults: {describe(hits)}"
        super().__init__(f"{text}\nreplay: python -m tests.sim.replay {world.seed}")
        self.hits = hits
        self.trace = trace


def run_world(world: World) -> Outcome:
    """See the module."""
    trace: list[str] = []
    run = _Run(world, trace)
    try:
        with _quiet():
            return run_sim(run.main, world.seed, world.fifo)
    except Exception as error:
        raise WorldFailed(world, run.plan.hits, trace, error) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Thousands of warnings about faults that were asked for cost more than the run."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


class _Run:
    def __init__(self, world: World, trace: list[str]) -> None:
        self.plan = FaultPlan(world.seed, world.only)
        self._world = world
        self._trace = trace
        self._rng = random.Random(world.seed ^ 0x5EED)
        rng = self._rng
        self._num_servers = rng.randint(1, 4)
        self._num_lanes = rng.randint(1, 4)
        self._num_envs = self._num_lanes * rng.randint(1, 3)
        self._depth = rng.randint(1, 3)
        self._autoreset: Autoreset = rng.choice(("same_step", "same_step", "next_step", "disabled"))
        drawn = rng.random() < 0.75
        self._resumable = drawn if world.resumable is None else world.resumable
        self._think_s = rng.choice((0.0, 0.02, 0.1))
        self._steps = world.steps or rng.randint(200, 600)
        self._env_seed = rng.getrandbits(31)
        self._journal = Journal()
        self._ledger = Ledger(self._seed_of)
        self._books: list[LaneLedger] = []
        self._taken = 0
        self._since_heal: dict[int, int] | None = None
        self._acting = True
        self._settled = asyncio.Event()

    def _seed_of(self, slot: int, incarnation: int) -> int:
        return rebuilt_seed(self._env_seed, slot, incarnation) if incarnation else self._env_seed + slot

    def _log(self, text: str) -> None:
        self._trace.append(f"{self._loop.time():.6f} {text}")

    async def main(self) -> Outcome:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        self._loop = loop
        self._network = SimNetwork(loop, self.plan, self._world.seed, self._log)
        servers = [
            SimServer(self._network, f"sim{number}:1", self._journal, self._num_envs, lease_s=8, resume_window_s=20)
            for number in range(self._num_servers)
        ]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(server.run(), name=f"server {server.address}") for server in servers]
            await asyncio.sleep(0)
            fleet = await self._opened(servers)
            driver = group.create_task(self._drive(fleet), name="driver")
            await self._heal_and_settle()
            if self._world.calm_end:
                self._acting = False
                await asyncio.sleep(TIMERS.step_s)
            driver.cancel()
            await self._close(fleet)
            await self._check_given_back(servers)
            for task in tasks:
                task.cancel()
        report = self._ledger.check(self._journal).raise_if_violated()
        stats = fleet.stats
        return Outcome(report, self.plan.hits, self._trace, loop.time(), dict(stats.faults), stats.duplicates)

    async def _opened(self, servers: list[SimServer]) -> Fleet:
        """A fleet may fail to open while there are faults, and then says so; it must not once they are over."""
        config = FleetConfig(
            env=ALIAS,
            num_envs=self._num_envs,
            seed=self._env_seed,
            run_id="sim",
            autoreset=self._autoreset,
            per_slot_seeds=True,
            masked_reset=True,
            resumable=self._resumable,
            lanes=self._num_lanes,
            give_up_s=1e6,
            timers=TIMERS,
        )
        connectors = [self._network.connector(server.address) for server in servers]
        for attempt in range(20):
            fleet = Fleet(connectors, config, rng=random.Random(self._world.seed + attempt))
            try:
                await fleet.open()
                return fleet
            except AsyncRLError as error:
                self._log(f"opening failed: {type(error).__name__}")
                if attempt == 10:
                    self.plan.heal()
                    self._network.release()
                await asyncio.sleep(2.0)
        raise AssertionError("the fleet does not open in a healed world")

    # ------------------------------------------------------------------ the workload

    async def _drive(self, fleet: Fleet) -> None:
        self._books = [self._ledger.lane(lane.fleet_slots.tolist(), lane.incarnation.tolist()) for lane in fleet.lanes]
        while True:
            arrival = await fleet.recv()
            lane, book = arrival.lane, self._books[arrival.lane.index]
            if arrival.lost is not None:
                self._log(f"lane {lane.index} lost: {arrival.lost.cause}")
                book.lost(arrival.lost.cause)
                continue
            assert arrival.rows is not None
            self._check_names(arrival, book)
            self._count(lane)
            for _ in range(self._depth if not lane.in_flight else 1):
                if self._think_s:
                    await asyncio.sleep(self._rng.random() * self._think_s)
                self._act(lane, book)

    def _check_names(self, arrival: Arrival, book: LaneLedger) -> None:
        """The fleet's own numbering of rows agrees with the ledger's, which follows from flags alone."""
        assert arrival.rows is not None
        self._log(f"lane {arrival.lane.index} rows {arrival.rows.flags.tolist()} t {arrival.t.tolist()}")
        book.arrived(arrival.rows)
        assert arrival.incarnation.tolist() == book.incarnations

    def _act(self, lane: FleetLane, book: LaneLedger) -> None:
        if not lane.can_step or not self._acting:
            return
        if self._autoreset == "disabled" and book.ended.any():
            if book.steps_in_flight == 0 and lane.reset(book.ended):
                book.sent(None)
            return
        action = np.array([self._rng.randrange(NUM_ACTIONS) for _ in range(lane.num_slots)])
        if lane.step([action]):
            book.sent(action)

    def _count(self, lane: FleetLane) -> None:
        self._taken += 1
        if self._since_heal is None:
            if self._taken >= self._steps:
                self._settled.set()
            return
        self._since_heal[lane.index] += 1
        if min(self._since_heal.values()) >= 5:
            self._settled.set()

    # ------------------------------------------------------------------ the phases

    async def _heal_and_settle(self) -> None:
        """Faults until enough steps were made or patience is over; then every lane must make steps again."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await self._settled.wait()
        self.plan.heal()
        self._network.release()
        self._log("healed")
        self._settled.clear()
        self._since_heal = dict.fromkeys(range(self._num_lanes), 0)
        try:
            async with asyncio.timeout(CONVERGE_S):
                await self._settled.wait()
        except TimeoutError:
            raise AssertionError(f"not converged: rows by lane {self._since_heal}") from None
        self._log("settled")

    async def _close(self, fleet: Fleet) -> None:
        """Close while requests are in flight: what they did is lost, and was announced by us."""
        await fleet.close()
        while (arrival := _rest(fleet)) is not None:
            book = self._books[arrival.lane.index]
            if arrival.lost is not None:
                book.lost(arrival.lost.cause)
            elif arrival.rows is not None:
                book.arrived(arrival.rows)
        for book in self._books:
            book.lost("closed")

    async def _check_given_back(self, servers: list[SimServer]) -> None:
        ends = self._loop.time() + GIVE_BACK_S
        while held := [(s.address, s.held) for s in servers if s.held]:
            if self._loop.time() > ends:
                raise AssertionError(f"not given back: {held}")
            await asyncio.sleep(1.0)


def _rest(fleet: Fleet) -> Arrival | None:
    try:
        return fleet.recv_nowait()
    except AsyncRLError:
        return None
