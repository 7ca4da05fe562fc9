"""Lane specs out of Gymnasium spaces, and random observations of them, for the tests of the learner."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor

from asyncrl.wire.spec import LaneSpec
from asyncrl.wire.tensors import Array
from envserver.gym_spec import buffers_for, mask_size, reader, space_spec

AnySpace = Space[Any]
VECTOR = spaces.Box(-4.0, 4.0, (4,), np.float32)
FRAMES = spaces.Box(0, 255, (4, 84, 84), np.uint8)


def served(observation: AnySpace, action: AnySpace, *, masked: bool = False) -> LaneSpec:
    """What a lane of such an environment says about itself."""
    size = mask_size(action) if masked else 0
    return LaneSpec("Test-v0", space_spec(observation), space_spec(action), mask_size=size)


def rows_of(space: AnySpace, num: int, seed: int = 0) -> list[Array]:
    """`num` members of the space as leaves [num, *shape], wire dtypes."""
    space.seed(seed)
    read = reader(space)
    leaves = buffers_for(space_spec(space), num)
    for row in range(num):
        for leaf, value in zip(leaves, read(space.sample()), strict=True):
            leaf[row] = value
    return leaves


def tensors(leaves: list[Array]) -> list[Tensor]:
    return [torch.from_numpy(leaf) for leaf in leaves]
