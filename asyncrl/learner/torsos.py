"""Torsos: from the leaves of an observation to the features that the policy and the value read.

`auto` is Nature's convolutions where there is a frame, dense layers elsewhere; a mixed observation has convolutions for
each frame and dense layers over their features beside all else (test_auto_goes_by_the_space). With convolutions or a
GRU, policy and value share them.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from asyncrl.errors import ConfigError
from asyncrl.learner.convolutions import CONVOLUTIONS
from asyncrl.learner.encoders import MIN_SIDE, FlatEncoder, ImageEncoder, is_image, observation_nodes
from asyncrl.learner.model_config import CustomNetwork, ModelConfig
from asyncrl.learner.networks import MLP
from asyncrl.wire.spaces import Node
from asyncrl.wire.spec import LaneSpec


class Torso(nn.Module):
    """Observation leaves [N, *shape] -> features for the policy and for the value, [N, num_features[i]] each."""

    num_features: tuple[int, int]
    has_images = False


class MLPTorso(Torso):
    """All leaves flattened into one vector, then one network for both, or one for each."""

    def __init__(self, nodes: Sequence[Node], config: ModelConfig, *, shared: bool) -> None:
        super().__init__()
        self.encoder = FlatEncoder(nodes, flatten_images=True)
        sizes = (self.encoder.num_features, config.hidden_sizes, config.activation)
        self.policy = MLP(*sizes)
        self.value = None if shared else MLP(*sizes)
        self.num_features = (self.policy.num_features,) * 2

    def forward(self, obs: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        x = self.encoder(obs)
        policy = self.policy(x)
        return policy, policy if self.value is None else self.value(x)


class ConvTorso(Torso):
    """Convolutions per image leaf; where there are other leaves, or several images, dense layers over all of it."""

    has_images = True

    def __init__(self, nodes: Sequence[Node], config: ModelConfig, network: str) -> None:
        super().__init__()
        self._images = [index for index, node in enumerate(nodes) if is_image(node)]
        self.frames = nn.ModuleList(ImageEncoder(nodes[index], bf16=config.bf16) for index in self._images)
        self.convolutions = nn.ModuleList(
            CONVOLUTIONS[network](frame.channels, frame.height, frame.width)
            for frame in cast(Iterable[ImageEncoder], self.frames)
        )
        self.encoder = FlatEncoder(nodes) if len(self._images) < len(nodes) else None
        size = sum(int(cast(int, net.num_features)) for net in self.convolutions)
        size += 0 if self.encoder is None else self.encoder.num_features
        is_mixed = self.encoder is not None or len(self._images) > 1
        self.joint = MLP(size, config.hidden_sizes, config.activation) if is_mixed else None
        self.num_features = (size if self.joint is None else self.joint.num_features,) * 2

    def forward(self, obs: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        parts = [
            net(frame(obs[index]))
            for index, frame, net in zip(self._images, self.frames, self.convolutions, strict=True)
        ]
        if self.joint is None:
            return parts[0], parts[0]
        if self.encoder is not None:
            parts.append(self.encoder(obs))
        joint = self.joint(torch.cat(parts, dim=1))
        return joint, joint


class CustomTorso(Torso):
    """A network of the user's; see `CustomNetwork`."""

    def __init__(self, network: nn.Module, name: str, nodes: Sequence[Node]) -> None:
        super().__init__()
        self.network = network
        self.has_images = any(map(is_image, nodes))
        sizes = getattr(network, "num_features", None)
        self.num_features = (sizes, sizes) if isinstance(sizes, int) else tuple(sizes or ())
        if len(self.num_features) != 2:
            raise ConfigError(f"network {name}: the module needs num_features, an int or a pair, not {sizes!r}")

    def forward(self, obs: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        features = self.network(obs)
        return (features, features) if isinstance(features, Tensor) else features


def build_torso(spec: LaneSpec, config: ModelConfig) -> Torso:
    nodes = observation_nodes(spec.observation)
    network = config.network
    if callable(network):
        return CustomTorso(network(spec, config), getattr(network, "__name__", "function"), nodes)
    if network == "auto":
        network = "nature" if any(map(is_image, nodes)) else "mlp"
    if network == "mlp":
        return MLPTorso(nodes, config, shared=config.share_trunk or config.gru_size > 0)
    if network in CONVOLUTIONS:
        if not any(map(is_image, nodes)):
            raise ConfigError(
                f"network {network!r} is for frames of at least {MIN_SIDE} pixels a side, and observations of "
                f"{spec.env or 'this environment'} have none: pass mlp or auto"
            )
        return ConvTorso(nodes, config, network)
    return CustomTorso(_load(network)(spec, config), network, nodes)


def _load(path: str) -> CustomNetwork:
    module, _, name = path.partition(":")
    if not name:
        raise ConfigError(f"network {path!r} is none of auto, mlp, {', '.join(CONVOLUTIONS)}, nor module:function")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"network {path!r} cannot be imported: {error}") from error
    return cast(CustomNetwork, found)
