"""What the peers share: one environment as all of them make it, and the clock around their loop."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

POOL = 64
Step = Callable[[int], Any]  # n-th round: one step of every environment
Start = Callable[[str, int], tuple[Step, Callable[[], None]]]  # env, num_envs -> step and close


def make_env(env: str) -> Any:
    """A Gymnasium environment; Atari with frame skip 4, 84 × 84 grey, four frames stacked."""
    import gymnasium as gym

    if not env.startswith("ALE/"):
        return gym.make(env)
    import ale_py

    gym.register_envs(ale_py)
    single = gym.make(env, frameskip=1)
    single = gym.wrappers.AtariPreprocessing(single, noop_max=0)
    return gym.wrappers.FrameStackObservation(single, 4)


def measure(step: Step, num_envs: int, seconds: float) -> float:
    """Steps per second after a warm-up of a quarter of the time."""
    number = 0
    end = time.perf_counter() + seconds / 4
    while time.perf_counter() < end:
        step(number)
        number += 1
    rounds = 0
    start = time.perf_counter()
    while time.perf_counter() < start + seconds:
        step(number + rounds)
        rounds += 1
    return rounds * num_envs / (time.perf_counter() - start)


def run(start: Start) -> None:
    """The main of a peer: settings from the first argument, the result to the last line of the output."""
    settings = json.loads(sys.argv[1])
    num_envs = settings["num_envs"]
    try:
        step, close = start(settings["env"], num_envs)
    except ImportError as error:
        print(json.dumps({"absent": str(error)}))
        return
    try:
        print(json.dumps({"steps_per_s": measure(step, num_envs, settings["seconds"])}), flush=True)
    finally:
        close()
