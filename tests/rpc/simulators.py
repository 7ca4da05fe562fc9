"""Environments for the tests that no package has: nested spaces and infos, masks, faults on demand."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

ObsAct = dict[str, Any]


class Nested(gymnasium.Env[ObsAct, ObsAct]):
    """Dict and Tuple spaces with every kind of leaf; infos that are nested, rare and of every dtype."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 - Gymnasium's declaration

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = spaces.Dict(
            position=spaces.Box(-10, 10, (3,), np.float32),
            sensors=spaces.Tuple([spaces.Discrete(7, start=-2), spaces.MultiBinary(4)]),
            image=spaces.Box(0, 255, (2, 2), np.uint8),
            word=spaces.Text(5, min_length=0, charset="abc"),
        )
        self.action_space = spaces.Dict(
            choice=spaces.Discrete(3),
            force=spaces.Box(-1, 1, (2,), np.float32),
            switches=spaces.Tuple([spaces.MultiDiscrete([2, 3]), spaces.Discrete(2)]),
        )
        self._t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[ObsAct, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        self._t = 0
        return self.observation_space.sample(), {"start": int((options or {}).get("start", 0))}

    def step(self, action: ObsAct) -> tuple[ObsAct, float, bool, bool, dict[str, Any]]:
        self._t += 1
        draw = self.np_random.random()
        info: dict[str, Any] = {"t": self._t, "inner": {"force": action["force"], "deep": {"draw": float(draw)}}}
        if action["choice"] == 2:
            info["rare"] = np.float32(draw)
        reward = float(action["force"].sum()) + int(action["switches"][0][1])
        return self.observation_space.sample(), reward, bool(draw < 0.1), self._t >= 15, info

    def render(self) -> Any:
        return np.full((2, 3, 3), self._t, np.uint8)


class OnDemand(gymnasium.Env[Any, Any]):
    """Counts; the action says what goes wrong: 1 ends, 2 truncates, 3 raises, 4 kills the process, 5 hangs."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012 - Gymnasium's declaration

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = spaces.Box(0, np.inf, (2,), np.float64)
        self.action_space = spaces.Discrete(6)
        self._at = np.zeros(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        # (which episode this is, as far as the seed tells; steps in it)
        self._at = np.array([float(self.np_random.integers(1, 2**40)), 0.0])
        return self._at.copy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if action == 3:
            raise ValueError("this environment was told to raise")
        if action == 4:
            os.kill(os.getpid(), 9)
        if action == 5:
            time.sleep(3600)
        self._at[1] += 1
        return self._at.copy(), 1.0, bool(action == 1), bool(action == 2), {}

    def render(self) -> Any:
        return np.full((4, 6, 3), int(self._at[1]), np.uint8)


class Graded(gymnasium.Env[Any, Any]):
    """Counts to `after` and says how it went: steps and resets have infos of different keys, action 1 ends without."""

    def __init__(self, after: int = 5) -> None:
        self.observation_space = spaces.Box(0, np.inf, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._after, self._t, self._number = after, 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._t = 0
        self._number += 1
        return np.zeros(1, np.float32), {"start": self._number, "t": 0}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._t += 1
        obs, ended = np.full(1, self._t, np.float32), self._t == self._after
        if action == 1 and self._t == 3:
            return obs, 1.0, False, True, {}
        return obs, 1.0, ended, False, {"t": self._t, "is_success": ended, "inner": {"left": self._after - self._t}}


class Stuck(gymnasium.Env[Any, Any]):
    """Is never built; `mark` is a file by which it tells that it is begun."""

    def __init__(self, mark: str) -> None:
        Path(mark).touch()
        time.sleep(3600)


class Ragged(gymnasium.Env[Any, Any]):
    """Its info is as long as the sum of its actions."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, np.inf, (1,), np.float32)
        self.action_space = spaces.Discrete(3)
        self._sum = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._sum = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._sum += int(action)
        return np.zeros(1, np.float32), 1.0, False, False, {"seen": np.ones(self._sum)}


class Camera(gymnasium.Env[Any, Any]):
    """The last action says what its `render` does: 0 shows, 1 raises, 2 kills the process, 3 hangs."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 - Gymnasium's declaration

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = spaces.Box(0, 1, (1,), np.float32)
        self.action_space = spaces.Discrete(4)
        self._fault = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._fault = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._fault = int(action)
        return np.zeros(1, np.float32), 1.0, False, False, {}

    def render(self) -> Any:
        if self._fault == 1:
            raise ValueError("no light")
        if self._fault == 2:
            os.kill(os.getpid(), 9)
        if self._fault == 3:
            time.sleep(3600)
        return np.zeros((4, 6, 3), np.uint8)


def nested() -> gymnasium.Env[Any, Any]:
    return Nested()
