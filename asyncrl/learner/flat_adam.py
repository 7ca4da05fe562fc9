"""`FlatAdam`: all parameters of a model as one vector: a step is a handful of operations, however many there are.

The parameters become views into the vector, in the memory format that they had; whoever writes into them in place
(`load_state_dict`, an update) writes into it. One copy of the vector is a copy of the model's parameters.

Invariants: a step equals that of `torch.optim.Adam` after `clip_grad_norm_` (test_a_step_is_that_of_torch_adam); the
epsilon is the one asked for (test_adam_epsilon).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim.adam import adam


class FlatAdam:
    """Adam over all trainable parameters of a module, with the gradient clipped by its global norm."""

    def __init__(self, module: nn.Module, eps: float) -> None:
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        self.names = [name for name, _ in named]
        self.parameters: list[nn.Parameter] = [p for _, p in named]
        self._orders = [_order(p) for p in self.parameters]
        self.flat = self._vector([p.detach() for p in self.parameters])
        start = 0
        for p, order in zip(self.parameters, self._orders, strict=True):
            part = self.flat[start : start + p.numel()]
            start += p.numel()
            p.data = part.view_as(p) if order is None else part.view_as(p.permute(order)).permute(0, 3, 1, 2)
        self.eps = eps
        self._mean, self._square = torch.zeros_like(self.flat), torch.zeros_like(self.flat)
        self._steps = torch.zeros((), device=self.flat.device)

    def gradient(self, loss: Tensor) -> Tensor:
        """d loss / d parameters, as one vector; 0 for parameters that the loss does not know."""
        found: Sequence[Tensor | None] = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        return self._vector(
            [torch.zeros_like(p) if g is None else g for g, p in zip(found, self.parameters, strict=True)]
        )

    @torch.no_grad()
    def step(self, gradient: Tensor, norm: float, learning_rate: float, max_norm: float) -> None:
        """One step along `gradient`, of finite `norm`; it is scaled in place down to `max_norm`, if that is not 0."""
        if 0.0 < max_norm < norm + 1e-6:
            gradient.mul_(max_norm / (norm + 1e-6))
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

    def state(self) -> dict[str, Tensor]:
        """Copies on the host: first and second moments, and the number of steps."""
        return {name: tensor.to("cpu", copy=True) for name, tensor in self._held().items()}

    def load(self, state: Mapping[str, Tensor], names: Sequence[str]) -> None:
        """What `state` gave for a model of the same `names`; ValueError for another one."""
        held = self._held()
        if list(names) != self.names or any(state[name].shape != tensor.shape for name, tensor in held.items()):
            raise ValueError("this optimiser state belongs to another model")
        for name, tensor in held.items():
            tensor.copy_(state[name])

    def _held(self) -> dict[str, Tensor]:
        return {"step": self._steps, "exp_avg": self._mean, "exp_avg_sq": self._square}

    def _vector(self, tensors: Sequence[Tensor]) -> Tensor:
        """One tensor per parameter, each in the order in which its parameter lies in memory."""
        ordered = zip(tensors, self._orders, strict=True)
        return torch.cat([(t if order is None else t.permute(order)).reshape(-1) for t, order in ordered])


def _order(p: Tensor) -> tuple[int, ...] | None:
    """The axes of a weight in channels-last memory, outermost first; None for any other tensor."""
    is_last = p.dim() == 4 and not p.is_contiguous() and p.is_contiguous(memory_format=torch.channels_last)
    return (0, 2, 3, 1) if is_last else None
