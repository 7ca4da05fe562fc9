"""CartPole that takes its time: some instances always, or every one of them now and then, or to be built at all."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium


class Dawdling(gymnasium.Wrapper[Any, Any, Any, Any]):
    """`slow_seeds`: instances whose first reset has one of these seeds sleep `sleep_s` in every step.

    `jitter_s`: each step of every instance sleeps for up to so long, by a number that no seed decides.
    """

    def __init__(self, slow_seeds: Sequence[int], sleep_s: float, jitter_s: float) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self._slow_seeds, self._sleep_s, self._jitter_s = set(slow_seeds), sleep_s, jitter_s
        self._is_slow: bool | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if self._is_slow is None:
            self._is_slow = seed in self._slow_seeds
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if self._is_slow:
            time.sleep(self._sleep_s)
        if self._jitter_s:
            time.sleep(self._jitter_s * os.urandom(1)[0] / 255)
        return super().step(action)


def make(slow_seeds: Sequence[int] = (), sleep_s: float = 0.1, jitter_s: float = 0.0) -> Dawdling:
    """The entry point: `dawdling=tests.rpc.dawdling_env:make{"jitter_s": 0.003}`."""
    return Dawdling(slow_seeds, sleep_s, jitter_s)


def make_for_ever() -> Dawdling:
    """Never comes back. Writes the number of its process to the file that BUILDING names."""
    building = Path(os.environ["BUILDING"])
    part = building.with_suffix(".part")
    part.write_text(str(os.getpid()))
    part.rename(building)
    while True:
        time.sleep(1.0)
