"""Simulations per second of searches whose simulator is in lanes, against the simulator alone on the same cores.

    python -m benchmarks.search                          Pong, at round-trip times of 0, 5 and 50 ms
    python -m benchmarks.search --env CartPole-v1 --rtt-ms 0

A simulation is restore, one step, save, and its part of a tree. `bare loop`: the first three, in a process per core and
without a wire, with states as a search has them; `one state`: always with the same; `unwrapped`: the emulator's part.
`N x W`: N roots in as many slots of two lanes, W simulations of each under way at once; leaves are judged by nobody
(zeros, at no cost), so that what is left is the simulator, the wire and the tree. `unseen`: nobody looks at
observations, which then do not travel (`--leaf zero`); in the other rows they do. `in turns`: in slices of the same
minute as bare loops, since a shared machine's speed changes by the minute. `states travel`: in lanes that only
simulate. `NatureCNN`: judged by a network, in its own thread. `naive`: one request each to load, step and save, one
simulation at a time. `copies`: the same search on deep copies in this process, where the environment has any. With a
round-trip time the server is behind a line that delays every byte by half of it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import gymnasium
import numpy as np
import tyro
from gymnasium import spaces

from asyncrl.client.connecting import connect
from asyncrl.client.embedded import EmbeddedServer
from asyncrl.client.fleet_lane import FleetLane
from asyncrl.errors import ConfigError
from asyncrl.records import Array
from asyncrl.search import Evaluate, SearchConfig, search
from asyncrl.search.local import LocalSimulator
from asyncrl.search.remote import RemoteSimulator
from asyncrl.wire.step_rows import StepRows
from benchmarks.acting import FRAMES, network_policy, spec_of
from benchmarks.bare_looks import bare_rates
from benchmarks.comparing import ratios_to, verdict
from benchmarks.report import Report, Row
from benchmarks.snapshots import mb_of_a_thousand, naive_rate
from benchmarks.workloads import Target
from envserver.recipe import Recipe
from envserver.registry import parse_env_option

UNIT = "simulations/s"
SIMS = 64
LANES = 2
DEFAULT_ENVS = ("pong=ALE/Pong-v5",)
DEFAULT_RTTS_MS = (0.0, 5.0, 50.0)
LARGEST = (64, 8)
UNSEEN = ", unseen"
BARE, TURNS = "bare loop", ", in turns"
SLICES = 3  # of each of those that take turns, in a round
DEFAULT_SHAPES = ((1, 1), (1, 8), (16, 8), LARGEST)


@dataclass(frozen=True)
class Options:
    """What is measured and for how long."""

    env: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    rtt_ms: tyro.conf.UseAppendAction[tuple[float, ...]] = ()
    repeats: Annotated[int, tyro.conf.arg(help="rounds of each row, of which the median counts")] = 3
    round_s: float = 2.0
    json: Path | None = None


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
        self._held_mb = 0.0  # by a lane, for a thousand states
        self._num_actions = 0  # until the environment is known

    def measure(self, repeats: int) -> None:
        for _ in range(repeats):
            self._bare()
            asyncio.run(self._copies())
            for rtt_ms in self._options.rtt_ms or DEFAULT_RTTS_MS:
                asyncio.run(self._over_lanes(rtt_ms))

    def rows(self) -> Iterator[Row]:
        for name, rates in self._rates.items():
            rate = median(rates)
            bare = BARE + TURNS if name.endswith(TURNS) else BARE
            others = {} if name.startswith(BARE) else {BARE: self._rates[bare]}
            if name.endswith(TURNS) and others:
                others[f"{BARE}, one state"] = self._rates[f"{bare}, one state"]
            note = self._notes.get(name, "")
            yield Row(self._name, name, rate, UNIT, ratios_to(rates, others), f"{1e6 / rate:.0f} µs each{note}")
        yield Row(self._name, "1000 snapshots", self._held_mb, "MB", note="frames of a stack counted twice")
        best = _name(LARGEST, 0.0)
        for target, ours, theirs in (
            (Target("all cores, to the bare loop", 0.7), _name(LARGEST, 0.0, UNSEEN + TURNS), BARE + TURNS),
            (Target("the same with observations", 0.7), _name(LARGEST, 0.0, TURNS), BARE + TURNS),
            (Target("to the naive way", 1.0), best, _named("naive", 0.0)),
            (Target("to the naive way at 5 ms", 10.0), _name(LARGEST, 5.0), _named("naive", 5.0)),
            (Target("50 ms to none", 0.7), _name(LARGEST, 50.0), best),
        ):
            found = ratios_to(self._rates.get(ours, []), {theirs: self._rates.get(theirs, [])})
            yield verdict(self._name, target, found.get(theirs), "×")

    def _keep(self, name: str, rate: float, note: str = "") -> None:
        self._rates.setdefault(name, []).append(rate)
        self._notes[name] = note

    # ------------------------------------------------------------------ in this process

    def _bare(self, name: str = BARE) -> None:
        rates = bare_rates(self._option, self._options.round_s)
        self._keep(name, rates.bare)
        self._keep(f"{name}, one state", rates.same)
        if rates.unwrapped:
            self._keep("unwrapped", rates.unwrapped)

    async def _copies(self) -> None:
        if self._option.startswith("pong") or "ALE/" in self._option:
            return
        env: gymnasium.Env[Any, Any] = Recipe(parse_env_option(self._option), {}, capturable=True).make()
        obs, info = env.reset(seed=1)
        try:
            simulator = LocalSimulator(env)
        except ConfigError:
            return
        space: Any = env.action_space
        judge = judge_of(int(space.n))
        rng, began, count = np.random.default_rng(0), time.perf_counter(), 0
        while time.perf_counter() - began < self._options.round_s:
            root = simulator.root(env, obs, info)
            [found] = await search([root], simulator, judge, SearchConfig(num_simulations=SIMS, waves=8), rng)
            count += found.num_simulations
        self._keep("copies, 1 x 8", count / (time.perf_counter() - began))

    # ------------------------------------------------------------------ in lanes

    async def _over_lanes(self, rtt_ms: float) -> None:
        alias = self._option.partition("=")[0].partition("{")[0]
        most = max(roots for roots, _ in DEFAULT_SHAPES)
        os.environ["ASYNCRL_UNIX_SOCKETS"] = "0" if rtt_ms else "1"  # a line can be put before a port
        async with (
            EmbeddedServer(self._option, most + LANES) as server,
            line(server.address, rtt_ms / 1e3) as address,
        ):
            for shape in DEFAULT_SHAPES:
                await self._shape(address, alias, shape, rtt_ms)
            await self._shape(address, alias, (16, 8), rtt_ms, travels=True)
            await self._naive(address, alias, rtt_ms)
            if not rtt_ms:
                await self._in_turns(address, alias)
                await self._beside_a_network(address, alias)

    async def _in_turns(self, address: str, alias: str) -> None:
        """The bare loop and the largest searches, which wait for each other."""
        roots, waves = LARGEST
        async with self._opened(address, alias, roots) as rows:
            for _ in range(SLICES):
                await asyncio.to_thread(self._bare, BARE + TURNS)  # servers want to hear from us meanwhile
                await self._search(_name(LARGEST, 0.0, UNSEEN + TURNS), rows, waves, seen=False)
                await self._search(_name(LARGEST, 0.0, TURNS), rows, waves)

    async def _shape(
        self, address: str, alias: str, shape: tuple[int, int], rtt_ms: float, travels: bool = False
    ) -> None:
        roots, waves = shape
        name = _name(shape, rtt_ms, ", states travel" if travels else "")
        async with self._opened(address, alias, roots) as rows:
            if travels:
                async with connect(address, env=alias, num_envs=LANES, simulation=True, snapshots=True) as simulating:
                    await self._search(name, rows, waves, simulating.lanes)
            else:
                await self._search(name, rows, waves)

    @asynccontextmanager
    async def _opened(self, address: str, alias: str, roots: int) -> AsyncIterator[dict[FleetLane, StepRows]]:
        """Lanes of so many live slots, and what they show."""
        lanes = min(LANES, roots)
        async with connect(address, env=alias, num_envs=roots, lanes=lanes, seed=1, snapshots=True) as fleet:
            rows: dict[FleetLane, StepRows] = {}
            while len(rows) < lanes:
                arrival = await fleet.recv()
                assert arrival.rows is not None
                rows[arrival.lane] = arrival.rows
            assert fleet.spec is not None
            self._num_actions = fleet.spec.mask_size
            yield rows

    async def _search(
        self,
        name: str,
        rows: dict[FleetLane, StepRows],
        waves: int,
        others: Sequence[FleetLane] = (),
        judge: Evaluate | None = None,
        *,
        seen: bool = True,
    ) -> tuple[int, float]:
        """Simulations and seconds of this round, which are kept under the name."""
        simulator = RemoteSimulator(others, wants_obs=seen)
        judging = (judge or judge_of(self._num_actions)) if seen else None
        groups = 2 * LANES if len(rows) > 1 else 1  # while one of a lane's is in the tree the other one is simulated
        plan = SearchConfig(num_simulations=SIMS, waves=waves, groups=groups, leaf="evaluate" if seen else "zero")
        rng, began, count = np.random.default_rng(0), time.perf_counter(), 0
        while time.perf_counter() - began < self._options.round_s:
            taken = [
                root
                for lane, shown in rows.items()
                for root in await simulator.take(lane, shown.obs, range(lane.num_slots), mask=shown.mask)
            ]
            found = await search(taken, simulator, judging, plan, rng)
            simulator.give_back(taken)
            count += sum(result.num_simulations for result in found)
        counts, seconds = simulator.counts, time.perf_counter() - began
        self._keep(name, count / seconds, f", {counts.entries / max(counts.frames, 1):.0f} a frame")
        return count, seconds

    async def _naive(self, address: str, alias: str, rtt_ms: float) -> None:
        async with connect(address, env=alias, num_envs=1, lanes=1, seed=1, snapshots=True) as fleet:
            await fleet.recv()
            assert fleet.spec is not None
            (node,) = fleet.spec.action.nodes
            actions = np.random.default_rng(0).integers(node.n, size=(256, 1)).astype(node.dtype) + node.start
            (root,) = await fleet.lanes[0].snapshots.snapshot([0])
            self._keep(_named("naive", rtt_ms), await naive_rate(fleet, root, actions, self._options.round_s))
            self._held_mb = await mb_of_a_thousand(fleet.lanes[0].snapshots, root, actions[0])

    async def _beside_a_network(self, address: str, alias: str) -> None:
        """Where the time of all cores goes when leaves are judged by NatureCNN."""
        roots, waves = LARGEST
        async with self._opened(address, alias, roots) as rows:
            (shown, *_) = rows.values()
            if shown.obs[0].ndim != 4:
                return
            network = Network(self._num_actions)
            count, seconds = await self._search("NatureCNN, 64 x 8", rows, waves, judge=network)
        cores = os.cpu_count() or 1
        network_share = network.seconds / (seconds * cores)
        simulator_share = count / self._rates[BARE + TURNS][-1] / seconds
        self._notes["NatureCNN, 64 x 8"] = (
            f"; of the cores network {network_share:.0%}, simulator {simulator_share:.0%}, "
            f"wire, tree and waiting {1 - network_share - simulator_share:.0%}"
        )


class Network:
    """Judges by NatureCNN with one thread of torch, beside the loop; says nothing about actions."""

    def __init__(self, num_actions: int) -> None:
        self.seconds = 0.0
        self._num_actions = num_actions
        self._policy = network_policy("cnn", spec_of(FRAMES, spaces.Discrete(num_actions)))

    async def __call__(self, obs: Sequence[Array], mask: Array | None, to_play: Array | None) -> tuple[Array, Array]:
        values = await asyncio.to_thread(self._judged, obs)
        return np.zeros((len(values), self._num_actions)), values

    def _judged(self, obs: Sequence[Array]) -> Array:
        began = time.thread_time()  # torch computes with this thread alone; several groups' forwards may take turns
        values = self._policy.act(obs, None, np.zeros(len(obs[0]), np.bool_), (), None).value
        self.seconds += time.thread_time() - began
        return values.astype(np.float64)


def _named(what: str, rtt_ms: float) -> str:
    return f"{what}{f', RTT {rtt_ms:g} ms' if rtt_ms else ''}"


def _name(shape: tuple[int, int], rtt_ms: float, more: str = "") -> str:
    return _named(f"{shape[0]} x {shape[1]}{more}", rtt_ms)


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
    report = Report(_name(LARGEST, 0.0), UNIT, options.json, None, False, 130)
    report.make([Searching(env, options) for env in options.env or DEFAULT_ENVS], options.repeats, report.console())


if __name__ == "__main__":
    main()
