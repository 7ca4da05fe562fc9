"""`FlatRMSprop`: RMSprop over all parameters as one vector, in the two ways that published numbers were made with.

                      tf                                  torch
    mean of squares   begins at 1                         begins at 0
    divides by        sqrt(square + eps)                  sqrt(square) + eps
    momentum          of steps, which have their rate     of directions, all at the rate of now

The same epsilon means different things in the two: .01 outside of the root is .0001 inside of it.

Invariants: a step equals that of `torch.optim.RMSprop` in torch's way (test_a_step_is_that_of_torch_rmsprop), and one
written by hand in TensorFlow's (test_a_step_is_that_of_tensorflow).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from asyncrl.learner.flat_optimiser import FlatOptimiser

RMSStyle = Literal["tf", "torch"]


@dataclass(frozen=True)
class RMSRule:
    """The numbers of an RMSprop."""

    alpha: float = 0.99  # decay of the running means
    eps: float = 1e-5
    momentum: float = 0.0  # 0: none
    centered: bool = False  # divides by the deviation instead of the root of the mean square
    style: RMSStyle = "tf"


class FlatRMSprop(FlatOptimiser):
    """By a rule."""

    def __init__(self, module: nn.Module, rule: RMSRule) -> None:
        super().__init__(module, rule.eps)
        self.rule = rule
        self._square = torch.full_like(self.flat, 1.0 if rule.style == "tf" else 0.0)
        self._mean = torch.zeros_like(self.flat) if rule.centered else None
        self._momentum = torch.zeros_like(self.flat) if rule.momentum else None

    def _move(self, gradient: Tensor, learning_rate: float) -> None:
        rule, is_tf = self.rule, self.rule.style == "tf"
        self._square.mul_(rule.alpha).addcmul_(gradient, gradient, value=1.0 - rule.alpha)
        variance = self._square
        if self._mean is not None:
            self._mean.lerp_(gradient, 1.0 - rule.alpha)
            # Rounding may take it below 0 where gradients hardly vary, and the root of that is NaN.
            variance = variance.addcmul(self._mean, self._mean, value=-1.0).clamp_(min=0.0)
        divisor = variance.add(rule.eps).sqrt_() if is_tf else variance.sqrt().add_(rule.eps)
        direction = gradient.div_(divisor)
        if self._momentum is None:
            self.flat.sub_(direction, alpha=learning_rate)
        elif is_tf:
            self.flat.sub_(self._momentum.mul_(rule.momentum).add_(direction, alpha=learning_rate))
        else:
            self.flat.sub_(self._momentum.mul_(rule.momentum).add_(direction), alpha=learning_rate)

    def _held(self) -> dict[str, Tensor]:
        held = {"square_avg": self._square, "grad_avg": self._mean, "momentum_buffer": self._momentum}
        return {name: tensor for name, tensor in held.items() if tensor is not None}
