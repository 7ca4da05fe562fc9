"""What the trainers share: their settings, and a count of environment steps read at two moments inside the run."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.versions import versions

SHOWN = ("torch", "gymnasium", "ale-py", "stable-baselines3", "sample-factory", "ray")


@dataclass(frozen=True)
class TrainSettings:
    """One measured run of one peer."""

    env: str
    num_envs: int
    num_steps: int
    epochs: int
    minibatches: int
    warmup_s: float
    seconds: float
    threads: int = 1  # of torch
    variant: str = ""  # what else the peer leaves to its user
    gradient_steps: int = 0  # off-policy: so many after `num_steps` steps of each environment

    @property
    def atari(self) -> bool:
        return self.env.startswith("ALE/")


class StepWindow:
    """The first count ends start-up; the window opens `warmup_s` later and closes after `seconds`.

    Both its ends are counts that the trainer gave, so a count per iteration is as exact as one per step.
    """

    def __init__(self, warmup_s: float, seconds: float) -> None:
        self._warmup_s = warmup_s
        self._seconds = seconds
        self._started: float | None = None
        self._first: tuple[float, int] | None = None
        self._last: tuple[float, int] | None = None

    @property
    def over(self) -> bool:
        return self._first is not None and self._last is not None and self._last[0] - self._first[0] >= self._seconds

    def add(self, steps: int, now: float | None = None) -> None:
        """`steps` so far, at `now` of any clock that does not jump."""
        now = time.perf_counter() if now is None else now
        if self._started is None:
            self._started = now
        if self._first is None:
            if now - self._started >= self._warmup_s:
                self._first = (now, steps)
        elif not self.over and (self._last is None or steps > self._last[1]):
            self._last = (now, steps)

    @property
    def sps(self) -> float | None:
        """None while there are no two counts."""
        if self._first is None or self._last is None:
            return None
        return (self._last[1] - self._first[1]) / (self._last[0] - self._first[0])


def report(train: Callable[[TrainSettings, StepWindow], None]) -> None:
    """The main of a peer: settings from the first argument, the result to the last line of the output."""
    settings = TrainSettings(**json.loads(sys.argv[1]))
    window = StepWindow(settings.warmup_s, settings.seconds)
    try:
        train(settings, window)
    except ImportError as error:
        result: dict[str, Any] = {"absent": str(error)}
    else:
        result = {"sps": window.sps, "versions": versions(SHOWN)}
    print(json.dumps(result), flush=True)
