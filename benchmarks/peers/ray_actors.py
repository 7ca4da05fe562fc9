"""Ray: one actor per environment, all of them stepped and awaited together."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.peers.stepping import POOL, Step, make_env, run


class Worker:
    """One environment in an actor of its own."""

    def __init__(self, env: str) -> None:
        self._env = make_env(env)
        self._env.reset(seed=0)

    def step(self, action: Any) -> Any:
        row = self._env.step(action)
        if row[2] or row[3]:
            self._env.reset()
        return row[:4]


def start(env: str, num_envs: int) -> tuple[Step, Callable[[], None]]:
    ray = import_module("ray")
    where = {"env_vars": {"PYTHONPATH": str(Path.cwd())}}
    ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR", runtime_env=where)
    # No CPU is reserved: there are more environments than cores, as with every other peer.
    actors = [ray.remote(num_cpus=0)(Worker).remote(env) for _ in range(num_envs)]
    probe = make_env(env)
    actions = [[probe.action_space.sample() for _ in range(num_envs)] for _ in range(POOL)]

    def step(number: int) -> Any:
        return ray.get([actor.step.remote(a) for actor, a in zip(actors, actions[number % POOL], strict=True)])

    step(0)  # every actor is up
    return step, ray.shutdown


if __name__ == "__main__":
    run(start)
