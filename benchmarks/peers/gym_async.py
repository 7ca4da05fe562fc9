"""Gymnasium's AsyncVectorEnv: a process per environment, observations in shared memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks.peers.stepping import POOL, Step, make_env, run


def start(env: str, num_envs: int) -> tuple[Step, Callable[[], None]]:
    import gymnasium as gym

    envs = gym.vector.AsyncVectorEnv([partial(make_env, env)] * num_envs)
    envs.reset(seed=0)
    actions = [envs.action_space.sample() for _ in range(POOL)]
    return lambda number: envs.step(actions[number % POOL]), envs.close


if __name__ == "__main__":
    run(start)
