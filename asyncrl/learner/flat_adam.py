"""`FlatAdam`: Adam over all parameters as one vector.

Invariants: a step equals that of `torch.optim.Adam` after `clip_grad_norm_` (test_a_step_is_that_of_torch_adam); the
epsilon is the one asked for (test_adam_epsilon).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from asyncrl.learner.flat_optimiser import FlatOptimiser


class FlatAdam(FlatOptimiser):
    """With torch's decay rates, .9 and .999."""

    def __init__(self, module: nn.Module, eps: float) -> None:
        super().__init__(module, eps)
        self._mean, self._square = torch.zeros_like(self.flat), torch.zeros_like(self.flat)
        self._steps = torch.zeros((), device=self.flat.device)

    def _move(self, gradient: Tensor, learning_rate: float) -> None:
        adam(
            [self.flat],
            [gradient],
            [self._mean],
            [self._square],
            [],
            [self._steps],
            fused=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=learning_rate,
            weight_decay=0.0,
            eps=self.eps,
            maximize=False,
        )

    def _held(self) -> dict[str, Tensor]:
        return {"step": self._steps, "exp_avg": self._mean, "exp_avg_sq": self._square}
