"""`QNetwork`: observations to the value of each action, as a mean or as a distribution of returns.

Of a distribution (`num_atoms`) the network gives logits over returns that are evenly spaced between `v_min` and
`v_max`, and a value is its mean. `dueling` adds the state's value to advantages of mean 0; of distributions these are
logits, added up before the softmax (test_dueling_of_distributions_is_before_the_softmax). `noisy` puts noise into every
dense layer. Weights and biases begin uniform within 1/√inputs, as where the published figures come from
(test_weights_begin_as_published).

Invariants: an action's value does not depend on the other rows (test_rows_do_not_see_each_other); a constant in all
advantages changes nothing (test_dueling_advantages_have_no_mean).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asyncrl.config import DQNConfig
from asyncrl.errors import ConfigError
from asyncrl.learner.model import Model, Outputs
from asyncrl.learner.model_config import ModelConfig
from asyncrl.learner.noisy import NoisyLayers, make_noisy
from asyncrl.learner.torsos import CustomTorso, build_torso
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.spaces import Node
from asyncrl.wire.spec import LaneSpec
from asyncrl.wire.tensors import Array


@dataclass(frozen=True, kw_only=True)
class QShape:
    """What stands on the torso."""

    dueling: bool = False
    num_atoms: int = 0  # 0: means alone
    v_min: float = -10.0
    v_max: float = 10.0
    sigma0: float | None = None  # of noisy layers; None: no noise

    @staticmethod
    def of(config: DQNConfig) -> QShape:
        sigma0 = config.sigma0 if config.noisy else None
        return QShape(
            dueling=config.dueling,
            num_atoms=config.num_atoms,
            v_min=config.v_min,
            v_max=config.v_max,
            sigma0=sigma0,
        )


class QNetwork(Model):
    """Made by `build_q_network`, on the CPU."""

    support: Tensor  # f4 [num_atoms], or [0]: the returns that a distribution is over

    def __init__(self, spec: LaneSpec, config: ModelConfig, shape: QShape) -> None:
        super().__init__()
        self.config, self.shape = config, shape
        self.actions = discrete_actions(spec)
        self.torso = build_torso(spec, replace(config, share_trunk=True))
        num_features, width = self.torso.num_features[0], max(shape.num_atoms, 1)
        self.advantage = nn.Linear(num_features, self.actions.n * width)
        self.value_out = nn.Linear(num_features, width) if shape.dueling else None
        for layer in self.modules() if not isinstance(self.torso, CustomTorso) else ():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                layer.reset_parameters()
        if shape.sigma0 is not None:
            make_noisy(self, shape.sigma0)
        support = torch.linspace(shape.v_min, shape.v_max, shape.num_atoms)
        self.register_buffer("support", support, persistent=False)
        self.noise = NoisyLayers(self)

    # ------------------------------------------------------------------ forward

    def step(self, obs: Sequence[Tensor], first: Tensor, carry: Sequence[Tensor]) -> Outputs:
        q = self.q_values(obs)
        return Outputs(q, q.amax(-1), [])

    def q_values(self, obs: Sequence[Tensor]) -> Tensor:
        """[N, A] for leaves [N, *shape]."""
        return self.means(self.scores(obs))

    def scores(self, obs: Sequence[Tensor]) -> Tensor:
        """Values [N, A], or logits [N, A, num_atoms]."""
        # Parameters are asked for by name: a call of a module costs as much as a small matrix product.
        features = self._features(obs)
        of_actions = F.linear(features, self.advantage.weight, self.advantage.bias)
        if self.shape.num_atoms:
            of_actions = of_actions.view(-1, self.actions.n, self.shape.num_atoms)
        if self.value_out is None:
            scores: Tensor = of_actions
            return scores
        of_state = F.linear(features, self.value_out.weight, self.value_out.bias)
        if self.shape.num_atoms:
            of_state = of_state.unsqueeze(1)
        dueling: Tensor = of_state + of_actions - of_actions.mean(1, keepdim=True)
        return dueling

    def means(self, scores: Tensor) -> Tensor:
        """[N, A] of what `scores` gave."""
        return torch.softmax(scores, -1) @ self.support if self.shape.num_atoms else scores

    def _features(self, obs: Sequence[Tensor]) -> Tensor:
        """Leaves [N, *shape] -> float32 [N, F]."""
        if not self.config.bf16:
            features: Tensor = self.torso(obs)[0]
            return features
        with torch.autocast(self.device.type, torch.bfloat16):
            features = self.torso(obs)[0]
        return features.float()

    # ------------------------------------------------------------------ noise

    def draw_noise(self, rng: np.random.Generator) -> None:
        """For the forwards that follow; nothing is drawn where there are no noisy layers."""
        if self.noise.num_noise:
            z: Array = rng.standard_normal(self.noise.num_noise, np.float32)
            self.noise.set_noise(torch.from_numpy(z).to(self.device))


def discrete_actions(spec: LaneSpec) -> Node:
    """The one node of the action space; ConfigError where it is not Discrete."""
    node = spec.action.nodes[0]
    if len(spec.action.nodes) != 1 or node.kind != pb.DISCRETE:
        raise ConfigError(
            f"Q-learning chooses among actions that can be counted, and those of {spec.env or 'this environment'} are "
            "no Discrete space: take ppo"
        )
    if spec.mask_size not in (0, node.n):
        raise ConfigError(f"the environment sends masks over {spec.mask_size} actions, and it has {node.n}")
    return node


def build_q_network(spec: LaneSpec, config: ModelConfig, shape: QShape, seed: int) -> QNetwork:
    """For what a lane serves, on the CPU. Equal arguments give bit-equal weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return QNetwork(spec, config, shape)
