"""`FlatAdam`: all parameters of a model as one vector: a step is a handful of operations, however many there are.

The parameters become views into the vector, in the memory format that they had; whoever writes into them in place
(`load_state_dict`, an update) writes into it. One copy of the vector is a copy of the model's parameters.

Invariants: a step equals that of `torch.optim.Adam` after `clip_grad_norm_` (test_a_step_is_that_of_torch_adam); the
epsilon is the one asked for (test_adam_epsilon).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class FlatAdam:
    """Adam over all trainable parameters of a module, with the gradient clipped by its global norm."""

    def __init__(self, module: nn.Module, learning_rate: float, eps: float) -> None:
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        self.names = [name for name, _ in named]
        self.parameters: list[nn.Parameter] = [p for _, p in named]
        self._orders = [_order(p) for p in self.parameters]
        self.flat = nn.Parameter(self._vector([p.detach() for p in self.parameters]))
        start = 0
        for p, order in zip(self.parameters, self._orders, strict=True):
            part = self.flat.data[start : start + p.numel()]
            start += p.numel()
            p.data = part.view_as(p) if order is None else part.view_as(p.permute(order)).permute(0, 3, 1, 2)
        self._adam = torch.optim.Adam([self.flat], lr=learning_rate, eps=eps, fused=True)

    @property
    def eps(self) -> float:
        return float(self._adam.param_groups[0]["eps"])

    def gradient(self, loss: Tensor) -> Tensor:
        """d loss / d parameters, as one vector; 0 for parameters that the loss does not know."""
        found: Sequence[Tensor | None] = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        return self._vector(
            [torch.zeros_like(p) if g is None else g for g, p in zip(found, self.parameters, strict=True)]
        )

    def step(self, gradient: Tensor, norm: float, learning_rate: float, max_norm: float) -> None:
        """One step along `gradient`, of finite `norm`; it is scaled in place down to `max_norm`, if that is not 0."""
        if 0.0 < max_norm < norm + 1e-6:
            gradient.mul_(max_norm / (norm + 1e-6))
        self._adam.param_groups[0]["lr"] = learning_rate
        self.flat.grad = gradient
        self._adam.step()
        self.flat.grad = None

    def state(self) -> dict[str, Tensor]:
        """Copies on the host: first and second moments, and the number of steps."""
        held = self._adam.state.get(self.flat) or self._zeros()
        return {name: tensor.detach().to("cpu", copy=True) for name, tensor in held.items()}

    def load(self, state: dict[str, Tensor], names: Sequence[str]) -> None:
        """What `state` gave for a model of the same `names`; ValueError for another one."""
        if list(names) != self.names or any(
            state[name].shape != tensor.shape for name, tensor in self._zeros().items()
        ):
            raise ValueError("this optimiser state belongs to another model")
        self._adam.state[self.flat] = {name: state[name].to(self.flat.device, copy=True) for name in self._zeros()}

    def _vector(self, tensors: Sequence[Tensor]) -> Tensor:
        """One tensor per parameter, each in the order in which its parameter lies in memory."""
        ordered = zip(tensors, self._orders, strict=True)
        return torch.cat([(t if order is None else t.permute(order)).reshape(-1) for t, order in ordered])

    def _zeros(self) -> dict[str, Tensor]:
        flat = torch.zeros_like(self.flat.data)
        return {"step": torch.zeros((), device=flat.device), "exp_avg": flat, "exp_avg_sq": flat.clone()}


def _order(p: Tensor) -> tuple[int, ...] | None:
    """The axes of a weight in channels-last memory, outermost first; None for any other tensor."""
    is_last = p.dim() == 4 and not p.is_contiguous() and p.is_contiguous(memory_format=torch.channels_last)
    return (0, 2, 3, 1) if is_last else None
