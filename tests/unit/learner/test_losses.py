"""Losses against their formulas, by hand and by gradient."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from asyncrl.learner.losses import (
    clipped_squared_error,
    clipped_surrogate,
    divergence,
    normalised,
    squared_error,
    surrogate,
)

CLIP = torch.tensor(0.2)
GENERATOR = torch.Generator().manual_seed(0)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=GENERATOR)


def test_losses_are_means() -> None:
    """Every row twice gives the same losses and the same gradients: they are divided by the rows."""
    log_ratio, advantage, value, target, acted = (normal(64) for _ in range(5))
    found = []
    for repeat in (1, 2):
        leaves = [log_ratio.clone().requires_grad_(), value.clone().requires_grad_()]
        rows = [x.repeat(repeat) for x in (*leaves, advantage, target, acted)]
        losses = [
            clipped_surrogate(rows[0], rows[2], CLIP),
            squared_error(rows[1], rows[3]),
            clipped_squared_error(rows[1], rows[3], rows[4], CLIP),
        ]
        found.append([*losses, *torch.autograd.grad(sum(losses, torch.zeros(())), leaves)])
    for once, twice in zip(*found, strict=True):
        torch.testing.assert_close(once, twice)


def test_value_clip_is_around_the_value_of_acting() -> None:
    """V = V_old + 1 with the target at V_old costs .5 · max(1, .01): the worse of both, clipped around V_old."""
    acted = normal(32)
    assert clipped_squared_error(acted + 1, acted, acted, torch.tensor(0.1)).item() == pytest.approx(0.5, rel=1e-5)
    assert squared_error(acted + 1, acted).item() == pytest.approx(0.5, rel=1e-5)


def test_value_clip_stops_the_gradient_beyond_it() -> None:
    """A value that has moved by more than the clip towards its target is pushed no further; before it, it is."""
    acted, target = torch.zeros(2), torch.full((2,), 10.0)
    value = torch.tensor([0.05, 0.5], requires_grad=True)
    (slope,) = torch.autograd.grad(clipped_squared_error(value, target, acted, torch.tensor(0.1)), value)
    assert slope[0].item() == pytest.approx(0.5 * (0.05 - 10.0))
    assert slope[1].item() == 0.0


@pytest.mark.parametrize("clip", [0.1, 0.2, 0.9])
def test_surrogate_is_the_row_by_row_formula(clip: float) -> None:
    """-mean(min(r A, clip(r) A)), row by row in plain Python."""
    log_ratio, advantage = normal(50), normal(50)
    total = 0.0
    for x, a in zip(log_ratio.tolist(), advantage.tolist(), strict=True):
        ratio = math.exp(x)
        total += min(ratio * a, min(max(ratio, 1 - clip), 1 + clip) * a)
    assert clipped_surrogate(log_ratio, advantage, torch.tensor(clip)).item() == pytest.approx(-total / 50, rel=1e-5)


def test_without_a_clip_the_surrogate_is_the_limit_of_a_wide_one() -> None:
    """The plain objective, and its gradient at ratio 1, which is that of -A log π."""
    log_ratio, advantage = torch.zeros(20, requires_grad=True), normal(20)
    (slope,) = torch.autograd.grad(surrogate(log_ratio, advantage), log_ratio)
    torch.testing.assert_close(slope, -advantage / 20)
    moved = normal(20)
    assert surrogate(moved, advantage).item() == pytest.approx(
        clipped_surrogate(moved, advantage, torch.tensor(1e6)).item()
    )


def test_a_huge_ratio_spoils_no_gradient() -> None:
    """e¹⁰⁰ is infinite in float32: where the clip is the smaller one, that row's gradient is 0 and no other changes."""
    log_ratio = torch.tensor([0.0, 0.1, 100.0], requires_grad=True)
    loss = clipped_surrogate(log_ratio, torch.ones(3), CLIP)
    assert loss.item() == pytest.approx(-(1.0 + math.exp(0.1) + 1.2) / 3)
    (slope,) = torch.autograd.grad(loss, log_ratio)
    assert slope.tolist() == pytest.approx([-1 / 3, -math.exp(0.1) / 3, 0.0])
    plain = surrogate(log_ratio, torch.tensor([1.0, 1.0, 0.0]))
    (slope,) = torch.autograd.grad(plain, log_ratio)
    assert slope.tolist() == pytest.approx([-1 / 3, -math.exp(0.1) / 3, 0.0])


def test_divergence_estimates() -> None:
    """Of samples of μ: both estimates approach KL(μ‖π), the second is never negative, and the share clipped counts."""
    rng = np.random.default_rng(0)
    mu, pi = np.array([0.7, 0.2, 0.1]), np.array([0.4, 0.4, 0.2])
    chosen = rng.choice(3, 200_000, p=mu)
    found = divergence(torch.from_numpy(np.log(pi / mu)[chosen]), 0.5)
    expected = float((mu * np.log(mu / pi)).sum())
    assert found.old_approx_kl.item() == pytest.approx(expected, abs=0.01)
    assert found.approx_kl.item() == pytest.approx(expected, abs=0.01)
    assert found.clipfrac.item() == pytest.approx(0.3, abs=0.01)  # ratios .57, 2, 2
    assert divergence(torch.tensor([-0.3]), 0.5).approx_kl.item() > 0.0
    assert divergence(torch.tensor([-0.3]), 0.5).old_approx_kl.item() > 0.0


def test_advantages_of_a_minibatch_are_normalised() -> None:
    """Mean 0 and deviation 1 over the rows given; one row, or equal ones, give zeros and no NaN."""
    found = normalised(normal(256) * 7 + 3)
    assert found.mean().item() == pytest.approx(0.0, abs=1e-6)
    assert found.std().item() == pytest.approx(1.0, abs=1e-5)
    assert normalised(torch.tensor([5.0])).tolist() == [0.0]
    assert normalised(torch.full((8,), 5.0)).tolist() == [0.0] * 8
