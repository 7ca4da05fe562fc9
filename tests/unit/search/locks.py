"""An environment of two dials, for tests of actions that are sampled and of which few are allowed."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Locks(gymnasium.Env[Any, Any]):
    """What the dials may be set to is in the mask, and changes with each turn; anything else jams them. Ten turns."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = spaces.MultiDiscrete([3, 2])

    def __init__(self) -> None:
        self.turns = 0

    def allowed(self) -> tuple[Any, Any]:
        odd = self.turns % 2
        return np.array([odd, 1 - odd, 1], np.int8), np.array([1 - odd, odd], np.int8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.turns = 0
        return np.zeros(1, np.float32), {"action_mask": self.allowed()}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        legal = all(place[choice] for place, choice in zip(self.allowed(), action, strict=True))
        self.turns += 1
        reward = float(action[0] == 2) if legal else -100.0
        obs = np.array([self.turns], np.float32)
        return obs, reward, self.turns == 10 or not legal, False, {"action_mask": self.allowed()}


def make() -> gymnasium.Env[Any, Any]:
    return Locks()
