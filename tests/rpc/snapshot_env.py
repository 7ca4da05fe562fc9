"""A walk that can be counted, slowed down and made to kill its process, for tests of snapshots over the wire."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class CountedWalk(gymnasium.Env[Any, Any]):
    """Deterministic. With the reset option `counted` every step, simulated ones too, adds a byte to the file `count`
    and takes `sleep_s`; with `lethal`, action 2 kills the process; with `fragile`, it raises."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Discrete(3)

    def __init__(self, count: str = "", sleep_s: float = 0.0) -> None:
        self._count, self._sleep_s = count, sleep_s
        self.options: dict[str, Any] = {}
        self.where = 0.0
        self.t = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.options = dict(options or {})
        self.where, self.t = float(self.np_random.integers(1000)), 0
        return np.array([self.where, self.t]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if action == 2 and self.options.get("lethal"):
            os.kill(os.getpid(), signal.SIGKILL)
        if action == 2 and self.options.get("fragile"):
            raise RuntimeError("fragile")
        if self.options.get("counted"):
            with Path(self._count).open("ab") as file:
                file.write(b".")
            time.sleep(self._sleep_s)
        self.where += 1.5 * int(action) - 1
        self.t += 1
        return np.array([self.where, self.t]), self.where, False, False, {}


def make(count: str = "", sleep_s: float = 0.0) -> gymnasium.Env[Any, Any]:
    return CountedWalk(count, sleep_s)
