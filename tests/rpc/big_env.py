"""An environment with observations of 256 KiB, all of whose bytes are the number of steps."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

Obs = npt.NDArray[np.uint8]


class BigEnv(gymnasium.Env[Obs, np.int64]):
    observation_space = gymnasium.spaces.Box(0, 255, (256 * 1024,), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)
    count = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        return self._obs(), {}

    def step(self, action: np.int64) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        self.count += 1
        return self._obs(), 0.0, False, False, {}

    def _obs(self) -> Obs:
        return np.full(256 * 1024, self.count, np.uint8)


def make(**_kwargs: Any) -> BigEnv:
    return BigEnv()
