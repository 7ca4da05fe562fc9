"""The losses of PPO over rows, each divided by the number of rows it is given.

Void rows never get here: whoever picks the rows of a minibatch leaves them out, so that nothing has to be weighted.

Invariants: a row more of the same changes no loss (test_losses_are_means); the value loss is clipped around the value
that acting saw and takes the worse of both (test_value_clip_is_around_the_value_of_acting); estimates of the
divergence have the signs and the form of their definition (test_divergence_estimates); a ratio too large for float32
leaves the gradients of the other rows what they are (test_a_huge_ratio_spoils_no_gradient).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

_MOST: Final = 80.0  # of ln r: float32 ends at 88, and the gradient of a clipped row would be 0 times infinity


class Divergence(NamedTuple):
    """How far the policy has moved from the one that acted, over the rows of some minibatches."""

    old_approx_kl: Tensor  # mean of -ln r, the plain estimate
    approx_kl: Tensor  # mean of (r - 1) - ln r: of less variance, and never negative
    clipfrac: Tensor  # share of rows with |r - 1| > ε


def normalised(advantage: Tensor) -> Tensor:
    """[M] of mean 0 and standard deviation 1 (of a sample); a single row becomes 0."""
    if len(advantage) < 2:
        return torch.zeros_like(advantage)
    deviation, mean = torch.std_mean(advantage)
    return (advantage - mean) / (deviation + 1e-8)


def surrogate(log_ratio: Tensor, advantage: Tensor) -> Tensor:
    """The negative of the plain objective; `log_ratio` [M] is ln π(a)/μ(a)."""
    return -(advantage * log_ratio.clamp(max=_MOST).exp()).mean()


def clipped_surrogate(log_ratio: Tensor, advantage: Tensor, clip: Tensor) -> Tensor:
    """The negative of PPO's objective: per row the smaller of the plain and the clipped one.

    `clip` []: a tensor, since a float that changes from round to round would be compiled into compiled code.
    """
    ratio = log_ratio.clamp(max=_MOST).exp()
    clipped = ratio.clamp(1.0 - clip, 1.0 + clip)
    return -torch.minimum(advantage * ratio, advantage * clipped).mean()


def squared_error(value: Tensor, target: Tensor) -> Tensor:
    """Half the mean squared error of [M] values."""
    return 0.5 * (value - target).square().mean()


def clipped_squared_error(value: Tensor, target: Tensor, acted: Tensor, clip: Tensor) -> Tensor:
    """The same, or the error of the value moved no further than `clip` [] from `acted`, per row whichever is more.

    `acted` [M] is the value that the forward gave that acted: not one of later weights, nor the target.
    """
    near = acted + (value - acted).clamp(-clip, clip)
    return 0.5 * torch.maximum((value - target).square(), (near - target).square()).mean()


@torch.no_grad()
def divergence(log_ratio: Tensor, clip: float) -> Divergence:
    """Of [M] rows."""
    ratio = log_ratio.exp()
    return Divergence(
        -log_ratio.mean(), ((ratio - 1.0) - log_ratio).mean(), ((ratio - 1.0).abs() > clip).float().mean()
    )
