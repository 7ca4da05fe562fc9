"""A network of one's own, for boards: what lies beside what matters, and no board is large enough for Nature's strides.

    asyncrl train ppo --search exit --env-id connect4=examples.connect4:make_env --network examples.board_network:build

The function gets the specification of the environment and the model's configuration, and gives a module from
observation leaves [N, *shape] to features [N, num_features], which policy and value then share.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from asyncrl.learner.model_config import ModelConfig
from asyncrl.wire.spec import LaneSpec

CHANNELS, LAST_CHANNELS, FEATURES = 48, 8, 128


class BoardNetwork(nn.Module):
    """Planes of a board [N, planes, rows, columns]: three convolutions that keep its size, and a dense layer."""

    num_features = FEATURES

    def __init__(self, planes: int, rows: int, columns: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(planes, CHANNELS, 3, padding=1)
        self.second = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
        self.third = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
        self.last = nn.Conv2d(CHANNELS, LAST_CHANNELS, 1)
        self.dense = nn.Linear(LAST_CHANNELS * rows * columns, FEATURES)

    def forward(self, obs: Sequence[Tensor]) -> Tensor:
        x = F.relu(self.first(obs[0].float()))
        x = F.relu(x + self.second(x))
        x = F.relu(x + self.third(x))
        x = F.relu(self.last(x))
        return F.relu(self.dense(x.flatten(1)))


def build(spec: LaneSpec, config: ModelConfig) -> nn.Module:
    planes, rows, columns = spec.observation.leaves[0].shape
    return BoardNetwork(planes, rows, columns)
