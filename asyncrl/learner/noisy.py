"""`NoisyLinear`: a dense layer whose weights have noise of a learned size; what a network explores with instead of ε.

    w = μ + σ · f(z_out) f(z_in)ᵀ,  b = μ_b + σ_b · f(z_out),  f(x) = sgn(x) √|x|

The noise z is set from outside, one vector for all noisy layers of a network, and stays until the next: all rows of a
forward have the same (test_all_rows_of_a_forward_have_the_same_noise). Without any the layer is μ alone
(test_without_noise_a_layer_is_its_mean). Noise is no parameter: it is neither published nor kept
(test_noise_is_not_in_the_state).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class NoisyLinear(nn.Module):
    """Stands where a `nn.Linear` stood: `weight` and `bias` are those with the noise that is set."""

    def __init__(self, inputs: int, outputs: int, sigma0: float) -> None:
        super().__init__()
        self.in_features, self.out_features = inputs, outputs
        bound = 1.0 / math.sqrt(inputs)
        self.weight_mu = nn.Parameter(torch.empty(outputs, inputs).uniform_(-bound, bound))
        self.bias_mu = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound))
        self.weight_sigma = nn.Parameter(torch.full((outputs, inputs), sigma0 * bound))
        self.bias_sigma = nn.Parameter(torch.full((outputs,), sigma0 * bound))
        self._noise: tuple[Tensor, Tensor] | None = None  # f(z_in), f(z_out)

    @property
    def weight(self) -> Tensor:
        if self._noise is None:
            return self.weight_mu
        of_in, of_out = self._noise
        return torch.addcmul(self.weight_mu, self.weight_sigma, torch.outer(of_out, of_in))

    @property
    def bias(self) -> Tensor:
        return self.bias_mu if self._noise is None else torch.addcmul(self.bias_mu, self.bias_sigma, self._noise[1])

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def set_noise(self, f_of_z: Tensor | None) -> None:
        """[inputs + outputs], or None for no noise."""
        self._noise = None if f_of_z is None else (f_of_z[: self.in_features], f_of_z[self.in_features :])


class NoisyLayers:
    """All noisy layers of a module, and the vector of their noise."""

    def __init__(self, module: nn.Module) -> None:
        self._layers = [layer for layer in module.modules() if isinstance(layer, NoisyLinear)]
        self._sizes = [layer.in_features + layer.out_features for layer in self._layers]
        self.num_noise = sum(self._sizes)

    def set_noise(self, z: Tensor | None) -> None:
        """Normal numbers [num_noise], or None for no noise."""
        f_of_z = None if z is None else z.sign() * z.abs().sqrt()
        parts = [None] * len(self._sizes) if f_of_z is None else torch.split(f_of_z, self._sizes)
        for layer, part in zip(self._layers, parts, strict=True):
            layer.set_noise(part)


def make_noisy(module: nn.Module, sigma0: float) -> None:
    """Every dense layer in `module` becomes a noisy one, which begins anew; convolutions stay."""
    for name, child in list(module.named_children()):
        if isinstance(child, nn.Linear):
            setattr(module, name, NoisyLinear(child.in_features, child.out_features, sigma0))
        else:
            make_noisy(child, sigma0)
