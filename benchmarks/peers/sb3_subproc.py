"""Stable-Baselines3's SubprocVecEnv: a process per environment behind a pipe."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module

import numpy as np

from benchmarks.peers.stepping import POOL, Step, make_env, run


def start(env: str, num_envs: int) -> tuple[Step, Callable[[], None]]:
    vec_env = import_module("stable_baselines3.common.vec_env")
    envs = vec_env.SubprocVecEnv([partial(make_env, env)] * num_envs)
    envs.reset()
    actions = [np.array([envs.action_space.sample() for _ in range(num_envs)]) for _ in range(POOL)]
    return lambda number: envs.step(actions[number % POOL]), envs.close


if __name__ == "__main__":
    run(start)
