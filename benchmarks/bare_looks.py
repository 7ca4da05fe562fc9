"""The simulator of a search alone: restore, one step, save, in one process per core, all at once and without a wire.

What carries states and observations anywhere has the same cores and can only be slower. The states are those that a
search has: of `ROOTS` trees in turn, each of which grows to `NODES` states by restoring any of its own. To restore one
state again and again, and forget what is saved, is easier on the caches; that is measured too, and so is the emulator
without wrappers. `python -m benchmarks.search` starts it; the last line of output has the looks a second of all
processes.
"""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from envserver.recipe import Recipe
from envserver.registry import parse_env_option
from envserver.snapshots.probing import choose

BATCH = 256
FRAMES = 4  # of the emulator, for one step
ROOTS, NODES = 32, 64


def rate(look: Callable[[int], None], seconds: float) -> float:
    """Calls a second, after a few that do not count."""
    for number in range(20):
        look(number)
    began, count = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        look(count)
        count += 1
    return count / (time.monotonic() - began)


class Looks(NamedTuple):
    """One environment's, by number of the look: two that are wrapped, and the emulator's part of them, if any."""

    bare: Callable[[int], None]
    same: Callable[[int], None]  # of one state
    unwrapped: Callable[[int], None] | None
    codec: str


class Rates(NamedTuple):
    """Looks a second of all cores together; 0 where there are none."""

    bare: float
    same: float
    unwrapped: float


def looks_of(option: str) -> Looks:
    recipe = Recipe(parse_env_option(option), {}, capturable=True)
    chosen, reason = choose("auto", recipe.make)
    assert chosen is not None, reason
    codec, env = chosen
    env.reset(seed=1)
    space = copy.deepcopy(env.action_space)  # a space that is sampled from belongs to the state
    actions = [space.sample() for _ in range(BATCH)]
    state, _ = codec.capture(env)

    def same(number: int) -> None:
        look = codec.restore(env, state, number)
        look.step(actions[number % BATCH])
        codec.capture(look)

    trees = [[state] for _ in range(ROOTS)]
    draws = random.Random(os.getpid())

    def bare(number: int) -> None:
        tree = trees[number % ROOTS]
        if len(tree) > NODES:
            tree[:] = [state]
        look = codec.restore(env, draws.choice(tree), number)
        _, _, terminated, truncated, _ = look.step(actions[draws.randrange(BATCH)])
        saved, _ = codec.capture(look)
        if not (terminated or truncated):
            tree.append(saved)

    ale: Any = getattr(env.unwrapped, "ale", None)
    if ale is None:
        return Looks(bare, same, None, reason)
    saved, games = ale.cloneState(), ale.getMinimalActionSet()

    def unwrapped(number: int) -> None:
        ale.restoreState(saved)
        for _ in range(FRAMES):
            ale.act(games[number % len(games)])
        ale.cloneState()

    return Looks(bare, same, unwrapped, reason)


def work(option: str, seconds: float, barrier: Any, results: Any) -> None:
    looks = looks_of(option)
    found: list[float] = []
    for each in (looks.bare, looks.same, looks.unwrapped):
        barrier.wait()
        found.append(0.0 if each is None else rate(each, seconds))
    results.put(found)


def bare_rates(option: str, seconds: float) -> Rates:
    """A process of its own asks, because whoever measures has gRPC's threads."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.bare_looks", option, str(seconds)],
        capture_output=True,
        text=True,
        check=True,
    )
    return Rates(*json.loads(done.stdout.splitlines()[-1]))


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
