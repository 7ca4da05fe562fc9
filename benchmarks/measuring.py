"""Settings of one measured run, and the window in which it counts.

A run is one process: it warms up, counts for `seconds`, prints one JSON object on its last line of output.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from benchmarks import processes

LAG_TICK_S = 0.005


@dataclass(frozen=True)
class RunSettings:
    """What is run and for how long."""

    env: str = "CartPole-v1"
    lanes: int = 2
    slots: int = 256
    policy: str = "random"  # random, mlp, cnn
    seconds: float = 5.0
    warmup_s: float = 1.0
    servers: str = "embedded"  # or host:port,host:port
    host: str = "auto"
    autoreset: str = "next_step"
    bf16: bool = False
    unix: bool = True
    batch_lanes: int = 1  # act batcher: fire when so many lanes wait
    act_on_loop: bool = False  # act batcher: no inference thread
    switch_interval_s: float | None = None
    batch: bool = True  # SCHED_BATCH for the client's threads
    core: int | None = None  # that the client's threads share
    alone: bool = False  # gRPC's threads and the server are not on that core

    @staticmethod
    def from_json(text: str) -> RunSettings:
        return RunSettings(**json.loads(text))

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass
class MeasuredRun:
    """What one run gave. `extra` holds figures by name, each with its unit in the name."""

    transitions_per_s: float
    rows_per_s: float
    messages_per_s: float
    extra: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Window:
    """Counts what arrives between the end of the warm-up and the end of the run; samples the loop's lag."""

    def __init__(self, settings: RunSettings) -> None:
        self.ended = asyncio.Event()
        self._started = asyncio.Event()
        self._lanes_seen: set[int] = set()
        self.counting = False
        self.transitions = self.rows = self.messages = 0
        self.elapsed_s = 0.0
        self.lags: list[float] = []
        self.extra: dict[str, float] = {}
        self.roles: dict[int, str] = {}
        self._settings = settings

    @property
    def over(self) -> bool:
        return self.ended.is_set()

    def count(self, lane: int, transitions: int, rows: int) -> None:
        """One reply of one lane."""
        if self.counting:
            self.transitions += transitions
            self.rows += rows
            self.messages += 1
        elif not self._started.is_set():
            self._lanes_seen.add(lane)
            if len(self._lanes_seen) == self._settings.lanes:
                self._started.set()

    async def run(self) -> None:
        """Opens and closes the window; the warm-up begins when every lane has replied once, because the first reset of
        64 Atari slots takes seconds. Cancelled, it leaves the window as it is."""
        await self._started.wait()
        await asyncio.sleep(self._settings.warmup_s)
        self.begin()
        start = time.perf_counter()
        end = start + self._settings.seconds
        while (now := time.perf_counter()) < end:
            await asyncio.sleep(LAG_TICK_S)
            self.lags.append(time.perf_counter() - now - LAG_TICK_S)
        self.counting = False
        self.elapsed_s = time.perf_counter() - start
        self.finish()
        self.ended.set()

    def begin(self) -> None:
        self.roles = processes.family()
        self._cpu = processes.cpu_s(self.roles)
        self.counting = True

    def finish(self) -> None:
        """Called while everything still runs."""
        cpu = processes.cpu_s(self.roles)
        steps = max(self.transitions, 1)
        self.extra |= {f"cpu_us_per_step {role}": 1e6 * (cpu[role] - self._cpu[role]) / steps for role in cpu}

    def result(self) -> MeasuredRun:
        lags = np.maximum(np.array(self.lags), 0.0) * 1e3
        extra = {"loop_lag_p99_ms": float(np.percentile(lags, 99)), "loop_lag_max_ms": float(lags.max()), **self.extra}
        per_s = 1 / self.elapsed_s
        return MeasuredRun(self.transitions * per_s, self.rows * per_s, self.messages * per_s, extra)
