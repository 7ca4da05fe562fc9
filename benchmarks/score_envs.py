"""Environments that the published scores are measured on and Gymnasium does not register."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class HiddenVelocities(gym.ObservationWrapper[Any, Any, Any]):
    """CartPole that shows position and angle, and not how fast they change."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        box = env.observation_space
        assert isinstance(box, spaces.Box)
        self.observation_space = spaces.Box(box.low[[0, 2]], box.high[[0, 2]], dtype=np.float32)

    def observation(self, observation: Any) -> Any:
        return observation[[0, 2]]


class ForbiddenActions(gym.Wrapper[Any, Any, Any, Any]):
    """CartPole with four more actions that are masked at random, and raise if they are taken all the same.

    Of each pair of buttons that push the same way one is allowed at a time, and a fifth and a sixth never are.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.action_space = spaces.Discrete(6)
        self._mask = np.zeros(6, np.int8)

    def _info(self, info: dict[str, Any]) -> dict[str, Any]:
        left, right = self.unwrapped.np_random.integers(0, 2, 2)
        self._mask[:] = 0
        self._mask[[2 * left, 2 * right + 1]] = 1
        return {**info, "action_mask": self._mask.copy()}

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(**kwargs)
        return obs, self._info(info)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if not self._mask[action]:
            raise ValueError(f"action {action} is masked: {self._mask}")
        obs, reward, terminated, truncated, info = self.env.step(int(action) % 2)
        return obs, reward, terminated, truncated, self._info(info)


def hidden_velocities(**kwargs: Any) -> gym.Env[Any, Any]:
    """`hidden=benchmarks.score_envs:hidden_velocities`."""
    return HiddenVelocities(gym.make("CartPole-v1", **kwargs))


def forbidden_actions(**kwargs: Any) -> gym.Env[Any, Any]:
    """`forbidden=benchmarks.score_envs:forbidden_actions`."""
    return ForbiddenActions(gym.make("CartPole-v1", **kwargs))
