"""Environments of a few steps whose values are known: each fails for one kind of mistake and no other.

Observations are Box [1] or [2] in float32, actions Discrete(2).
"""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from asyncrl.records import Array

Step = tuple[Array, float, bool, bool, dict[str, Any]]


class Probe(gym.Env[Array, np.int64]):
    """Base: `width` numbers to see, two actions."""

    width: ClassVar[int] = 1

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-2.0, 2.0, (self.width,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        return self.first(), {}

    def first(self) -> Array:
        """The first observation of an episode."""
        return self.seen(0.0)

    def seen(self, *numbers: float) -> Array:
        return np.array(numbers, np.float32)

    def coin(self) -> float:
        """-1 or 1."""
        return float(self.np_random.integers(2)) * 2.0 - 1.0


class ConstantObs(Probe):
    """One step, reward 1: V = 1. Fails where the value function does not learn at all."""

    def step(self, action: np.int64) -> Step:
        return self.first(), 1.0, True, False, {}


class RandomObs(Probe):
    """One step, the reward is the observation ±1: V(obs) = obs. Fails where values do not depend on what is seen."""

    def first(self) -> Array:
        self._coin = self.coin()
        return self.seen(self._coin)

    def step(self, action: np.int64) -> Step:
        return self.seen(self._coin), self._coin, True, False, {}


class DelayedReward(Probe):
    """Two steps, reward 1 after the second: V = γ, then 1. Fails where the discount or the bootstrap is wrong."""

    def first(self) -> Array:
        self._t = 0
        return self.seen(0.0)

    def step(self, action: np.int64) -> Step:
        self._t += 1
        return self.seen(1.0), float(self._t == 2), self._t == 2, False, {}


class RewardByAction(Probe):
    """One step, reward 1 for action 1 and -1 for action 0. Fails where the policy is not pulled the right way."""

    def step(self, action: np.int64) -> Step:
        return self.first(), 2.0 * int(action) - 1.0, True, False, {}


class RewardByBoth(Probe):
    """One step, reward 1 where the action is that of the observation, else -1. Fails where rows get mixed up."""

    def first(self) -> Array:
        self._coin = self.coin()
        return self.seen(self._coin)

    def step(self, action: np.int64) -> Step:
        right = (int(action) == 1) == (self._coin > 0)
        return self.seen(self._coin), 1.0 if right else -1.0, True, False, {}


class Timeout(Probe):
    """Reward 1 a step, truncated after 10, always the same to see: V = 1 / (1 - γ). Treated as terminated: 5 to 10."""

    def first(self) -> Array:
        self._t = 0
        return self.seen(1.0)

    def step(self, action: np.int64) -> Step:
        self._t += 1
        return self.seen(1.0), 1.0, False, self._t == 10, {}


class MarkedEnd(Probe):
    """One step. From 1 it pays 1 and terminates; from -1 it pays nothing, and is truncated where it sees 1.

    So V(1) = 1 and V(-1) = γ. Bootstrapped from the observation after the reset, V(-1) = γ / (2 - γ); from the one
    acted on, or from none, 0.
    """

    def first(self) -> Array:
        self._coin = self.coin()
        return self.seen(self._coin)

    def step(self, action: np.int64) -> Step:
        pays = self._coin > 0
        return self.seen(1.0), float(pays), pays, not pays, {}
