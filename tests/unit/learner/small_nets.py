"""A network of a few parameters of every kind, for the tests of optimisers."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Net(nn.Module):
    """A convolution, a dense layer, a single number, and one parameter that no loss knows."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3)
        self.out = nn.Linear(12, 1)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.conv(x)).flatten(1)
        out: Tensor = self.out(hidden)
        return (self.scale * out).squeeze(-1)


def net(seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net()


def loss_of(model: nn.Module, step: int, scale: float = 1.0) -> Tensor:
    x = torch.randn(8, 2, 4, 4, generator=torch.Generator().manual_seed(step))
    predicted: Tensor = model(x)
    total: Tensor = (predicted - x.sum((1, 2, 3))).square().mean() * scale
    return total
