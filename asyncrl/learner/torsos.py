"""Torsos: from observation leaves to the features that the policy and the value read."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from asyncrl.learner.encoders import FlatEncoder
from asyncrl.learner.model_config import ModelConfig
from asyncrl.learner.networks import MLP
from asyncrl.wire.spaces import Node


class Torso(nn.Module):
    """Observation leaves [N, *shape] -> features for the policy and for the value, [N, num_features[i]] each."""

    num_features: tuple[int, int]


class MLPTorso(Torso):
    """All leaves flattened into one vector, then one network for both, or one for each."""

    def __init__(self, nodes: Sequence[Node], config: ModelConfig, *, shared: bool) -> None:
        super().__init__()
        self.encoder = FlatEncoder(nodes)
        sizes = (self.encoder.num_features, config.hidden_sizes, config.activation)
        self.policy = MLP(*sizes)
        self.value = None if shared else MLP(*sizes)
        self.num_features = (self.policy.num_features,) * 2

    def forward(self, obs: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        x = self.encoder(obs)
        policy = self.policy(x)
        return policy, policy if self.value is None else self.value(x)


def build_torso(nodes: Sequence[Node], config: ModelConfig) -> Torso:
    return MLPTorso(nodes, config, shared=config.share_trunk or config.gru_size > 0)
