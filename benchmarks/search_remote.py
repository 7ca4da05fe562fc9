"""Simulations per second of searches whose simulator is in lanes, against a bare loop of the same environment.

    python -m benchmarks.search_remote [--env CartPole-v1 --env pong=ALE/Pong-v5] [--rtt-ms 0 --rtt-ms 50]

A simulation is restore, one step, save, and its part of a tree. Leaves are judged by nobody (zeros, at no cost), so
what is left is the simulator, the wire and the tree. `bare loop`: the simulator alone, in this process. `copies`: the
same search on deep copies in this process, where the environment has any. `N x W`: N roots in as many slots of lanes,
W simulations of each under way at once. `states travel`: in lanes that only simulate. With a round-trip time the
server is behind a line that delays every byte by half of it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from statistics import median
from typing import Annotated, Any

import gymnasium
import numpy as np
import tyro

from asyncrl.client.connecting import connect
from asyncrl.client.embedded import EmbeddedServer
from asyncrl.client.fleet_lane import FleetLane
from asyncrl.errors import ConfigError
from asyncrl.records import Array
from asyncrl.search import Evaluate, SearchConfig, search
from asyncrl.search.local import LocalSimulator
from asyncrl.search.remote import RemoteSimulator
from asyncrl.wire.step_rows import StepRows
from benchmarks.report import Report, Row
from envserver.recipe import Recipe
from envserver.registry import parse_env_option
from envserver.snapshots.probing import choose

UNIT = "simulations/s"
SIMS = 64
LANES = 2
DEFAULT_ENVS = ("CartPole-v1", "pong=ALE/Pong-v5")
DEFAULT_SHAPES = ((1, 1), (1, 8), (16, 8), (64, 8))


@dataclass(frozen=True)
class Options:
    """What is measured and for how long."""

    env: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    rtt_ms: tyro.conf.UseAppendAction[tuple[float, ...]] = ()
    repeats: Annotated[int, tyro.conf.arg(help="rounds of each row, of which the median counts")] = 3
    round_s: float = 2.0


def judge_of(num_actions: int) -> Evaluate:
    """Nothing is likelier or better than anything else."""

    async def judge(obs: Sequence[Array], mask: Array | None, to_play: Array | None) -> tuple[Array, Array]:
        return np.zeros((len(obs[0]), num_actions)), np.zeros(len(obs[0]))

    return judge


class Searching:
    """One environment's rows."""

    def __init__(self, option: str, options: Options) -> None:
        self._option, self._options = option, options
        self._name = option.partition("=")[0].partition("{")[0]
        self._rates: dict[str, list[float]] = {}
        self._notes: dict[str, str] = {}
        self._judge = judge_of(0)  # until the environment is known

    def measure(self, repeats: int) -> None:
        for _ in range(repeats):
            self._bare()
            asyncio.run(self._copies())
            for rtt_ms in self._options.rtt_ms or (0.0,):
                asyncio.run(self._over_lanes(rtt_ms))

    def rows(self) -> Iterator[Row]:
        bare = median(self._rates["bare loop"])
        for name, rates in self._rates.items():
            rate = median(rates)
            note = self._notes.get(name, "")
            ratio = {} if name == "bare loop" else {"bare loop": rate / bare}
            yield Row(self._name, name, rate, UNIT, ratio, f"{1e6 / rate:.0f} µs each{note}")

    def _keep(self, name: str, rate: float, note: str = "") -> None:
        self._rates.setdefault(name, []).append(rate)
        self._notes[name] = note

    # ------------------------------------------------------------------ in this process

    def _bare(self) -> None:
        recipe = Recipe(parse_env_option(self._option), {}, capturable=True)
        chosen, reason = choose("auto", recipe.make)
        assert chosen is not None, reason
        codec, env = chosen
        env.reset(seed=1)
        state, _ = codec.capture(env)
        assert isinstance(env.action_space, gymnasium.spaces.Discrete)
        # A space that samples has a state of its own.
        self._judge = judge_of(int(env.action_space.n))
        actions = np.random.default_rng(0).integers(env.action_space.n, size=256) + env.action_space.start
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < self._options.round_s:
            look = codec.restore(env, state, count)
            look.step(actions[count % 256])
            codec.capture(look)
            count += 1
        self._keep("bare loop", count / (time.perf_counter() - began))

    async def _copies(self) -> None:
        if self._option.startswith("pong") or "ALE/" in self._option:
            return
        env: gymnasium.Env[Any, Any] = Recipe(parse_env_option(self._option), {}, capturable=True).make()
        obs, info = env.reset(seed=1)
        try:
            simulator = LocalSimulator(env)
        except ConfigError:
            return
        rng, began, count = np.random.default_rng(0), time.perf_counter(), 0
        while time.perf_counter() - began < self._options.round_s:
            root = simulator.root(env, obs, info)
            [found] = await search([root], simulator, self._judge, SearchConfig(num_simulations=SIMS, waves=8), rng)
            count += found.num_simulations
        self._keep("copies, 1 x 8", count / (time.perf_counter() - began))

    # ------------------------------------------------------------------ in lanes

    async def _over_lanes(self, rtt_ms: float) -> None:
        alias = self._option.partition("=")[0].partition("{")[0]
        most = max(roots for roots, _ in DEFAULT_SHAPES)
        async with (
            EmbeddedServer(self._option, most + LANES) as server,
            line(server.address, rtt_ms / 1e3) as address,
        ):
            for roots, waves in DEFAULT_SHAPES:
                await self._shape(address, alias, (roots, waves), rtt_ms)
            await self._shape(address, alias, (16, 8), rtt_ms, travels=True)

    async def _shape(
        self, address: str, alias: str, shape: tuple[int, int], rtt_ms: float, travels: bool = False
    ) -> None:
        roots, waves = shape
        name = f"{roots} x {waves}{', states travel' if travels else ''}{f', RTT {rtt_ms:g} ms' if rtt_ms else ''}"
        lanes = min(LANES, roots)
        wish: dict[str, Any] = {"env": alias, "snapshots": True}
        async with connect(address, num_envs=roots, lanes=lanes, seed=1, **wish) as fleet:
            others: list[FleetLane] = []
            rows: dict[FleetLane, StepRows] = {}
            while len(rows) < lanes:
                arrival = await fleet.recv()
                assert arrival.rows is not None
                rows[arrival.lane] = arrival.rows
            if travels:
                async with connect(address, num_envs=LANES, simulation=True, **wish) as simulating:
                    others = simulating.lanes
                    await self._search(name, rows, waves, others)
            else:
                await self._search(name, rows, waves, others)

    async def _search(
        self, name: str, rows: dict[FleetLane, StepRows], waves: int, others: Sequence[FleetLane]
    ) -> None:
        simulator = RemoteSimulator(others)
        plan = SearchConfig(num_simulations=SIMS, waves=waves, groups=2 if len(rows) > 1 else 1)
        rng, began, count = np.random.default_rng(0), time.perf_counter(), 0
        while time.perf_counter() - began < self._options.round_s:
            taken = [
                root
                for lane, shown in rows.items()
                for root in await simulator.take(lane, shown.obs, range(lane.num_slots), mask=shown.mask)
            ]
            found = await search(taken, simulator, self._judge, plan, rng)
            simulator.give_back(taken)
            count += sum(result.num_simulations for result in found)
        counts = simulator.counts
        per_frame = counts.entries / max(counts.frames, 1)
        self._keep(name, count / (time.perf_counter() - began), f", {per_frame:.0f} a frame")


@asynccontextmanager
async def line(address: str, rtt_s: float) -> AsyncIterator[str]:
    """The address, or one behind which every byte is half of `rtt_s` late in each direction."""
    if not rtt_s:
        yield address
        return
    host, _, port = address.rpartition(":")
    tasks: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(host, int(port))
        async with asyncio.TaskGroup() as group:
            tasks.update(
                {group.create_task(_late(reader, back, rtt_s / 2)), group.create_task(_late(there, writer, rtt_s / 2))}
            )

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()


async def _late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    loop = asyncio.get_running_loop()
    while data := await reader.read(1 << 18):
        # Timers of equal delay run in the order in which they were made.
        loop.call_later(delay_s, writer.write, data)
    await asyncio.sleep(delay_s)
    writer.close()


def main() -> None:
    options = tyro.cli(Options, description=(__doc__ or "").partition("\n")[0])
    os.environ["ASYNCRL_UNIX_SOCKETS"] = "0"  # a line can be put before a port
    report = Report("16 x 8", UNIT, None, None, False, 120)
    report.make([Searching(env, options) for env in options.env or DEFAULT_ENVS], options.repeats, report.console())


if __name__ == "__main__":
    main()
