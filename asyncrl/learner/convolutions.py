"""Convolutions for frames: the network of Nature's DQN, and the residual one of IMPALA.

Both map float `[N, channels, height, width]` to `[N, num_features]`, begin as `networks` says, and take frames of any
size from `MIN_SIDE` on (test_convolutions_fit_frames_of_any_size).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, cast

import torch.nn.functional as F
from torch import Tensor, nn

from asyncrl.learner.networks import linear, orthogonal

_NATURE: Final = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # channels, side of the kernel, stride
_IMPALA: Final = (16, 32, 32)  # channels of each stage


class NatureCNN(nn.Module):
    """Three convolutions and a dense layer of 512."""

    num_features = 512

    def __init__(self, channels: int, height: int, width: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList()
        for out, side, stride in _NATURE:
            self.convs.append(_conv(channels, out, side, stride))
            channels, height, width = out, (height - side) // stride + 1, (width - side) // stride + 1
        self.out = linear(channels * height * width, self.num_features)

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = conv(x).relu_()
        return _dense(self.out, x)


class ImpalaCNN(nn.Module):
    """Three stages of two residual blocks, each halving the sides, and a dense layer of 256."""

    num_features = 256

    def __init__(self, channels: int, height: int, width: int) -> None:
        super().__init__()
        self.stages = nn.ModuleList()
        for out in _IMPALA:
            self.stages.append(_Stage(channels, out))
            channels, height, width = out, (height + 1) // 2, (width + 1) // 2
        self.out = linear(channels * height * width, self.num_features)

    def forward(self, x: Tensor) -> Tensor:
        for stage in self.stages:
            x = stage(x)
        return _dense(self.out, F.relu(x))


class _Stage(nn.Module):
    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.first = _conv(channels, out, 3, 1, padding=1)
        self.blocks = nn.ModuleList(
            nn.ModuleList((_conv(out, out, 3, 1, padding=1), _conv(out, out, 3, 1, padding=1))) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.first(x), 3, stride=2, padding=1)
        for block in self.blocks:
            inner, outer = cast(Iterable[nn.Module], block)
            residual: Tensor = outer(F.relu(inner(F.relu(x))))
            x = x + residual
        return x


def _dense(layer: nn.Module, x: Tensor) -> Tensor:
    """Behind [N, C, H, W]. It reads channel after channel of each place, as convolutions leave them in memory; in the
    other order both directions would copy them."""
    out: Tensor = layer(x.permute(0, 2, 3, 1).flatten(1))
    return out.relu_()


def _conv(channels: int, out: int, side: int, stride: int, padding: int = 0) -> nn.Conv2d:
    conv = nn.Conv2d(channels, out, side, stride, padding=padding)
    orthogonal(conv)
    return conv


CONVOLUTIONS: Final[dict[str, Callable[[int, int, int], NatureCNN | ImpalaCNN]]] = {
    "nature": NatureCNN,
    "impala": ImpalaCNN,
}
