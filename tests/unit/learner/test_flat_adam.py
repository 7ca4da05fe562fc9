"""The flat optimiser against torch's own over single parameters."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from asyncrl.learner.flat_adam import FlatAdam
from tests.unit.learner.small_nets import loss_of, net


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


def test_adam_epsilon() -> None:
    """Epsilon is what is asked for, not torch's 1e-8, and it counts: small gradients make small steps."""
    model = net()
    optimiser = FlatAdam(model, 1e-5)
    assert optimiser.eps == 1e-5
    before = optimiser.flat.clone()
    gradient = torch.full_like(before, 1e-5)
    optimiser.step(gradient, float(gradient.norm()), 1.0, 0.0)
    torch.testing.assert_close(before - optimiser.flat, torch.full_like(before, 0.5), rtol=1e-3, atol=0.0)
