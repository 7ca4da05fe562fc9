"""What a start costs: an idle env server, 64 lanes, and the way from the dial to the first step.

    python -m benchmarks.startup [--env CartPole-v1] [--lanes 64] [--repeats 3] [--json FILE]

Memory is PSS (shared pages counted once over all processes that share them) where the kernel tells it, so that forked
lanes are not charged for what they share. Linux only.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np
import tyro
from rich.console import Console

from asyncrl.client.connecting import connect
from asyncrl.client.fleet import Fleet
from benchmarks import processes
from benchmarks.ceilings.bare_grpc import run_loop
from benchmarks.lanes_run import draw_actions
from benchmarks.report import Row, print_table

MIB = 2.0**20


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is started, and how often."""

    env: str = "CartPole-v1"
    lanes: int = 64
    """Lanes of one slot each for the second measurement."""
    repeats: int = 3
    json: Path | None = None


@contextmanager
def serving(env: str, num_envs: int, *flags: str) -> Iterator[str]:
    """The address of an env server of our own, until the block is left."""
    with tempfile.TemporaryDirectory() as folder:
        address = f"unix:{Path(folder) / 'server'}"
        command = [sys.executable, "-m", "envserver", "--env", env, "--num-envs", str(num_envs), "--listen", address]
        server = subprocess.Popen([*command, *flags], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            assert server.stdout is not None
            ready = json.loads(server.stdout.readline())
            yield str(ready["ready"])
        finally:
            server.terminate()
            server.wait()
            if server.stdout is not None:
                server.stdout.close()


def pss_bytes(pid: int) -> int:
    """Proportional set size; resident size where the kernel does not tell."""
    with suppress(OSError):
        for line in (processes.PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return sum(processes.rss_bytes({pid: "it"}).values())


def maps_torch(pid: int) -> bool:
    with suppress(OSError):
        return "libtorch" in (processes.PROC / str(pid) / "maps").read_text()
    return False


class Figures:
    """Samples by name."""

    def __init__(self) -> None:
        self._samples: dict[tuple[str, str], list[float]] = {}

    def add(self, name: str, value: float, unit: str) -> None:
        self._samples.setdefault((name, unit), []).append(value)

    def rows(self) -> list[Row]:
        return [Row("startup", name, median(values), unit) for (name, unit), values in self._samples.items()]


@asynccontextmanager
async def fleet_at(address: str | None, env: str, lanes: int) -> AsyncIterator[Fleet]:
    async with connect(address, env=env, num_envs=lanes, lanes=lanes, seed=0) as fleet:
        yield fleet


async def first_step_s(address: str | None, env: str) -> float:
    """Seconds from `connect` to the rows of the first step."""
    start = time.perf_counter()
    async with fleet_at(address, env, 1) as fleet:
        first = await fleet.recv()
        assert fleet.spec is not None
        first.lane.step(draw_actions(fleet.spec.action, np.random.default_rng(0), 1))
        await fleet.recv()
        return time.perf_counter() - start


async def all_lanes_s(address: str, env: str, lanes: int, figures: Figures) -> float:
    """Seconds from `connect` until every lane has sent its first observations; notes what they hold."""
    start = time.perf_counter()
    async with fleet_at(address, env, lanes) as fleet:
        for _ in range(lanes):
            assert (await fleet.recv()).rows is not None
        seconds = time.perf_counter() - start
        roles = processes.family()
        pss = {pid: pss_bytes(pid) for pid in roles}
        held = sum(size for pid, size in pss.items() if roles[pid] == "lanes")
        figures.add(f"{lanes} lanes, memory of all", held / MIB, "MiB PSS")
        figures.add("server with its lanes open", sum(pss.values()) / MIB - pss[os.getpid()] / MIB, "MiB PSS")
        figures.add("processes that map torch", sum(map(maps_torch, roles)), "")
    return seconds


def idle(env: str, figures: Figures) -> None:
    start = time.perf_counter()
    with serving(env, 64):
        figures.add("server start to ready", (time.perf_counter() - start) * 1e3, "ms")
        time.sleep(0.5)
        roles = {pid: role for pid, role in processes.family().items() if role != "client"}
        for role, size in processes.rss_bytes(roles).items():
            figures.add(f"idle {role}", size / MIB, "MiB RSS")
        figures.add("idle server and nursery", sum(map(pss_bytes, roles)) / MIB, "MiB PSS")


def measure(options: Options, figures: Figures) -> None:
    env = options.env
    idle(env, figures)
    with serving(env, options.lanes) as address:
        seconds = run_loop(all_lanes_s(address, env, options.lanes, figures))
        figures.add(f"{options.lanes} lanes of 1 slot, dial to first observations", seconds * 1e3, "ms")
    with serving(env, 4) as address:
        figures.add("dial to first step, cold lane", run_loop(first_step_s(address, env)) * 1e3, "ms")
        figures.add("dial to first step, second client", run_loop(first_step_s(address, env)) * 1e3, "ms")
    with serving(env, 4, "--lanes", "4", "--warm") as address:
        figures.add("dial to first step, warm lane", run_loop(first_step_s(address, env)) * 1e3, "ms")
    figures.add("nothing running to first step (embedded)", run_loop(first_step_s(None, env)) * 1e3, "ms")
    figures.add("torch imported by the client", float("torch" in sys.modules), "")


def main(options: Options) -> int:
    figures = Figures()
    for _ in range(options.repeats):
        measure(options, figures)
    rows = figures.rows()
    print_table(rows, Console(width=None if sys.stdout.isatty() else 120))
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options, description=__doc__)))
