"""What the measurements act with: random actions, and the policies of training, a small MLP or NatureCNN.

The ceilings and asyncrl itself run the same object, so that a ratio of the two does not depend on how clever it is.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from gymnasium import spaces

from asyncrl.policy import Policy
from asyncrl.wire.spec import LaneSpec
from asyncrl.wire.tensors import Array
from envserver.gym_spec import space_spec

NETWORKS: Final = {"mlp": "mlp", "cnn": "nature"}
FRAMES: Final = spaces.Box(0, 255, (4, 84, 84), np.uint8)


class RandomPolicy:
    """Uniform actions from a pool drawn beforehand: acting costs next to nothing, as it does for the peers."""

    POOL = 64

    def __init__(self, draw: Callable[[np.random.Generator, int], list[Array]], seed: int = 0) -> None:
        self._draw = draw
        self._rng = np.random.default_rng(seed)
        self._pools: dict[int, list[list[Array]]] = {}
        self._turn = 0

    def actions(self, num_rows: int) -> list[Array]:
        """Action leaves [num_rows, *shape]."""
        pool = self._pools.get(num_rows)
        if pool is None:
            pool = [self._draw(self._rng, num_rows) for _ in range(self.POOL)]
            self._pools[num_rows] = pool
        self._turn += 1
        return pool[self._turn % self.POOL]


def spec_of(observation: spaces.Space[Any], action: spaces.Space[Any]) -> LaneSpec:
    """What a network has to know of an environment that no lane serves."""
    return LaneSpec("bare", space_spec(observation), space_spec(action))


def network_policy(name: str, spec: LaneSpec, *, bf16: bool = False) -> Policy:
    """`mlp`, two layers of 64 for the policy and two for the value, or `cnn`; as PPO acts with them.

    One thread: the loop, the server and the lanes need the other cores.
    """
    import torch

    from asyncrl.config import PPOConfig
    from asyncrl.learner.algorithms import open_learner

    warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # the ceilings act on received bytes
    torch.set_num_threads(1)
    config = PPOConfig(env_id=spec.env, network=NETWORKS[name], bf16=bf16)
    return open_learner(config, spec, torch.device("cpu")).policy(None, deterministic=False, threads=1)
