"""Targets and losses against golden numbers, loops and the identities that they have to keep."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from asyncrl.learner.q_losses import best, chosen, distribution_loss, project, td_loss, td_target

SUPPORT = torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0])
PMF = torch.tensor([[0.1, 0.2, 0.4, 0.2, 0.1]])


def projected(reward: float, discount: float) -> list[float]:
    found: list[float] = project(PMF, torch.tensor([reward]), torch.tensor([discount]), SUPPORT)[0].tolist()
    return found


def plain_projection(pmf: list[float], reward: float, discount: float, support: list[float]) -> list[float]:
    """Each atom's mass goes to the two atoms around where it lands, by nearness; in Python's floats."""
    low, high, gap = support[0], support[-1], support[1] - support[0]
    found = [0.0] * len(support)
    for mass, z in zip(pmf, support, strict=True):
        place = min((min(max(reward + discount * z, low), high) - low) / gap, len(support) - 1.0)
        below, above = math.floor(place), math.ceil(place)
        if below == above:
            found[below] += mass
        else:
            found[below] += mass * (above - place)
            found[above] += mass * (place - below)
    return found


@pytest.mark.parametrize(
    ("reward", "discount", "expected"),
    [
        (1.0, 0.5, [0.0, 0.0, 0.2, 0.6, 0.2]),
        (0.25, 0.0, [0.0, 0.0, 0.75, 0.25, 0.0]),
        (0.0, 1.0, [0.1, 0.2, 0.4, 0.2, 0.1]),
        (50.0, 0.9, [0.0, 0.0, 0.0, 0.0, 1.0]),
        (-50.0, 0.9, [1.0, 0.0, 0.0, 0.0, 0.0]),
        (2.0, 0.0, [0.0, 0.0, 0.0, 0.0, 1.0]),
    ],
)
def test_golden_projections(reward: float, discount: float, expected: list[float]) -> None:
    """Onto atoms, between them, at both ends and beyond; atoms that are hit exactly lose nothing."""
    np.testing.assert_allclose(projected(reward, discount), expected, atol=1e-6)


def test_projection_keeps_mass_and_mean() -> None:
    """Ten thousand random cases: mass 1; unclipped the mean is r + γ times the mean; row by row what a loop gives."""
    rng = np.random.default_rng(1)
    num, atoms = 10_000, 51
    support, exact = torch.linspace(-10.0, 10.0, atoms), np.linspace(-10.0, 10.0, atoms).tolist()
    pmf = torch.from_numpy(rng.dirichlet(np.full(atoms, 0.2), num).astype(np.float32))
    reward = torch.from_numpy(rng.choice([0.0, 1.0, -1.0, 0.4, 3.3, 12.0], num).astype(np.float32))
    discount = torch.from_numpy(rng.choice([0.0, 1.0, 0.99, 0.5, 0.970299], num).astype(np.float32))
    found = project(pmf, reward, discount, support)
    assert float(found.min()) >= 0.0
    np.testing.assert_allclose(found.sum(1), np.ones(num), atol=1e-5)
    inside = (reward.abs() + 10.0 * discount) <= 10.0
    assert int(inside.sum()) > 1000
    mean = reward + discount * (pmf @ support)
    np.testing.assert_allclose((found @ support)[inside], mean[inside], atol=1e-4)
    for row in range(0, num, 50):
        expected = plain_projection(pmf[row].tolist(), float(reward[row]), float(discount[row]), exact)
        np.testing.assert_allclose(found[row], expected, atol=2e-5)


def test_double_q_learning_where_the_two_disagree() -> None:
    """Online says action 0 (of 5 and 1), target has 2 for it and 7 for the other: double takes 2, plain takes 7."""
    online, target = torch.tensor([[5.0, 1.0]]), torch.tensor([[2.0, 7.0]])
    reward, discount = torch.tensor([1.0]), torch.tensor([0.5])
    assert td_target(reward, discount, chosen(target, best(online, None))).item() == 1.0 + 0.5 * 2.0
    assert td_target(reward, discount, chosen(target, best(target, None))).item() == 1.0 + 0.5 * 7.0


def test_masked_actions_are_no_target() -> None:
    """The best that is allowed; where nothing is, the best of all."""
    q = torch.tensor([[1.0, 5.0, 3.0]] * 3)
    mask = torch.tensor([[True, False, True], [True, True, True], [False, False, False]])
    assert best(q, mask).tolist() == [2, 1, 1]
    assert best(-q, mask).tolist() == [0, 0, 0]


def test_terminated_rows_have_no_future() -> None:
    """A discount of 0 leaves the reward, whatever the next observation is said to be worth."""
    found = td_target(torch.tensor([3.0, 3.0]), torch.tensor([0.0, 0.9]), torch.tensor([1e6, 10.0]))
    assert found.tolist() == [3.0, 12.0]


@pytest.mark.parametrize(("error", "mse", "huber"), [(0.5, 0.25, 0.125), (-0.5, 0.25, 0.125), (3.0, 9.0, 2.5)])
def test_losses_of_errors(error: float, mse: float, huber: float) -> None:
    """Squared as CleanRL has it, without the half; Huber's with δ = 1."""
    target = torch.tensor([2.0])
    assert td_loss(target + error, target, "mse").item() == pytest.approx(mse)
    assert td_loss(target + error, target, "huber").item() == pytest.approx(huber)


def test_the_loss_of_a_distribution_is_its_cross_entropy() -> None:
    """By hand; its gradient to the logits is the difference of the distributions."""
    logits = torch.tensor([[0.3, -1.0, 2.0]], requires_grad=True)
    target = torch.tensor([[0.2, 0.5, 0.3]])
    found = distribution_loss(logits, target)
    total = sum(math.exp(x) for x in (0.3, -1.0, 2.0))
    expected = -sum(p * (x - math.log(total)) for p, x in zip((0.2, 0.5, 0.3), (0.3, -1.0, 2.0), strict=True))
    assert found.item() == pytest.approx(expected, rel=1e-5)
    (gradient,) = torch.autograd.grad(found.sum(), logits)
    torch.testing.assert_close(gradient, torch.softmax(logits.detach(), -1) - target)


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5)])
def test_values_of_what_was_done(shape: tuple[int, ...]) -> None:
    """Row by row."""
    values: Tensor = torch.arange(float(np.prod(shape))).reshape(shape)
    action = torch.tensor([2, 0, 1, 2])
    expected = torch.stack([values[row, a] for row, a in enumerate(action.tolist())])
    assert torch.equal(chosen(values, action), expected)
