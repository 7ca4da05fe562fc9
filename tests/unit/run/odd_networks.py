"""A network for tests of runs: its third update never ends."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from asyncrl.learner.model_config import ModelConfig
from asyncrl.wire.spec import LaneSpec

# Names the file that is there once the update has begun which never ends.
STUCK_VARIABLE: Final = "ASYNCRL_TEST_STUCK"


class Sticking(nn.Module):
    """One layer. With one epoch of one minibatch, an update is one forward pass with gradients."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.num_features = 8
        self.layer = nn.Linear(size, self.num_features)
        self.updates = 0

    def forward(self, obs: Sequence[Tensor]) -> Tensor:
        if torch.is_grad_enabled():
            self.updates += 1
            if self.updates == 3:
                Path(os.environ[STUCK_VARIABLE]).touch()
                time.sleep(3600)
        features: Tensor = self.layer(obs[0])
        return features


def sticking(spec: LaneSpec, config: ModelConfig) -> nn.Module:
    (size,) = spec.observation.leaves[0].shape
    return Sticking(size)
