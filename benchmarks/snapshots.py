"""Looking ahead, per second: waves over a lane, against a bare loop of the same environment and against the naive way.

    python -m benchmarks.snapshots [--env pong=ALE/Pong-v5 ...]

An entry is restore, one step, save. `bare loop`: in this process, without a wire. `lane`: waves of 64 entries over a
real server, two of them under way. `signed states`: the same with the state in every entry. `naive`: one request each
to load, step and save, one after the other. `unwrapped`: the emulator alone, for games.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import tyro

import asyncrl
from asyncrl.client.fleet import Fleet
from asyncrl.client.snapshots import LaneSnapshots, SimulateEntry
from asyncrl.wire._generated import env_pb2 as pb
from benchmarks.bare_looks import looks_of, rate
from benchmarks.report import Report, Row

UNIT = "entries/s"
WAVE = 64
ROUND_S = 1.5
DEFAULT_ENVS = ("CartPole-v1", "Taxi-v4", "pong=ALE/Pong-v5")


@dataclass(frozen=True)
class Options:
    """How long and of what."""

    env: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    repeats: Annotated[int, tyro.conf.arg(help="rounds of each row, of which the median counts")] = 3
    round_s: float = ROUND_S


class Looking:
    """One environment's rows."""

    def __init__(self, option: str, options: Options) -> None:
        self._option, self._round_s = option, options.round_s
        self.name = option.partition("=")[0].partition("{")[0]
        self._rates: dict[str, list[float]] = {}
        self._notes: dict[str, str] = {}

    def measure(self, repeats: int) -> None:
        for _ in range(repeats):
            self._in_process()
            asyncio.run(self._over_a_lane())

    def rows(self) -> Iterator[Row]:
        bare = self._rates["bare loop"]
        for name, rates in self._rates.items():
            ratios = [rate / base for rate, base in zip(rates, bare, strict=False)]
            ratio = {} if name == "bare loop" else {"bare loop": statistics.median(ratios)}
            median = statistics.median(rates)
            note = self._notes.get(name, "") or f"{1e6 / median:.0f} µs an entry"
            yield Row(self.name, name, median, UNIT, ratio, note)

    # ------------------------------------------------------------------ without a wire

    def _in_process(self) -> None:
        looks = looks_of(self._option)
        self._keep("bare loop", rate(looks.bare, self._round_s))
        self._notes["bare loop"] = f"{looks.codec}, {1e6 / self._rates['bare loop'][-1]:.0f} µs an entry"
        if looks.unwrapped is not None:
            self._keep("unwrapped", rate(looks.unwrapped, self._round_s))

    # ------------------------------------------------------------------ over a lane

    async def _over_a_lane(self) -> None:
        async with asyncrl.connect(env=self._option, num_envs=1, lanes=1, seed=1, snapshots=True) as fleet:
            await fleet.recv()
            lane, spec = fleet.lanes[0].snapshots, fleet.spec
            assert spec is not None
            (node,) = spec.action.nodes
            actions = np.random.default_rng(0).integers(node.n, size=(256, 1)).astype(node.dtype) + node.start
            (root,) = await lane.snapshot([0])

            async def waves(parent: int | bytes) -> float:
                return await _rate_of_waves(lambda first: _wave(fleet, parent, actions, first), self._round_s)

            self._keep("lane", await waves(root))
            if lane.exports:
                (state,) = await lane.export([root])
                self._keep("signed states", await waves(state))
            self._keep("naive", await naive_rate(fleet, root, actions, self._round_s))
            held_mb = await mb_of_a_thousand(lane, root, actions[0])
            self._notes["lane"] = f"{held_mb:.1f} MB per 1000 snapshots, frames counted twice"

    def _keep(self, name: str, rate: float) -> None:
        self._rates.setdefault(name, []).append(rate)


async def naive_rate(fleet: Fleet, root: int, actions: Any, seconds: float) -> float:
    """Looks a second of one lane's only slot, a request each to load, step and save. `actions` [256, 1]."""
    lane, began, count = fleet.lanes[0], time.monotonic(), 0
    while time.monotonic() - began < seconds:
        await lane.snapshots.restore(0, root)
        await fleet.recv()
        lane.step([actions[count % 256]])
        await fleet.recv()
        ids = await lane.snapshots.snapshot([0])
        await lane.snapshots.release(ids)
        count += 1
    return count / (time.monotonic() - began)


async def mb_of_a_thousand(lane: LaneSnapshots, root: int, action: Any) -> float:
    """What the lane counts for a thousand states, each a step behind the root."""
    held = [SimulateEntry(root, [action], keep_as=lane.new_id(), want_obs=False) for _ in range(1000)]
    before = lane.store_bytes
    assert (await lane.simulate(held)).ok.all()
    found = (lane.store_bytes - before) / 1e6
    lane.forget([entry.keep_as for entry in held if entry.keep_as is not None])
    return found


async def _wave(fleet: Fleet, parent: int | bytes, actions: Any, first: int) -> None:
    lane = fleet.lanes[0].snapshots
    wave = [
        SimulateEntry(parent, [actions[number % 256]], keep_as=lane.new_id(), rng=pb.RESAMPLE, seed=number)
        for number in range(first, first + WAVE)
    ]
    outcomes = await lane.simulate(wave)
    assert outcomes.ok.all(), outcomes.status
    lane.forget([entry.keep_as for entry in wave if entry.keep_as is not None])


async def _rate_of_waves(wave: Callable[[int], Awaitable[None]], seconds: float) -> float:
    await wave(0)
    began, count = time.monotonic(), 0

    async def again() -> None:
        nonlocal count
        while time.monotonic() - began < seconds:
            count += WAVE
            await wave(count)

    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(again())
    return count / (time.monotonic() - began)


def main(argv: Sequence[str] | None = None) -> int:
    options = tyro.cli(Options, prog="python -m benchmarks.snapshots", args=argv)
    report = Report("looking ahead", UNIT, None, None, False, 130)
    results = [Looking(each, options) for each in options.env or DEFAULT_ENVS]
    return report.make(results, options.repeats, report.console())


if __name__ == "__main__":
    raise SystemExit(main())
