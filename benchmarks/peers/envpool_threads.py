"""EnvPool: C++ environments on a thread pool in this very process. No process boundary, no network."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

import numpy as np

from benchmarks.peers.stepping import POOL, Step, run


def start(env: str, num_envs: int) -> tuple[Step, Callable[[], None]]:
    envpool = import_module("envpool")
    atari = {"stack_num": 4} if env.startswith("ALE/") else {}
    envs = envpool.make(env.removeprefix("ALE/"), env_type="gymnasium", num_envs=num_envs, **atari)
    envs.reset()
    rng = np.random.default_rng(0)
    actions = [rng.integers(0, envs.action_space.n, num_envs).astype(np.int32) for _ in range(POOL)]
    return lambda number: envs.step(actions[number % POOL]), envs.close


if __name__ == "__main__":
    run(start)
