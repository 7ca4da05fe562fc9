"""The flat optimiser against torch's own over single parameters."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from asyncrl.learner.flat_adam import FlatAdam


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


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("max_norm", [0.5, 1e6, 0.0])
def test_a_step_is_that_of_torch_adam(max_norm: float, layout: torch.memory_format) -> None:
    """Twenty steps, clipped or not, give the parameters that `Adam` and `clip_grad_norm_` give."""
    ours = net()
    ours.conv.weight.data = ours.conv.weight.data.contiguous(memory_format=layout)
    theirs = copy.deepcopy(ours)
    optimiser = FlatAdam(ours, 1e-5)
    reference = torch.optim.Adam([p for n, p in theirs.named_parameters() if n != "unused"], lr=1e-2, eps=1e-5)
    for step in range(20):
        gradient = optimiser.gradient(loss_of(ours, step))
        norm = float(gradient.norm())
        optimiser.step(gradient, norm, 1e-2, max_norm)
        reference.zero_grad()
        loss_of(theirs, step).backward()  # type: ignore[no-untyped-call]
        expected = nn.utils.clip_grad_norm_(theirs.parameters(), max_norm or float("inf"))
        assert norm == pytest.approx(float(expected), rel=1e-5)
        reference.step()
    assert ours.conv.weight.is_contiguous(memory_format=layout)
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5, msg=name)


def test_the_clipped_gradient_has_the_norm_asked_for() -> None:
    """The norm is that of all parameters together, and what Adam gets is no longer than the limit."""
    model = net()
    optimiser = FlatAdam(model, 1e-5)
    gradient = optimiser.gradient(loss_of(model, 0, scale=100.0))
    norm = float(gradient.norm())
    assert norm > 0.5
    optimiser.step(gradient, norm, 1e-2, 0.5)
    assert float(gradient.norm()) == pytest.approx(0.5, rel=1e-4)


def test_adam_epsilon() -> None:
    """Epsilon is what is asked for, not torch's 1e-8, and it counts: small gradients make small steps."""
    model = net()
    optimiser = FlatAdam(model, 1e-5)
    assert optimiser.eps == 1e-5
    before = optimiser.flat.clone()
    gradient = torch.full_like(before, 1e-5)
    optimiser.step(gradient, float(gradient.norm()), 1.0, 0.0)
    torch.testing.assert_close(before - optimiser.flat, torch.full_like(before, 0.5), rtol=1e-3, atol=0.0)


def test_the_parameters_are_the_vector() -> None:
    """Writing into a parameter writes into the vector, and a state dict that is loaded is trained on."""
    model = net()
    optimiser = FlatAdam(model, 1e-5)
    model.load_state_dict(net(1).state_dict())
    expected = torch.cat([p.detach().reshape(-1) for p in net(1).parameters()])
    torch.testing.assert_close(optimiser.flat, expected)


def test_a_saved_optimiser_goes_on_bit_for_bit() -> None:
    """Ten steps, or five, a save, a load into another, and five: the same bits."""
    models = [net(), net()]
    optimisers = [FlatAdam(model, 1e-5) for model in models]

    def run(which: int, steps: range) -> None:
        for step in steps:
            gradient = optimisers[which].gradient(loss_of(models[which], step))
            optimisers[which].step(gradient, float(gradient.norm()), 1e-2, 0.5)

    run(0, range(5))
    models[1].load_state_dict(models[0].state_dict())
    optimisers[1].load(optimisers[0].state(), optimisers[0].names)
    run(0, range(5, 10))
    run(1, range(5, 10))
    assert torch.equal(optimisers[0].flat, optimisers[1].flat)


def test_the_state_of_another_model_is_refused() -> None:
    """Names in another order, or another number of parameters, are a ValueError."""
    optimiser = FlatAdam(net(), 1e-5)
    with pytest.raises(ValueError, match="another model"):
        optimiser.load(optimiser.state(), optimiser.names[::-1])
    with pytest.raises(ValueError, match="another model"):
        optimiser.load(FlatAdam(nn.Linear(2, 2), 1e-5).state(), optimiser.names)
