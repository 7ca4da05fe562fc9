"""Networks of features: multi-layer perceptrons, the convolutions of Nature and of IMPALA, and how they begin.

A network maps encoded observations `[N, ...]` to features `[N, num_features]`. Weights begin orthogonal with gain √2,
biases at 0 (test_weights_begin_orthogonal_with_their_gain).

The tanh of these networks is `2σ(2x) − 1`, which is the same function: on CPUs torch's sigmoid is many times as fast as
its tanh, and the factor 2 costs nothing inside the matrix product. It is off by at most 3e-7
(test_tanh_is_tanh_and_so_is_its_slope); of bfloat16 it is torch's own (test_tanh_of_bfloat16_is_torchs).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asyncrl.learner.model_config import Activation

_ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "relu": F.relu, "elu": F.elu}


def orthogonal(layer: nn.Linear | nn.Conv2d, gain: float = math.sqrt(2.0)) -> None:
    """Orthogonal rows of the given gain, no bias."""
    if layer.weight.numel():
        nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def linear(inputs: int, outputs: int, gain: float = math.sqrt(2.0)) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    orthogonal(layer, gain)
    return layer


class MLP(nn.Module):
    """Dense layers, each followed by the activation: [N, inputs] -> [N, num_features]."""

    def __init__(self, inputs: int, sizes: Sequence[int], activation: Activation) -> None:
        super().__init__()
        self.layers = nn.ModuleList(linear(a, b) for a, b in zip((inputs, *sizes), sizes, strict=False))
        self.num_features = sizes[-1] if sizes else inputs
        self.activation: Activation = activation
        self._is_tanh = activation == "tanh"
        self._activate = _ACTIVATIONS[activation]

    def forward(self, x: Tensor) -> Tensor:
        # Parameters are asked for by name: a call of a module costs as much as a small matrix product.
        for layer in cast(Iterable[nn.Linear], self.layers):
            if self._is_tanh:
                x = tanh_layer(x, layer.weight, layer.bias)
            else:
                x = self._activate(F.linear(x, layer.weight, layer.bias))
        return x


def tanh_layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """tanh(x Wᵀ + b) for x [N, inputs]."""
    twice = torch.addmm(bias, x, weight.t(), beta=2, alpha=2)
    if twice.dtype is torch.bfloat16:
        return twice.mul_(0.5).tanh_()  # 2 σ - 1 has no digits left near 0
    return torch.rsub(twice.sigmoid_(), -1, alpha=-2)  # -1 + 2 σ, in one pass
