"""cpprb: trees and storage in C++.

`variant`: "" has both observations with every transition; "next_of" stores them once; "stack" stores frames once.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from benchmarks.replay_peers.drawing import FILL, DrawSettings, new_priorities, observations, report


def make(settings: DrawSettings) -> Callable[[int], object]:
    cpprb: Any = import_module("cpprb")
    # Frames are its last axis.
    stacked = settings.observation == "atari" and settings.variant == "stack"
    shape = (84, 84, 4) if stacked else settings.shape
    observed: dict[str, Any] = {"shape": shape, "dtype": np.dtype(settings.dtype)}
    fields: dict[str, Any] = {"obs": observed, "act": {"dtype": np.int64}, "rew": {}, "discount": {}}
    options: dict[str, Any] = {"next_of": "obs"} if settings.variant else {}
    if stacked:
        options["stack_compress"] = "obs"
    if not settings.variant:
        fields["next_obs"] = observed
    kind = cpprb.PrioritizedReplayBuffer if settings.prioritised else cpprb.ReplayBuffer
    options |= {"alpha": 0.6} if settings.prioritised else {}
    replay = kind(settings.transitions, fields, **options)
    zeros = np.zeros(FILL)
    obs = _stream(FILL + 1, shape) if stacked else observations(settings, FILL + 1).reshape(-1, *shape)
    for _ in range(0, settings.transitions, FILL):
        replay.add(obs=obs[:-1], next_obs=obs[1:], act=zeros, rew=zeros, discount=zeros)
    priorities = new_priorities(settings)

    def one(i: int) -> None:
        if settings.prioritised:
            batch = replay.sample(settings.batch, beta=0.4)
            replay.update_priorities(batch["indexes"], priorities[i % 64])
        else:
            replay.sample(settings.batch)

    return one


def _stream(count: int, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Stacks of which each is the one before, moved by one frame."""
    frames = np.random.default_rng(0).integers(0, 255, (count + 3, *shape[:-1])).astype("u1")
    return np.stack([frames[k : k + count] for k in range(4)], axis=-1)


if __name__ == "__main__":
    report(make)
