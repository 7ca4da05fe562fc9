"""`ActorCritic`: one network with a policy head and a value head, for acting a step and for learning a sequence.

`step` and `sequence` are one piece of arithmetic: the same weights give the same log-probability to the action that was
drawn, so the first ratio of an update is 1 (test_the_ratio_is_one_at_the_weights_that_acted).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asyncrl.learner.encoders import observation_nodes
from asyncrl.learner.heads import CategoricalHead, Head
from asyncrl.learner.model_config import ModelConfig
from asyncrl.learner.networks import linear
from asyncrl.learner.torsos import build_torso
from asyncrl.wire.spec import LaneSpec


class Outputs(NamedTuple):
    """Leading axes are [N] from `step`, [T, N] from `sequence`."""

    params: Tensor  # [..., P], for `ActorCritic.head`
    value: Tensor  # [...]
    carry: list[Tensor]  # per carry leaf [..., *shape]: after each row


class ActorCritic(nn.Module):
    """Made by `build_model`."""

    def __init__(self, spec: LaneSpec, config: ModelConfig) -> None:
        super().__init__()
        nodes = observation_nodes(spec.observation)
        self.torso = build_torso(nodes, config)
        policy_features, value_features = self.torso.num_features
        self.head: Head = CategoricalHead(spec.action.nodes[0], policy_features)
        self.value_out = linear(value_features, 1, 1.0)

    def initial_carry(self, n: int) -> list[Tensor]:
        """Per carry leaf [n, *shape], zeros; [] for a feed-forward network."""
        return []

    def step(self, obs: Sequence[Tensor], first: Tensor, carry: Sequence[Tensor]) -> Outputs:
        """One row of each slot. `obs`: per leaf [N, *shape], wire dtypes; `first`: b1 [N]; `carry`: before the row."""
        policy, value = self.torso(obs)
        return Outputs(self.head.project(policy), self._value(value), [])

    def sequence(self, obs: Sequence[Tensor], first: Tensor, carry: Sequence[Tensor]) -> Outputs:
        """`obs`: per leaf [T, N, *shape]; `first`: b1 [T, N]; `carry`: per leaf [N, *shape], before row 0."""
        steps, rows = first.shape
        policy, value = self.torso([leaf.flatten(0, 1) for leaf in obs])
        params = self.head.project(policy)
        return Outputs(params.view(steps, rows, -1), self._value(value).view(steps, rows), [])

    def _value(self, features: Tensor) -> Tensor:
        return F.linear(features, self.value_out.weight, self.value_out.bias).squeeze(-1)


def build_model(spec: LaneSpec, config: ModelConfig, seed: int) -> ActorCritic:
    """A model for what a lane serves, on the CPU. Equal arguments give bit-equal weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ActorCritic(spec, config)
