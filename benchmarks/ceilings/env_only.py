"""The environment alone: one process per core steps it with random actions; no framework, no pipe, no network.

The native vector environment where there is one, else a plain loop over `gymnasium.make` environments; every process
has its share of the same slots. Whatever carries observations anywhere can only be slower.

`python -m benchmarks.ceilings.env_only '{"env": "ALE/Pong-v5", "lanes": 2, "slots": 16, ...}'`
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.measuring import MeasuredRun, RunSettings
from benchmarks.native_env import TransitionCounter, make_native

POOL = 64
Step = Callable[[int], int]  # n-th round of steps -> transitions of it


def has_native(env: str) -> bool:
    if env.startswith("ALE/"):
        return True
    import gymnasium as gym

    return gym.spec(env).vector_entry_point is not None


def native_step(env: str, num_envs: int) -> Step:
    envs = make_native(env, num_envs)
    envs.reset(seed=0)
    counter = TransitionCounter(num_envs)
    rng = np.random.default_rng(0)
    actions = [rng.integers(0, envs.single_action_space.n, num_envs) for _ in range(POOL)]

    def step(number: int) -> int:
        _, _, terminated, truncated, _ = envs.step(actions[number % POOL])
        before = counter.transitions
        counter.add(terminated | truncated)
        return counter.transitions - before

    return step


def loop_step(env: str, num_envs: int) -> Step:
    import gymnasium as gym

    envs = [gym.make(env) for _ in range(num_envs)]
    for single in envs:
        single.reset(seed=0)
    actions = [envs[0].action_space.sample() for _ in range(POOL)]

    def step(number: int) -> int:
        action = actions[number % POOL]
        for single in envs:
            _, _, terminated, truncated, _ = single.step(action)
            if terminated or truncated:
                single.reset()
        return num_envs

    return step


@contextmanager
def one_thread() -> Iterator[None]:
    """One process per core already fills the cores."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    yield
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})


def work(settings: RunSettings, num_envs: int, barrier: Any, results: Any) -> None:
    step = native_step(settings.env, num_envs) if has_native(settings.env) else loop_step(settings.env, num_envs)
    barrier.wait()
    number = transitions = 0
    end = time.perf_counter() + settings.warmup_s
    while time.perf_counter() < end:
        number += 1
        step(number)
    start = time.perf_counter()
    end = start + settings.seconds
    while time.perf_counter() < end:
        number += 1
        transitions += step(number)
    results.put(transitions / (time.perf_counter() - start))


def main(settings: RunSettings) -> dict[str, Any]:
    total = settings.lanes * settings.slots
    num_processes = min(os.cpu_count() or 1, total)
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(num_processes), context.SimpleQueue()
    shares = [total // num_processes + (rank < total % num_processes) for rank in range(num_processes)]
    with one_thread():
        workers = [context.Process(target=work, args=(settings, share, barrier, results)) for share in shares]
        for worker in workers:
            worker.start()
    speed = sum(results.get() for _ in workers)
    for worker in workers:
        worker.join()
    return MeasuredRun(speed, speed, 0.0, {"processes": num_processes}).to_json()


if __name__ == "__main__":
    print(json.dumps(main(RunSettings.from_json(sys.argv[1]))))
