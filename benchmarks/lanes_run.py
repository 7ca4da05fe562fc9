"""One measured run of asyncrl: a fleet, a policy, and counters around them.

Every arrival is answered with actions, at once for random ones, through the act batcher for a network: the same hops
as in training, without the learner. `python -m benchmarks.lanes_run '{"env": "CartPole-v1", "lanes": 2, ...}'`
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import numpy as np

from asyncrl.client.connecting import connect
from asyncrl.client.fleet import Fleet
from asyncrl.client.fleet_lane import Arrival
from asyncrl.client.scheduling import Scheduling
from asyncrl.collector.act_batcher import ActBatcher
from asyncrl.collector.joining import ActRequest
from asyncrl.policy import Acted
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.flags import FIRST, NO_TRANSITION
from asyncrl.wire.spaces import SpaceSpec
from asyncrl.wire.spec import LaneSpec
from asyncrl.wire.tensors import Array
from benchmarks import processes
from benchmarks.acting import RandomPolicy, network_policy
from benchmarks.ceilings.bare_grpc import run_loop
from benchmarks.measuring import RunSettings, Window

RSS_EVERY_S = 0.5
SETTLE_S = 2.0


def draw_actions(space: SpaceSpec, rng: np.random.Generator, num_rows: int) -> list[Array]:
    """Uniform action leaves [num_rows, *shape]."""
    leaves: list[Array] = []
    for node in space.nodes:
        if not node.is_leaf:
            continue
        shape = (num_rows, *node.shape)
        if node.kind == pb.DISCRETE:
            drawn: Array = rng.integers(node.start, node.start + node.n, shape)
        elif node.kind == pb.MULTI_DISCRETE:
            drawn = rng.integers(0, node.nvec, shape) + (0 if node.nvec_start is None else node.nvec_start)
        elif node.kind == pb.MULTI_BINARY:
            drawn = rng.integers(0, 2, shape)
        elif node.kind == pb.BOX and node.low is not None and node.high is not None:
            drawn = rng.uniform(node.low, node.high, shape)
        else:
            raise SystemExit("random actions need a bounded action space of numbers")
        leaves.append(drawn.astype(node.dtype))
    return leaves


class FleetWindow(Window):
    """The window of a fleet: bytes of the wire, round trips, CPU and memory by process."""

    def __init__(self, settings: RunSettings, fleet: Fleet) -> None:
        super().__init__(settings)
        self.round_trips: list[float] = []
        self._fleet = fleet
        self._rss: list[tuple[float, dict[str, int]]] = []

    def begin(self) -> None:
        stats = self._fleet.stats
        self._wire = (stats.bytes_in, stats.bytes_out, stats.frames_in + stats.frames_out)
        super().begin()

    def finish(self) -> None:
        super().finish()
        stats = self._fleet.stats
        steps = max(self.transitions, 1)
        bytes_in, bytes_out, frames = (
            now - before
            for now, before in zip(
                (stats.bytes_in, stats.bytes_out, stats.frames_in + stats.frames_out), self._wire, strict=True
            )
        )
        self.messages = frames
        self.extra |= {
            "bytes_per_step": (bytes_in + bytes_out) / steps,
            "bytes_per_s": (bytes_in + bytes_out) / self.elapsed_s,
            "bytes_in_per_step": bytes_in / steps,
            "bytes_out_per_step": bytes_out / steps,
            "faults": float(sum(stats.faults.values())),
        }
        if self.round_trips:
            p50, p99 = np.percentile(np.array(self.round_trips) * 1e3, [50, 99])
            self.extra |= {"rtt_p50_ms": float(p50), "rtt_p99_ms": float(p99)}
        self._memory()

    async def watch_memory(self) -> None:
        """Until the window is over; cancelled, it keeps what it has."""
        while not self.over:
            if self.counting:
                self._rss.append((self.transitions, dict(processes.rss_bytes(self.roles))))
            await asyncio.sleep(RSS_EVERY_S)

    def _memory(self) -> None:
        # The first half may still be warming up its allocators.
        points = self._rss[len(self._rss) // 2 :]
        for role in points[-1][1] if points else ():
            grown = processes.slope([(steps / 1e6, held.get(role, 0) / 2**20) for steps, held in points])
            self.extra[f"rss_mib_per_million_steps {role}"] = grown
            self.extra[f"rss_mib {role}"] = points[-1][1][role] / 2**20


class Driver:
    """Answers arrivals until the window is over."""

    def __init__(self, window: FleetWindow, batcher: ActBatcher | None, random: RandomPolicy) -> None:
        self._window = window
        self._batcher = batcher
        self._random = random
        self._sent_at: dict[int, float] = {}

    async def run(self, fleet: Fleet) -> None:
        """Cancelled, it leaves the fleet as it is."""
        while not self._window.over:
            arrival = await fleet.recv()
            if arrival.rows is not None:
                self._answer(arrival)

    def _answer(self, arrival: Arrival) -> None:
        lane, rows, window = arrival.lane, arrival.rows, self._window
        assert rows is not None
        sent_at = self._sent_at.pop(lane.index, None)
        if window.counting and sent_at is not None:
            window.round_trips.append(time.perf_counter() - sent_at)
        no_transition = int(np.count_nonzero(rows.flags & NO_TRANSITION))
        window.count(lane.index, len(rows.flags) - no_transition, len(rows.flags))
        if self._batcher is None:
            self._step(arrival, self._random.actions(lane.num_slots))
            return
        first = (rows.flags & FIRST) != 0
        answer = self._batcher.submit(ActRequest(lane.index, rows.obs, first, rows.mask))
        answer.add_done_callback(partial(self._acted, arrival))

    def _acted(self, arrival: Arrival, answer: asyncio.Future[Acted]) -> None:
        if not answer.cancelled() and answer.exception() is None:
            self._step(arrival, list(answer.result().sent_action))

    def _step(self, arrival: Arrival, action: list[Array]) -> None:
        self._sent_at[arrival.lane.index] = time.perf_counter()
        arrival.lane.step(action)


@contextlib.asynccontextmanager
async def acting(settings: RunSettings, spec: LaneSpec) -> AsyncIterator[ActBatcher | None]:
    """The act batcher around the policy that was asked for; None for random actions."""
    if settings.policy == "random":
        yield None
        return
    policy = network_policy(settings.policy, spec, bf16=settings.bf16)
    async with ActBatcher(policy, settings.lanes, settings.batch_lanes, on_loop=settings.act_on_loop) as batcher:
        yield batcher


def fleet_of(settings: RunSettings) -> Any:
    env_kwargs: dict[str, Any] = {
        "env": settings.env,
        "num_envs": settings.lanes * settings.slots,
        "lanes": settings.lanes,
        "autoreset": settings.autoreset,
        "host": settings.host,
        "seed": 0,
    }
    servers = None if settings.servers == "embedded" else settings.servers
    return connect(servers, scheduling=Scheduling(settings.batch, settings.core, settings.alone), **env_kwargs)


async def measure(settings: RunSettings) -> dict[str, Any]:
    async with fleet_of(settings) as fleet:
        window = FleetWindow(settings, fleet)
        assert fleet.spec is not None
        async with acting(settings, fleet.spec) as batcher:
            random = RandomPolicy(partial(draw_actions, fleet.spec.action))
            async with asyncio.TaskGroup() as group:
                group.create_task(window.run())
                group.create_task(window.watch_memory())
                driving = group.create_task(Driver(window, batcher, random).run(fleet))
                await window.ended.wait()
                driving.cancel()
        num_lanes = len(fleet.lanes)
    result = window.result().to_json()
    result["extra"]["lanes"] = float(num_lanes)
    return result


def main(settings: RunSettings) -> dict[str, Any]:
    if settings.switch_interval_s is not None:
        sys.setswitchinterval(settings.switch_interval_s)
    run_loop(asyncio.sleep(0))  # libuv opens a pipe for signals once, and keeps it
    before = processes.open_descriptors()
    result = run_loop(measure(settings))
    left = {pid: role for pid, role in processes.family().items() if role != "client"}
    result["extra"]["processes_left"] = float(len(left))
    result["extra"]["threads_left"] = float(threading.active_count() - 1)
    # gRPC closes sockets in threads of its own, shortly after the channel is closed.
    deadline = time.monotonic() + SETTLE_S
    while processes.open_descriptors() > before and time.monotonic() < deadline:
        time.sleep(0.05)
    result["extra"]["descriptors_left"] = float(processes.open_descriptors() - before)
    return result


if __name__ == "__main__":
    print(json.dumps(main(RunSettings.from_json(sys.argv[1]))))
