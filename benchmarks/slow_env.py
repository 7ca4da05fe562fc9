"""CartPole whose step takes at least 2 ms: `benchmarks.slow_env:SlowCartPole-v1` for Gymnasium.

It sleeps, so many of them fit on one core, as simulators do that wait for a device or another process.
"""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym

STEP_S = 0.002
ENV_ID = "SlowCartPole-v1"


class Slow(gym.Wrapper[Any, Any, Any, Any]):
    def step(self, action: Any) -> Any:
        time.sleep(STEP_S)
        return self.env.step(action)


def make_slow(**kwargs: Any) -> Any:
    return Slow(gym.make("CartPole-v1", disable_env_checker=True, **kwargs))


gym.register(ENV_ID, entry_point=make_slow)
