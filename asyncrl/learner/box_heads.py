"""Heads for BOX: independent Gaussians with a spread of their own, or one that follows from the state (gSDE).

What is drawn is stored as it is, float32 and unbounded, and its probability is that of the unbounded Gaussian; what is
sent is clipped to the bounds and cast (test_bounds_apply_to_what_is_sent_alone).

gSDE (Raffin et al.) draws a matrix per slot and keeps it for some steps: the noise of an action is the features times
that matrix, so that near states get near noise (test_a_matrix_of_noise_is_kept_for_its_period). The probability of an
action is that of the Gaussian which the matrix gives on average over matrices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asyncrl.learner.heads import Actions, Head
from asyncrl.learner.model_config import ModelConfig
from asyncrl.learner.networks import linear
from asyncrl.wire.spaces import Node
from asyncrl.wire.tensors import Array

_HALF_LOG_2PI: Final = 0.5 * math.log(2.0 * math.pi)
_MIN_VARIANCE: Final = 1e-6  # of gSDE, where all features are 0


class _BoxHead(Head):
    def __init__(self, node: Node, num_features: int) -> None:
        super().__init__()
        self._node, self._shape = node, node.shape
        self.size = math.prod(node.shape)
        self.mask_size = 0
        self.out = linear(num_features, self.size, 0.01)
        self._low, self._high = _bounds(node)
        is_float32 = node.dtype == np.float32 and not node.bf16
        self._is_sent_as_stored = is_float32 and self._low is None and self._high is None

    def env_action(self, action: Sequence[Array]) -> list[Array]:
        (leaf,) = action
        if self._is_sent_as_stored:
            return []
        if self._node.bf16:
            rounded = torch.from_numpy(_clipped(leaf, self._low, self._high)).to(torch.bfloat16)
            return [rounded.view(torch.uint16).numpy()]
        if self._node.dtype.kind != "f":
            leaf = np.rint(leaf)
        # Clipped in float64, where bounds of every dtype but the largest whole numbers are exact.
        return [_clipped(leaf, self._low, self._high).astype(self._node.dtype)]

    def stored(self, action: Sequence[Array]) -> list[Array]:
        return [action[0].astype(np.float32, copy=False)]

    def _evaluate(self, mean: Tensor, log_std: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """mean, log_std, action [..., D] -> log-probability, entropy [...]."""
        z = (action - mean) * torch.exp(-log_std)
        log_stds = log_std.sum(-1)
        log_prob = (z * z).sum(-1) * -0.5 - log_stds - self.size * _HALF_LOG_2PI
        return log_prob, (log_stds + self.size * (0.5 + _HALF_LOG_2PI)).expand(log_prob.shape)


class GaussianHead(_BoxHead):
    """A mean per dimension from the network, a log-deviation per dimension that is a parameter."""

    def __init__(self, node: Node, num_features: int, config: ModelConfig) -> None:
        super().__init__(node, num_features)
        self.num_params = self.num_noise = self.size
        self.log_std = nn.Parameter(torch.full((self.size,), config.log_std_init))

    def project(self, features: Tensor) -> Tensor:
        return F.linear(features, self.out.weight, self.out.bias)

    def draw(self, params: Tensor, mask: Tensor | None, noise: Tensor | None) -> tuple[Actions, Tensor]:
        action = params if noise is None else params + torch.special.ndtri(noise).float() * self.log_std.exp()
        log_prob, _ = self._evaluate(params, self.log_std, action)
        return [action.reshape(*params.shape[:-1], *self._shape)], log_prob

    def evaluate(self, params: Tensor, mask: Tensor | None, action: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        return self._evaluate(params, self.log_std, action[0].reshape(params.shape))

    def entropy(self, params: Tensor, mask: Tensor | None) -> Tensor:
        return self._evaluate(params, self.log_std, params)[1]


class StateDependentHead(_BoxHead):
    """gSDE. The row of parameters is the mean [D] and the features [L] that the noise is taken of."""

    def __init__(self, node: Node, num_features: int, config: ModelConfig) -> None:
        super().__init__(node, num_features)
        self.num_params = self.size + num_features
        self.num_noise = num_features * self.size
        self.noise_period = config.sde_sample_freq if config.sde_sample_freq > 0 else config.num_steps
        self.log_std = nn.Parameter(torch.full((num_features, self.size), config.log_std_init))
        self._noise: Tensor | None = None  # the last one seen, and what it became
        self._matrices = torch.empty(0)

    def project(self, features: Tensor) -> Tensor:
        # The spread learns its own weights, not the features: these are the policy's.
        return torch.cat([F.linear(features, self.out.weight, self.out.bias), features.detach()], dim=-1)

    def draw(self, params: Tensor, mask: Tensor | None, noise: Tensor | None) -> tuple[Actions, Tensor]:
        mean, log_std = self._distribution(params)
        action = mean
        if noise is not None:
            matrices = self._standard(noise) * self.log_std.exp()  # [..., L, D]
            action = mean + (params[..., None, self.size :] @ matrices).squeeze(-2)
        log_prob, _ = self._evaluate(mean, log_std, action)
        return [action.reshape(*params.shape[:-1], *self._shape)], log_prob

    def evaluate(self, params: Tensor, mask: Tensor | None, action: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        mean, log_std = self._distribution(params)
        return self._evaluate(mean, log_std, action[0].reshape(mean.shape))

    def entropy(self, params: Tensor, mask: Tensor | None) -> Tensor:
        mean, log_std = self._distribution(params)
        return self._evaluate(mean, log_std, mean)[1]

    def _distribution(self, params: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-deviation, [..., D] each."""
        features = params[..., self.size :]
        variance = (features * features) @ torch.exp(2.0 * self.log_std)
        return params[..., : self.size], 0.5 * torch.log(variance + _MIN_VARIANCE)

    def _standard(self, noise: Tensor) -> Tensor:
        """[..., L * D] uniform -> [..., L, D] normal; a tensor that was the last one too costs nothing again."""
        if noise is not self._noise:
            self._noise = noise
            self._matrices = torch.special.ndtri(noise).float().view(*noise.shape[:-1], -1, self.size)
        return self._matrices


def _bounds(node: Node) -> tuple[Array | None, Array | None]:
    """float64 bounds of what is sent; None where there are none."""
    low, high = node.low, node.high
    if node.bf16:
        low, high = (None if bound is None else _of_bf16(bound) for bound in (low, high))
    elif node.dtype.kind in "iu":
        limits = np.iinfo(node.dtype)
        low = np.full(node.shape, limits.min, node.dtype) if low is None else low
        high = np.full(node.shape, limits.max, node.dtype) if high is None else high
    elif node.dtype.kind == "b":
        low, high = np.zeros(node.shape), np.ones(node.shape)
    return _finite(low), _finite(high)


def _finite(bound: Array | None) -> Array | None:
    if bound is None or np.isinf(bound.astype(np.float64)).all():
        return None
    return bound.astype(np.float64)


def _of_bf16(bits: Array) -> Array:
    floats: Array = (bits.astype(np.uint32) << 16).view(np.float32)
    return floats


def _clipped(leaf: Array, low: Array | None, high: Array | None) -> Array:
    if low is None and high is None:
        return leaf
    clipped: np.ndarray[Any, Any] = np.clip(leaf.astype(np.float64), low, high)
    return clipped
