"""The simulator of a search alone: restore, one step, save, in one process per core, all at once and without a wire.

What carries states and observations anywhere has the same cores and can only be slower. `python -m benchmarks.search`
starts it; the last line of output has the looks a second of all processes, and those of the emulator without wrappers.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from envserver.recipe import Recipe
from envserver.registry import parse_env_option
from envserver.snapshots.probing import choose

BATCH = 256
FRAMES = 4  # of the emulator, for one step


def rate(look: Callable[[int], None], seconds: float) -> float:
    """Calls a second, after a few that do not count."""
    for number in range(20):
        look(number)
    began, count = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        look(count)
        count += 1
    return count / (time.monotonic() - began)


def work(option: str, seconds: float, barrier: Any, results: Any) -> None:
    recipe = Recipe(parse_env_option(option), {}, capturable=True)
    chosen, reason = choose("auto", recipe.make)
    assert chosen is not None, reason
    codec, env = chosen
    env.reset(seed=1)
    state, _ = codec.capture(env)
    space: Any = env.action_space
    actions = np.random.default_rng(0).integers(space.n, size=BATCH) + space.start

    def bare(number: int) -> None:
        look = codec.restore(env, state, number)
        look.step(actions[number % BATCH])
        codec.capture(look)

    barrier.wait()
    wrapped = rate(bare, seconds)
    ale: Any = getattr(env.unwrapped, "ale", None)
    if ale is None:
        results.put((wrapped, 0.0))
        return
    saved, games = ale.cloneState(), ale.getMinimalActionSet()

    def unwrapped(number: int) -> None:
        ale.restoreState(saved)
        for _ in range(FRAMES):
            ale.act(games[number % len(games)])
        ale.cloneState()

    barrier.wait()
    results.put((wrapped, rate(unwrapped, seconds)))


def bare_rates(option: str, seconds: float) -> tuple[float, float]:
    """Of all cores together: wrapped, and the emulator's (0 where there is none). A process of its own asks, because
    whoever measures has gRPC's threads."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.bare_looks", option, str(seconds)],
        capture_output=True,
        text=True,
        check=True,
    )
    wrapped, unwrapped = json.loads(done.stdout.splitlines()[-1])
    return wrapped, unwrapped


def main(option: str, seconds: float) -> None:
    context = multiprocessing.get_context("spawn")
    cores = os.cpu_count() or 1
    barrier, results = context.Barrier(cores), context.SimpleQueue()
    workers = [context.Process(target=work, args=(option, seconds, barrier, results)) for _ in range(cores)]
    for worker in workers:
        worker.start()
    found = [results.get() for _ in workers]
    for worker in workers:
        worker.join()
    print(json.dumps([sum(each) for each in zip(*found, strict=True)]))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
