"""A native vector environment as its own package makes it: what the ceilings step, and asyncrl's native host wraps."""

from __future__ import annotations

from typing import Any

import numpy as np

from asyncrl.wire.tensors import Array


def make_native(env: str, num_envs: int) -> Any:
    """A `gymnasium.vector.VectorEnv`; `env` is a Gymnasium id with a vector entry point, or an `ALE/` one."""
    import gymnasium as gym

    if env.startswith("ALE/"):
        import ale_py.vector_env

        game = env.removeprefix("ALE/").partition("-")[0]
        snake = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in game).lstrip("_")
        return ale_py.vector_env.AtariVectorEnv(snake, num_envs=num_envs, num_threads=1)
    return gym.make_vec(env, num_envs, vectorization_mode="vector_entry_point")


class TransitionCounter:
    """Counts transitions under next-step autoreset: the row after an end is a reset, and no transition."""

    def __init__(self, num_envs: int) -> None:
        self.transitions = 0
        self._resetting = 0
        self._num_envs = num_envs

    def add(self, ended: Array) -> None:
        """`ended` b1 [N]: rows that are terminated or truncated."""
        self.transitions += self._num_envs - self._resetting
        self._resetting = int(np.count_nonzero(ended))
