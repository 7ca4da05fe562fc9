"""Convolutions against the architectures as they were published."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from asyncrl.learner.convolutions import CONVOLUTIONS, ImpalaCNN, NatureCNN


def test_nature_is_the_published_network() -> None:
    """32 8x8/4, 64 4x4/2, 64 3x3/1 and 512 units, ReLU after each, without padding: 3136 numbers before the last."""
    torch.manual_seed(1)
    net = NatureCNN(4, 84, 84)
    twin = nn.Sequential(
        nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 1), nn.ReLU(),
        nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(),
    )  # fmt: skip
    with torch.no_grad():
        for source, target in zip(net.parameters(), twin.parameters(), strict=True):
            # The dense layer reads the channels of one place after those of another; the twin the other way round.
            planes = source.shape == (512, 3136)
            target.copy_(source.view(512, 7, 7, 64).permute(0, 3, 1, 2).flatten(1) if planes else source)
    x = torch.rand(2, 4, 84, 84)
    assert torch.allclose(net(x), twin(x), atol=1e-6)
    assert net.num_features == 512


def test_impala_has_the_published_size() -> None:
    """Stages of 16, 32 and 32 channels with two residual blocks each, then 256 units: weights counted by hand."""
    net = ImpalaCNN(4, 84, 84)
    stages = [(4, 16), (16, 32), (32, 32)]
    convolutions = sum(9 * a * b + b + 4 * (9 * b * b + b) for a, b in stages)
    assert sum(p.numel() for p in net.parameters()) == convolutions + 32 * 11 * 11 * 256 + 256
    assert net(torch.rand(2, 4, 84, 84)).shape == (2, 256)


def test_a_residual_block_adds_to_what_it_gets() -> None:
    """With the inner convolutions at 0 a stage is its first convolution and the pooling."""
    torch.manual_seed(2)
    stage = ImpalaCNN(1, 40, 40).stages[0]
    x = torch.rand(1, 1, 40, 40)
    with torch.no_grad():
        for name, parameter in stage.named_parameters():
            if name.startswith("blocks"):
                parameter.zero_()
        first = stage.get_submodule("first")
        assert torch.equal(stage(x), torch.max_pool2d(first(x), 3, 2, 1))


@pytest.mark.parametrize("name", sorted(CONVOLUTIONS))
@pytest.mark.parametrize("size", [(1, 36, 36), (3, 61, 47), (12, 96, 128)], ids=str)
def test_convolutions_fit_frames_of_any_size(name: str, size: tuple[int, int, int]) -> None:
    """The dense layer is as wide as what the convolutions leave, for odd sides and oblong frames too."""
    net = CONVOLUTIONS[name](*size)
    assert net(torch.rand(2, *size)).shape == (2, net.num_features)


@pytest.mark.parametrize("name", sorted(CONVOLUTIONS))
def test_kernels_begin_orthogonal(name: str) -> None:
    """Rows of every kernel, flattened, are orthogonal with squared length 2."""
    torch.manual_seed(3)
    for parameter_name, p in CONVOLUTIONS[name](4, 84, 84).named_parameters():
        if parameter_name.endswith("bias"):
            assert not p.any()
            continue
        rows = p.detach().flatten(1)
        gram = rows @ rows.t() if rows.shape[0] <= rows.shape[1] else rows.t() @ rows
        assert torch.allclose(gram, 2.0 * torch.eye(len(gram)), atol=1e-4)
