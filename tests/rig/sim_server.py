"""Env servers of the simulation: the real `EnvServer`, relays and lane loop, around lanes that live in this process.

`SimLane` stands for a lane's process: it runs the production `LaneProcess` on virtual time and dies, hangs or dawdles
where the fault plan says so. `SimServer` keeps one `EnvServer` up at an address, and restarts it where it was killed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, cast

import numpy as np

from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.envelope import error_body
from envserver.config import Quotas, ServerConfig
from envserver.core import EnvServer
from envserver.host import Host, LaneWish, Progress
from envserver.lane_process import LaneProcess
from envserver.lane_socket import LaneMessage
from envserver.recipe import Recipe
from envserver.registry import EnvAlias, Registry
from envserver.slots_host import SlotsHost
from tests.rig.ledger_env import LedgerEnv, LedgerFault, Obs
from tests.rig.ledger_rules import Journal
from tests.rig.sim_faults import FaultPlan
from tests.rig.sim_transport import SimNetwork

START_S: Final = 0.02
EXECUTE_S: Final = (0.001, 0.004)
TROUBLE_EVERY_S: Final = 0.5
ALIAS: Final = "ledger"


class SimLedgerEnv(LedgerEnv):
    """Raises where the plan says so."""

    def __init__(self, plan: FaultPlan, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._plan = plan

    def step(self, action: np.int64) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        if self._plan.hit("env.raise"):
            raise LedgerFault("the plan says so")
        return super().step(action)


def make(**kwargs: Any) -> SimLedgerEnv:
    """The entry point of the alias."""
    return SimLedgerEnv(**kwargs)


class _Port:
    """Where a socket would be; what the lane sends of its own accord (progress) is collected."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, int, bytes]] = []

    def setblocking(self, _flag: bool) -> None: ...

    def sendmsg(self, parts: tuple[bytes, bytes]) -> int:
        return sum(map(len, parts))


class SimLane:
    """A `LaneBackend` without a process."""

    pid = 0

    def __init__(self, network: SimNetwork, registry: Registry, name: str) -> None:
        self.on_message: Callable[[int, int, bytes], None] = lambda kind, seq, body: None
        self.exited: asyncio.Future[str] = network.loop.create_future()
        self._network = network
        self._plan = network.plan
        self._name = name
        self._lane = LaneProcess(cast(Any, _Port()), registry, self._build)
        self._replies: deque[tuple[int, int, bytes]] = deque()
        self._busy = False
        self._hangs = False
        self._dead = False

    def _build(self, alias: EnvAlias, wish: LaneWish, progress: Progress) -> Host:
        """What production builds for an alias made by a function, except that the backoff of slots is virtual too."""
        recipe = Recipe(alias, wish.kwargs, wish.render)
        return SlotsHost(recipe, wish, progress, clock=self._network.loop.time, sleep=lambda _seconds: None)

    def send(self, kind: int, seq: int, body: bytes, deadline_ms: int = 0) -> None:
        if self._dead:
            return
        self._lane._take([LaneMessage(kind, seq, body, deadline_ms)])
        self._begin()

    def call(self, lane: str) -> None:
        """There is no log."""

    def log_tail(self) -> bytes:
        return b"the log of a simulated lane\n"

    def dump_stacks(self) -> None:
        """There are none."""

    def kill(self) -> None:
        self._die("crash(SIGKILL)")

    def close(self) -> None:
        self.on_message = lambda kind, seq, body: None
        self._die("exit(0)")

    def _begin(self) -> None:
        """Take up the oldest request, if nothing is being executed."""
        if self._busy or self._hangs or self._dead or not self._lane._waiting:
            return
        self._busy = True
        seconds = self._network.duration(*EXECUTE_S)
        if self._plan.hit("lane.slow"):
            seconds = self._plan.amount("lane.slow", 0.1, 8.0)
        self._network.loop.call_later(seconds, self._execute)

    def _execute(self) -> None:
        self._busy = False
        if self._dead:
            return
        if self._plan.hit("lane.crash_before"):
            self._die("crash(SIGSEGV)")
            return
        if self._plan.hit("lane.hang"):
            self._network.log(f"{self._name} hangs")
            self._hangs = True
            return
        message = self._lane._waiting.popleft()
        kind: int
        if message.seq in self._lane._cancelled:
            self._lane._cancelled.discard(message.seq)
            kind, body = pb.ERROR, error_body("CANCELLED", "cancelled before it began")
        else:
            kind, body = self._lane._answer(message)
        if self._plan.hit("lane.crash_after"):
            self._die("crash(SIGSEGV)")
            return
        self._replies.append((kind, message.seq, body))
        self._network.loop.call_later(0.0001, self._deliver)
        if self._plan.hit("lane.crash_sent"):
            self._die("crash(SIGSEGV)")
            return
        self._begin()

    def _deliver(self) -> None:
        if self._replies:
            self.on_message(*self._replies.popleft())

    def _die(self, cause: str) -> None:
        """What was written to the socket before arrives; then the death is noticed."""
        if self._dead:
            return
        self._dead = True
        self._lane.close()
        self._network.log(f"{self._name} ends: {cause}")

        def gone() -> None:
            while self._replies:
                self._deliver()
            self.exited.set_result(cause)

        self._network.loop.call_later(0.001, gone)


class SimServer:
    """One address with an env server that may be killed, drained or cut off, and comes back."""

    def __init__(self, network: SimNetwork, address: str, journal: Journal, num_envs: int, **quotas: Any) -> None:
        self.restarts = 0
        self.address = address
        self.core: EnvServer | None = None
        self._network = network
        kwargs = {"journal": journal, "plan": network.plan, "mean_length": 12}
        alias = EnvAlias(alias=ALIAS, entry_point="tests.rig.sim_server:make", kwargs=kwargs)
        self._registry = Registry([alias])
        self._config = ServerConfig(registry=self._registry, num_envs=num_envs, quotas=Quotas(**quotas))
        self._lanes: list[SimLane] = []
        self._num_started = 0

    @property
    def held(self) -> str:
        """What the server and its lanes hold; empty when all of it was given back."""
        core = self.core
        lanes = sum(not lane.exited.done() for lane in self._lanes)
        relays, used = (len(core.relays), core._tenancy.used) if core is not None else (0, 0)
        return f"{lanes} lanes, {relays} relays, {used} slots" if lanes or relays or used else ""

    async def run(self) -> None:
        """Serve, fall and rise again until cancelled, which takes every lane along."""
        while True:
            try:
                async with asyncio.TaskGroup() as group:
                    self.core = EnvServer(self._config, self._start)
                    self._network.listen(self.address, group, self.core.lane, self.core.describe)
                    ticking = group.create_task(self.core.run(), name=f"core of {self.address}")
                    await self._until_trouble(self.core)
                    self._network.unlisten(self.address)
                    ticking.cancel()
            finally:
                self._network.unlisten(self.address)
                self._kill_lanes()
            self.restarts += 1
            await asyncio.sleep(self._network.plan.amount("server.kill", 0.1, 10.0))
            self._network.log(f"{self.address} is back")

    async def _until_trouble(self, core: EnvServer) -> None:
        plan = self._network.plan
        while True:
            await asyncio.sleep(TROUBLE_EVERY_S)
            if plan.hit("server.kill"):
                self._network.log(f"{self.address} is killed")
                return
            if plan.hit("server.drain"):
                self._network.log(f"{self.address} drains")
                await core.drain(plan.amount("server.drain", 0.5, 5.0))
                return
            if plan.hit("server.hole"):
                seconds = plan.amount("server.hole", 0.5, 45.0)
                for stream in self._network.open_streams(self.address):
                    stream.c2s.stall(seconds)
                    stream.s2c.stall(seconds)

    async def _start(self) -> SimLane:
        await asyncio.sleep(START_S)
        self._num_started += 1
        lane = SimLane(self._network, self._registry, f"lane {self._num_started} of {self.address}")
        self._lanes = [each for each in self._lanes if not each.exited.done()]
        self._lanes.append(lane)
        if self._network.plan.hit("lane.start"):
            lane.kill()
        return lane

    def _kill_lanes(self) -> None:
        for lane in self._lanes:
            lane.on_message = lambda kind, seq, body: None
            lane.kill()


__all__ = ["ALIAS", "SimLane", "SimServer", "make"]
