"""Stable-Baselines3's ReplayBuffer: NumPy, uniform; batches come as tensors.

`variant` "once" stores the next observation as the observation of the next row.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from benchmarks.replay_peers.drawing import DrawSettings, observations, report

ENVS = 50


def make(settings: DrawSettings) -> Callable[[int], object]:
    import torch

    buffers: Any = import_module("stable_baselines3.common.buffers")
    spaces: Any = import_module("gymnasium.spaces")
    if settings.prioritised:
        raise ImportError("stable-baselines3 has no prioritised replay")
    torch.set_num_threads(settings.threads)
    observed = spaces.Box(0, 255, settings.shape, np.dtype(settings.dtype))
    once = settings.variant == "once"
    replay = buffers.ReplayBuffer(
        settings.transitions,
        observed,
        spaces.Discrete(6),
        device="cpu",
        n_envs=ENVS,
        optimize_memory_usage=once,
        handle_timeout_termination=not once,
    )
    obs = observations(settings, ENVS)
    zeros = np.zeros(ENVS)
    infos: list[dict[str, Any]] = [{}] * ENVS
    for _ in range(settings.transitions // ENVS):
        replay.add(obs, obs, zeros[:, None], zeros, zeros, infos)

    def one(_: int) -> None:
        replay.sample(settings.batch)

    return one


if __name__ == "__main__":
    report(make)
