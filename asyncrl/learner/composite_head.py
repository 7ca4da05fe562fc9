"""Heads of TUPLE and DICT actions, and `build_head`: which head an action space gets.

The parts of a composite action are independent given the observation: log-probabilities and entropies add up
(test_parts_of_an_action_are_independent).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from asyncrl.errors import ConfigError
from asyncrl.learner.box_heads import GaussianHead, StateDependentHead
from asyncrl.learner.heads import Actions, BernoulliHead, CategoricalHead, Head
from asyncrl.learner.model_config import ModelConfig
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.spaces import Node, SpaceSpec
from asyncrl.wire.spec import LaneSpec
from asyncrl.wire.tensors import Array


class CompositeHead(Head):
    """One head per leaf, side by side in parameters, noise, mask and leaves."""

    def __init__(self, parts: Sequence[Head]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self._heads = tuple(parts)
        self.num_params = sum(part.num_params for part in parts)
        self.num_noise = sum(part.num_noise for part in parts)
        self.noise_period = max(part.noise_period for part in parts)  # one that keeps its noise has no other beside it
        self.mask_size = sum(part.mask_size for part in parts)

    def project(self, features: Tensor) -> Tensor:
        return torch.cat([part.project(features) for part in self._heads], dim=-1)

    def draw(self, params: Tensor, mask: Tensor | None, noise: Tensor | None) -> tuple[Actions, Tensor]:
        actions: Actions = []
        log_probs: list[Tensor] = []
        shares = self._shares(params, mask)
        noises = (None,) * len(shares) if noise is None else self._split(noise, [p.num_noise for p in self._heads])
        for part, share, noise_of in zip(self._heads, shares, noises, strict=True):
            action, log_prob = part.draw(*share, noise_of)
            actions += action
            log_probs.append(log_prob)
        return actions, torch.stack(log_probs).sum(0)

    def evaluate(self, params: Tensor, mask: Tensor | None, action: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        both = [
            part.evaluate(*share, [leaf])
            for part, share, leaf in zip(self._heads, self._shares(params, mask), action, strict=True)
        ]
        return torch.stack([log_prob for log_prob, _ in both]).sum(0), torch.stack([h for _, h in both]).sum(0)

    def entropy(self, params: Tensor, mask: Tensor | None) -> Tensor:
        shares = self._shares(params, mask)
        return torch.stack([part.entropy(*s) for part, s in zip(self._heads, shares, strict=True)]).sum(0)

    def stored(self, action: Sequence[Array]) -> list[Array]:
        return [part.stored([leaf])[0] for part, leaf in zip(self._heads, action, strict=True)]

    def env_action(self, action: Sequence[Array]) -> list[Array]:
        sent = [part.env_action([leaf]) for part, leaf in zip(self._heads, action, strict=True)]
        return [(own or [leaf])[0] for own, leaf in zip(sent, action, strict=True)] if any(sent) else []

    def _shares(self, params: Tensor, mask: Tensor | None) -> list[tuple[Tensor, Tensor | None]]:
        rows = self._split(params, [part.num_params for part in self._heads])
        if mask is None:
            return [(row, None) for row in rows]
        masks = self._split(mask, [part.mask_size for part in self._heads])
        return [(row, m if m.shape[-1] else None) for row, m in zip(rows, masks, strict=True)]

    def _split(self, x: Tensor, sizes: list[int]) -> tuple[Tensor, ...]:
        return tuple(torch.split(x, sizes, dim=-1))


def build_head(spec: LaneSpec, num_features: int, config: ModelConfig) -> Head:
    """The head for the actions of a lane; ConfigError for what no head can choose."""
    space = spec.action
    nodes = [node for node in space.nodes if node.is_leaf]
    if not nodes or not sum(leaf.nbytes for leaf in space.leaves):
        raise ConfigError("the action space is empty: there is nothing to choose")
    if config.use_sde and (len(nodes) > 1 or nodes[0].kind != pb.BOX):
        raise ConfigError("use_sde is for actions that are one Box: leave it out for this environment")
    parts = [_part(space, node, num_features, config) for node in nodes]
    head = parts[0] if len(space.nodes) == 1 else CompositeHead(parts)
    if spec.mask_size not in (0, head.mask_size):
        raise ConfigError(
            f"the environment sends masks over {spec.mask_size} actions, and its action space has {head.mask_size} "
            "that can be masked: serve a Discrete or MultiDiscrete space with a mask of its size"
        )
    return head


def _part(space: SpaceSpec, node: Node, num_features: int, config: ModelConfig) -> Head:
    if node.kind in (pb.DISCRETE, pb.MULTI_DISCRETE):
        return CategoricalHead(node, num_features)
    if node.kind == pb.MULTI_BINARY:
        return BernoulliHead(node, num_features)
    if node.kind == pb.BOX:
        head = StateDependentHead if config.use_sde else GaussianHead
        return head(node, num_features, config)
    where = next(space.path(index) for index, other in enumerate(space.nodes) if other is node)
    raise ConfigError(
        f"action {where or 'root'!r} is Text, which no policy here writes: map it from numbers in a wrapper"
    )
