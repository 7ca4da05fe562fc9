"""One lane on a ServerLane in memory, on virtual time: what the tests of the lane client stand on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import numpy as np

from asyncrl.client.lane_client import LaneClient
from asyncrl.client.lane_context import LaneContext
from asyncrl.client.seams import LoopClock
from asyncrl.client.server_link import ServerLink
from asyncrl.client.timing import LaneTimers
from asyncrl.errors import AsyncRLError, LaneLost, ServerRefused
from asyncrl.wire import handshake
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.flags import RowTracker
from asyncrl.wire.requests import ResetRequest
from asyncrl.wire.spec import LaneSpec
from asyncrl.wire.step_rows import StepRows
from asyncrl.wire.tensors import Array
from tests.rig.sim_loop import run_sim
from tests.unit.client.toy_server import ToyServer

B = 3


class Owner:
    """Notes what the lane tells."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.changed = asyncio.Event()
        self.rows: list[tuple[StepRows, Array, Array]] = []
        self.refused: list[ServerRefused] = []
        self.replies = 0
        self.resumed: list[str] = []
        self.events: list[pb.Event] = []
        self.on_rows: Callable[[], None] = lambda: None

    def lane_opened(self, opened: pb.Opened, spec: LaneSpec) -> None:
        self.opened.set()

    def rows_arrived(self, rows: StepRows, episode: Array, t: Array) -> None:
        self.rows.append((rows, episode, t))
        self.changed.set()
        self.on_rows()

    def request_refused(self, error: ServerRefused) -> None:
        self.refused.append(error)
        self.changed.set()

    def replied(self) -> None:
        self.replies += 1

    def lane_resumed(self, cause: str) -> None:
        self.resumed.append(cause)

    def lane_event(self, event: pb.Event) -> None:
        self.events.append(event)

    async def have(self, count: int) -> None:
        """Until so many replies with rows have come."""
        while len(self.rows) < count:
            self.changed.clear()
            await self.changed.wait()


class Rig:
    """One lane, its server, and how it ended."""

    def __init__(self, server: ToyServer, timers: LaneTimers, resumable: bool, tracker: RowTracker | None) -> None:
        clock = LoopClock()
        self.server = server
        self.owner = Owner()
        self.context = LaneContext(clock, random.Random(0), timers)
        request = pb.Open(
            protocol=handshake.version(),
            run_id="run",
            env="toy",
            fleet_slots=range(B),
            incarnations=[0] * B,
            resumable=resumable,
        )
        self.link = ServerLink(server, clock, random.Random(1))
        self.lane = LaneClient(self.link, request, self.owner, self.context, tracker or RowTracker(B))
        self.ended: AsyncRLError | None = None
        self.over = asyncio.Event()

    async def run(self) -> None:
        try:
            await self.lane.run()
        except AsyncRLError as error:
            self.ended = error
        finally:
            self.over.set()

    async def loss(self) -> str:
        """The cause, once the lane is lost."""
        await self.over.wait()
        assert isinstance(self.ended, LaneLost), self.ended
        return self.ended.cause

    def step(self, number: int) -> None:
        self.lane.step([np.full(B, number, np.int64)])

    @property
    def executed(self) -> list[int]:
        """First slot's actions, of every lane in order."""
        return [action[0] for lane in self.server.all_lanes for action in lane.executed]

    @property
    def rewards(self) -> list[float]:
        return [float(rows.rewards[0]) for rows, _, _ in self.owner.rows[1:]]


def rig(
    *,
    timers: LaneTimers | None = None,
    resumable: bool = True,
    tracker: RowTracker | None = None,
    reset: bool = True,
    **server: Any,
) -> AbstractAsyncContextManager[Rig]:
    """A lane that runs, with its first RESET under way."""

    @asynccontextmanager
    async def make() -> Any:
        async with ToyServer(**server) as toy:
            each = Rig(toy, timers or LaneTimers(), resumable, tracker)
            if reset:
                each.lane.reset(ResetRequest(None, None, None))
            async with asyncio.TaskGroup() as group:
                task = group.create_task(each.run())
                try:
                    yield each
                finally:
                    each.lane.leave()
                    task.cancel()

    return make()


def sim(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Under three schedules."""
    for seed in range(3):
        run_sim(main, seed)
