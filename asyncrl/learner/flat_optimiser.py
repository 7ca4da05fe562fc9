"""`FlatOptimiser`: all parameters of a model as one vector: a step is a handful of operations, however many there are.

The parameters become views into the vector, in the memory format that they had; whoever writes into them in place
(`load_state_dict`, an update) writes into it. One copy of the vector is a copy of the model's parameters.

Invariants: the parameters are the vector (test_the_parameters_are_the_vector); the gradient is clipped by its norm over
all parameters together (test_the_clipped_gradient_has_the_norm_asked_for); what was saved goes on bit for bit
(test_a_saved_optimiser_goes_on_bit_for_bit).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn


class FlatOptimiser(ABC):
    """Over all trainable parameters of a module."""

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
        self._move(gradient, learning_rate)

    def state(self) -> dict[str, Tensor]:
        """Copies on the host of what a step reads beside parameters and gradient."""
        return {name: tensor.to("cpu", copy=True) for name, tensor in self._held().items()}

    def load(self, state: Mapping[str, Tensor], names: Sequence[str]) -> None:
        """What `state` gave for a model of the same `names`; ValueError for another one, or another optimiser."""
        held = self._held()
        if (
            list(names) != self.names
            or state.keys() != held.keys()
            or any(state[name].shape != tensor.shape for name, tensor in held.items())
        ):
            raise ValueError("this optimiser state belongs to another model")
        for name, tensor in held.items():
            tensor.copy_(state[name])

    @abstractmethod
    def _move(self, gradient: Tensor, learning_rate: float) -> None:
        """Change `flat`, and what is held, by one step; `gradient` may be written to."""

    @abstractmethod
    def _held(self) -> dict[str, Tensor]:
        """By name, spelt as in torch's own."""

    def _vector(self, tensors: Sequence[Tensor]) -> Tensor:
        """One tensor per parameter, each in the order in which its parameter lies in memory."""
        ordered = zip(tensors, self._orders, strict=True)
        return torch.cat([(t if order is None else t.permute(order)).reshape(-1) for t, order in ordered])


def _order(p: Tensor) -> tuple[int, ...] | None:
    """The axes of a weight in channels-last memory, outermost first; None for any other tensor."""
    is_last = p.dim() == 4 and not p.is_contiguous() and p.is_contiguous(memory_format=torch.channels_last)
    return (0, 2, 3, 1) if is_last else None
