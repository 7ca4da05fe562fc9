"""What all replays are asked for: batches of one size from so many transitions, with new priorities after each.

Frames are random, a few of them over and over: nobody here compresses what is stored.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.versions import versions

SHOWN = ("torch", "torchrl", "cpprb", "stable-baselines3", "numpy")
FILL = 500  # transitions that are put in at a time


@dataclass(frozen=True)
class DrawSettings:
    """One measured run."""

    observation: str = "atari"  # u1 [4, 84, 84]; vector: f4 [4]
    transitions: int = 50_000
    batch: int = 512
    prioritised: bool = True
    warmup_s: float = 0.5
    seconds: float = 4.0
    threads: int = 1  # of torch, where there is torch
    variant: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        return (4, 84, 84) if self.observation == "atari" else (4,)

    @property
    def dtype(self) -> str:
        return "u1" if self.observation == "atari" else "f4"


def observations(settings: DrawSettings, count: int) -> npt.NDArray[Any]:
    """[count, *shape]"""
    rng = np.random.default_rng(0)
    return rng.integers(0, 255, (count, *settings.shape)).astype(settings.dtype)


def new_priorities(settings: DrawSettings) -> npt.NDArray[Any]:
    """f4 [64, batch]: taken in turn, so that drawing them costs nobody anything."""
    return np.random.default_rng(1).random((64, settings.batch)).astype("f4") + 0.1


def batches_per_s(settings: DrawSettings, one: Callable[[int], object]) -> float:
    """`one` draws the i-th batch and gives it new priorities."""
    start = time.perf_counter()
    i = 0
    while time.perf_counter() - start < settings.warmup_s:
        one(i)
        i += 1
    start, first = time.perf_counter(), i
    while time.perf_counter() - start < settings.seconds:
        one(i)
        i += 1
    return (i - first) / (time.perf_counter() - start)


def report(make: Callable[[DrawSettings], Callable[[int], object]]) -> None:
    """The main of a replay: settings from the first argument, the result to the last line of the output."""
    settings = DrawSettings(**json.loads(sys.argv[1]))
    try:
        one = make(settings)
    except ImportError as error:
        result: dict[str, Any] = {"absent": str(error)}
    else:
        result = {"batches_per_s": batches_per_s(settings, one), "versions": versions(SHOWN)}
    print(json.dumps(result), flush=True)
