"""A simulator of your own, served. On the machine where it runs, which needs no torch:

    envserver --env corridor=examples.my_simulator:make_env --num-envs 64

and on the training machine `asyncrl.RemoteVectorEnv("corridor", 64, "worker1:50051")`. To see both ends at once:

    python -m examples.my_simulator
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

import asyncrl


class Corridor(gymnasium.Env[Any, Any]):
    """Walk to the right end. All that a server needs of an environment is Gymnasium's interface."""

    def __init__(self, length: int = 8) -> None:
        self.length = length
        self.observation_space = spaces.Dict(at=spaces.Discrete(length), wind=spaces.Box(-1, 1, (1,), np.float32))
        self.action_space = spaces.Discrete(2)
        self._at = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._at = 0
        return self._obs(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        drift = int(self.np_random.random() < 0.2)
        self._at = int(np.clip(self._at + (1 if action == 1 else -1) - drift, 0, self.length - 1))
        there = self._at == self.length - 1
        return self._obs(), 1.0 if there else -0.01, there, False, self._info()

    def _obs(self) -> dict[str, Any]:
        return {"at": self._at, "wind": self.np_random.uniform(-1, 1, 1).astype(np.float32)}

    def _info(self) -> dict[str, Any]:
        # Numbers travel, strings do not. `action_mask` tells which actions are possible now.
        return {"progress": self._at / (self.length - 1), "action_mask": np.array([self._at > 0, True], np.int8)}


def make_env(length: int = 8) -> gymnasium.Env[Any, Any]:
    """What `--env corridor=examples.my_simulator:make_env` calls; {"length": 12} behind it sets the argument."""
    return gymnasium.wrappers.TimeLimit(Corridor(length), 50)


def main() -> float:
    """Walks right on every machine; the mean return."""
    env = asyncrl.RemoteVectorEnv('corridor=examples.my_simulator:make_env{"length": 6}', num_envs=4)
    print(env.single_observation_space)
    obs, infos = env.reset(seed=1)
    returns: list[float] = []
    while len(returns) < 20:
        assert infos["action_mask"][:, 1].all()
        obs, _, _, _, infos = env.step(np.ones(4, np.int64))
        if "episode" in infos:
            returns += infos["episode"]["r"][infos["_episode"]].tolist()
    print(f"at {obs['at']}, mean return of {len(returns)} episodes: {np.mean(returns):.2f}")
    env.close()
    return float(np.mean(returns))


if __name__ == "__main__":
    main()
