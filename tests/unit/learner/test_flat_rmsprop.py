"""The flat RMSprop against torch's own over single parameters, and against TensorFlow's written out by hand."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from asyncrl.learner.flat_rmsprop import FlatRMSprop, RMSRule
from tests.unit.learner.small_nets import loss_of, net

CHOICES = pytest.mark.parametrize(("momentum", "centered"), [(0.0, False), (0.9, False), (0.0, True), (0.8, True)])


@CHOICES
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_step_is_that_of_torch_rmsprop(momentum: float, centered: bool, layout: torch.memory_format) -> None:
    """Twenty clipped steps of changing rates give the parameters that `RMSprop` and `clip_grad_norm_` give."""
    ours = net()
    ours.conv.weight.data = ours.conv.weight.data.contiguous(memory_format=layout)
    theirs = copy.deepcopy(ours)
    optimiser = FlatRMSprop(ours, RMSRule(0.95, 1e-3, momentum, centered, "torch"))
    known = [p for name, p in theirs.named_parameters() if name != "unused"]
    reference = torch.optim.RMSprop(known, lr=0.0, alpha=0.95, eps=1e-3, momentum=momentum, centered=centered)
    for step in range(20):
        rate = 1e-2 / (1 + step)
        gradient = optimiser.gradient(loss_of(ours, step))
        optimiser.step(gradient, float(gradient.norm()), rate, 0.5)
        reference.zero_grad()
        loss_of(theirs, step).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        reference.param_groups[0]["lr"] = rate
        reference.step()
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5, msg=name)


@CHOICES
def test_a_step_is_that_of_tensorflow(momentum: float, centered: bool) -> None:
    """Squares begin at 1, epsilon is under the root, and momentum is of steps that already have their rate."""
    model = net()
    optimiser = FlatRMSprop(model, RMSRule(0.9, 0.1, momentum, centered, "tf"))
    weights = optimiser.flat.double().numpy().copy()
    square, mean, moving = np.ones_like(weights), np.zeros_like(weights), np.zeros_like(weights)
    rng = np.random.default_rng(0)
    for step in range(20):
        rate = 1e-2 / (1 + step)
        g = rng.normal(size=weights.shape)
        square = 0.9 * square + 0.1 * g * g
        mean = 0.9 * mean + 0.1 * g
        moving = momentum * moving + rate * g / np.sqrt(square - (mean * mean if centered else 0.0) + 0.1)
        weights = weights - moving
        optimiser.step(torch.from_numpy(g).float(), float(np.linalg.norm(g)), rate, 0.0)
    np.testing.assert_allclose(optimiser.flat.numpy(), weights, atol=1e-5)


def test_epsilon_counts_where_its_way_has_it() -> None:
    """With no gradient remembered, a gradient of 1 moves by 1 / (√.01 + .1) or by 1 / √(.99 + .01 + .1)."""
    for style, divisor in (("torch", 0.1 + 0.1), ("tf", 1.1**0.5)):
        optimiser = FlatRMSprop(net(), RMSRule(0.99, 0.1, style=style))  # type: ignore[arg-type]
        before = optimiser.flat.clone()
        optimiser.step(torch.ones_like(before), 1.0, 1.0, 0.0)
        torch.testing.assert_close(before - optimiser.flat, torch.full_like(before, 1 / divisor), rtol=1e-5, atol=1e-6)


def test_a_constant_gradient_is_no_nan() -> None:
    """Centred, what is left of a large gradient that never changes is rounding, on either side of 0."""
    optimiser = FlatRMSprop(net(), RMSRule(0.9, 1e-7, centered=True, style="torch"))
    for _ in range(200):
        optimiser.step(torch.full_like(optimiser.flat, 1234.5), 1.0, 1e-9, 0.0)
    assert torch.isfinite(optimiser.flat).all()
