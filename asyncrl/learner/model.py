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

from asyncrl.errors import ConfigError
from asyncrl.learner.composite_head import build_head
from asyncrl.learner.encoders import observation_nodes
from asyncrl.learner.heads import Head
from asyncrl.learner.model_config import ModelConfig
from asyncrl.learner.networks import linear
from asyncrl.learner.normalisers import ObsNormaliser, RewardScaler
from asyncrl.learner.recurrent import GRU
from asyncrl.learner.torsos import Torso, build_torso
from asyncrl.wire.spec import LaneSpec


class Outputs(NamedTuple):
    """Leading axes are [N] from `step`, [T, N] from `sequence`."""

    params: Tensor  # [..., P], for `ActorCritic.head`
    value: Tensor  # [...]
    carry: list[Tensor]  # per carry leaf [..., *shape]: after each row


class Model(nn.Module):
    """What a `TorchPolicy` can act with."""

    config: ModelConfig
    torso: Torso
    head: Head

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def initial_carry(self, n: int) -> list[Tensor]:
        """Per carry leaf [n, *shape], zeros; [] for a feed-forward network."""
        return []

    def step(self, obs: Sequence[Tensor], first: Tensor, carry: Sequence[Tensor]) -> Outputs:
        """One row of each slot. `obs`: per leaf [N, *shape], wire dtypes; `first`: b1 [N]; `carry`: before the row."""
        raise NotImplementedError


class ActorCritic(Model):
    """Made by `build_model`, on the CPU; `place` moves it."""

    def __init__(self, spec: LaneSpec, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        nodes = observation_nodes(spec.observation)
        self.normaliser = ObsNormaliser(nodes, config.clip_obs) if config.normalize_obs else None
        self.rewards = RewardScaler(config.num_envs, config.gamma) if config.normalize_reward else None
        self.torso = build_torso(spec, config)
        policy_features, value_features = self.torso.num_features
        self.gru = None
        if config.gru_size:
            if policy_features != value_features:
                raise ConfigError("a network with a GRU behind it gives one set of features, not a pair")
            self.gru = GRU(policy_features, config.gru_size)
            policy_features = value_features = config.gru_size
        self.head = build_head(spec, policy_features, config)
        self.value_out = linear(value_features, 1, 1.0)
        self._bf16: torch.dtype | None = None

    def initial_carry(self, n: int) -> list[Tensor]:
        if self.gru is None:
            return []
        return [torch.zeros(n, self.gru.size, device=self.value_out.weight.device)]

    def step(self, obs: Sequence[Tensor], first: Tensor, carry: Sequence[Tensor]) -> Outputs:
        policy, value = self._features(obs)
        after: list[Tensor] = []
        if self.gru is not None:
            policy = value = self.gru.step(policy, first, carry[0])
            after = [policy]
        return Outputs(self.head.project(policy), self._value(value), after)

    def sequence(self, obs: Sequence[Tensor], first: Tensor, carry: Sequence[Tensor]) -> Outputs:
        """`obs`: per leaf [T, N, *shape]; `first`: b1 [T, N]; `carry`: per leaf [N, *shape], before row 0."""
        steps, rows = first.shape
        policy, value = self._features([leaf.flatten(0, 1) for leaf in obs])
        after: list[Tensor] = []
        if self.gru is not None:
            after = [self.gru.sequence(policy.view(steps, rows, -1), first, carry[0])]
            policy = value = after[0].flatten(0, 1)
        params, values = self.head.project(policy), self._value(value)
        return Outputs(params.view(steps, rows, -1), values.view(steps, rows), after)

    def _features(self, obs: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Leaves [N, *shape] -> float32 features for policy and value [N, F]."""
        if self.normaliser is not None:
            obs = self.normaliser(obs)
        if not self.config.bf16:
            features: tuple[Tensor, Tensor] = self.torso(obs)
            return features
        with torch.autocast(self.value_out.weight.device.type, torch.bfloat16):
            policy, value = self.torso(obs)
        return policy.float(), value.float()

    def _value(self, features: Tensor) -> Tensor:
        return F.linear(features, self.value_out.weight, self.value_out.bias).squeeze(-1)


def build_model(spec: LaneSpec, config: ModelConfig, seed: int) -> ActorCritic:
    """A model for what a lane serves, on the CPU. Equal arguments give bit-equal weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ActorCritic(spec, config)
