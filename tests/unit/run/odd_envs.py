"""Environments for tests of runs: slow to make, drawing their own frames, giving NaN, observing text, dozing."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Painted(gymnasium.Env[Any, Any]):
    """Ten steps; its frames are as bright as the number of steps made."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 - Gymnasium's declaration

    def __init__(self, render_mode: str | None = None, nan_at: int = -1, text: bool = False) -> None:
        self.render_mode = render_mode
        self.observation_space = spaces.Text(8) if text else spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._nan_at = nan_at
        self._text = text
        self._t = 0

    def _obs(self) -> Any:
        if self._text:
            return "abc"
        return np.array([np.nan if self._t == self._nan_at else 1.0, self._t], np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._t = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._t += 1
        return self._obs(), float(action), self._t == 10, False, {}

    def render(self) -> Any:
        return np.full((16, 32, 3), 20 * self._t, np.uint8)


def slow_to_make() -> gymnasium.Env[Any, Any]:
    """A minute."""
    time.sleep(60)
    return gymnasium.make("CartPole-v1")


def nan_now_and_then() -> gymnasium.Env[Any, Any]:
    """In each episode's fourth observation."""
    return Painted(nan_at=3)


def speaking() -> gymnasium.Env[Any, Any]:
    return Painted(text=True)


class Dozing(gymnasium.Env[Any, Any]):
    """A step takes 10 ms; 100 ms more in the environment that was first reset with seed 1, while a file is there."""

    def __init__(self, flag: str) -> None:
        self.observation_space = spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._flag = Path(flag)
        self._first_seed: int | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._first_seed = seed if self._first_seed is None else self._first_seed
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(0.11 if self._first_seed == 1 and self._flag.exists() else 0.01)
        return np.zeros(2, np.float32), 0.0, False, False, {}
