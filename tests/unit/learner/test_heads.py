"""Categorical and Bernoulli heads against torch's distributions, closed forms, and counts of many draws."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor
from torch.distributions import Bernoulli, Categorical

from asyncrl.keyed_noise import uniform
from asyncrl.learner.heads import BernoulliHead, CategoricalHead
from envserver.gym_spec import space_spec

DRAWS = 100_000
UNEQUAL = spaces.MultiDiscrete([2, 5, 3])


def categorical(space: spaces.Discrete | spaces.MultiDiscrete) -> CategoricalHead:
    return CategoricalHead(space_spec(space).nodes[0], 8)


def noise(rows: int, columns: int, seed: int = 1) -> Tensor:
    return torch.from_numpy(uniform(seed, np.arange(rows, dtype=np.uint64), columns))


def chi_squared(draws: Tensor, p: Tensor) -> float:
    """How many deviations the statistic lies from its mean; draws [R] of numbers from 0, p [n]."""
    counts = torch.bincount(draws, minlength=len(p)).double()
    expected = p.double() * len(draws)
    assert not counts[expected == 0].any()
    terms = ((counts - expected) ** 2 / expected)[expected > 0]
    freedom = len(terms) - 1
    return (float(terms.sum()) - freedom) / math.sqrt(2 * freedom)


def test_draws_have_the_probabilities_of_the_logits() -> None:
    """Frequencies of 1e5 draws fit the softmax, for one choice and for each place of several."""
    logits = torch.tensor([0.3, -1.0, 2.0, 0.0, -4.0])
    (draws,), _ = categorical(spaces.Discrete(5)).draw(logits.expand(DRAWS, 5), None, noise(DRAWS, 1))
    assert chi_squared(draws, logits.softmax(0)) < 5
    params = torch.randn(10, generator=torch.Generator().manual_seed(1))
    (draws,), _ = categorical(UNEQUAL).draw(params.expand(DRAWS, 10), None, noise(DRAWS, 3))
    assert draws.shape == (DRAWS, 3)
    for place, logits in enumerate(params.split([2, 5, 3])):  # type: ignore[no-untyped-call]
        assert chi_squared(draws[:, place], logits.softmax(0)) < 5
    assert abs(float(torch.corrcoef(draws.double().t())[0, 1])) < 0.02  # independent places


def test_a_point_on_a_border_is_the_lower_actions() -> None:
    """Each action has the numbers up to its border, that one among them."""
    head = categorical(spaces.Discrete(4))
    points = torch.tensor([[0.25], [0.5], [0.75], [0.25 + 1e-6]])
    assert head.sample(torch.zeros(4, 4), None, points)[0].tolist() == [0, 1, 2, 1]


def test_it_is_torchs_categorical() -> None:
    """Log-probability and entropy equal `torch.distributions`, with any leading axes."""
    torch.manual_seed(2)
    params = torch.randn(6, 4, 5) * 3
    twin: Any = Categorical(logits=params)
    action = twin.sample()
    head = categorical(spaces.Discrete(5))
    log_prob, entropy = head.evaluate(params, None, [action])
    assert torch.allclose(log_prob, twin.log_prob(action), atol=1e-6)
    assert torch.allclose(entropy, twin.entropy(), atol=1e-6)
    assert torch.equal(head.entropy(params, None), entropy)
    assert torch.equal(head.log_prob(params, None, [action]), log_prob)


@pytest.mark.parametrize("counts", [[2, 5, 3], [4, 4]], ids=["unequal", "equal"])
def test_places_of_multi_discrete_add_up(counts: list[int]) -> None:
    """The log-probability and the entropy of several choices are sums over places, not means."""
    torch.manual_seed(3)
    head = categorical(spaces.MultiDiscrete(counts))
    params = torch.randn(7, sum(counts))
    (action,), drawn = head.draw(params, None, noise(7, len(counts)))
    log_prob, entropy = head.evaluate(params, None, [action])
    twins: list[Any] = [Categorical(logits=part) for part in params.split(counts, dim=1)]  # type: ignore[no-untyped-call]
    expected = torch.stack([twin.log_prob(action[:, i]) for i, twin in enumerate(twins)])
    assert torch.allclose(log_prob, expected.sum(0), atol=1e-5)
    assert torch.allclose(entropy, torch.stack([twin.entropy() for twin in twins]).sum(0), atol=1e-5)
    assert torch.equal(drawn, log_prob)
    assert torch.equal(head.sample(params, None, noise(7, len(counts)))[0], action)


def test_the_entropy_of_equal_logits_is_ln_a() -> None:
    """Uniform over A actions: ln A; over A allowed of more: ln A too."""
    for n in (2, 7, 18):
        head = categorical(spaces.Discrete(n))
        assert head.entropy(torch.zeros(1, n), None).item() == pytest.approx(math.log(n), abs=1e-6)
        mask = torch.zeros(1, n, dtype=torch.bool)
        mask[0, :2] = True
        assert head.entropy(torch.zeros(1, n), mask).item() == pytest.approx(math.log(2), abs=1e-6)


def test_what_is_masked_is_never_drawn() -> None:
    """1e5 draws under random masks take allowed actions alone, at the extremes of the noise too."""
    torch.manual_seed(4)
    head = categorical(spaces.Discrete(6))
    params = torch.randn(DRAWS, 6) * 5
    mask = torch.rand(DRAWS, 6) < 0.4
    mask[torch.arange(DRAWS), torch.randint(6, (DRAWS,))] = True
    extremes = noise(DRAWS, 1)
    extremes[:1000] = 2.0**-53
    extremes[1000:2000] = 1 - 2.0**-53  # is 1 in float32
    (draws,), _ = head.draw(params, mask, extremes)
    assert bool(mask.gather(1, draws.unsqueeze(1)).all())
    (modes,) = (head.mode(params, mask)[0],)
    assert torch.equal(modes, params.masked_fill(~mask, -torch.inf).argmax(1))


def test_draws_under_a_mask_have_the_probabilities_of_what_is_left() -> None:
    """Frequencies fit the softmax over allowed actions, place by place."""
    params = torch.randn(10, generator=torch.Generator().manual_seed(5))
    mask = torch.tensor([1, 1, 0, 1, 1, 0, 1, 0, 1, 1]).bool()
    head = categorical(UNEQUAL)
    rows = (params.expand(DRAWS, 10), mask.expand(DRAWS, 10))
    (draws,), log_prob = head.draw(*rows, noise(DRAWS, 3))
    parts = params.masked_fill(~mask, -torch.inf).split([2, 5, 3])  # type: ignore[no-untyped-call]
    for place, logits in enumerate(parts):
        assert chi_squared(draws[:, place], logits.softmax(0)) < 5
    twins: list[Any] = [Categorical(logits=part) for part in parts]
    expected = torch.stack([twin.log_prob(draws[:, i]) for i, twin in enumerate(twins)])
    assert torch.allclose(log_prob, expected.sum(0), atol=1e-5)


def test_masks_leave_no_nan_in_gradients() -> None:
    """Log-probability and entropy have finite gradients, which are 0 for masked actions."""
    params = torch.randn(3, 4, generator=torch.Generator().manual_seed(6), requires_grad=True)
    mask = torch.tensor([[1, 0, 1, 1], [0, 1, 0, 0], [1, 1, 1, 1]]).bool()
    log_prob, entropy = categorical(spaces.Discrete(4)).evaluate(params, mask, [torch.tensor([0, 1, 3])])
    (gradient,) = torch.autograd.grad(log_prob.sum() + entropy.sum(), params)
    assert bool(gradient.isfinite().all())
    assert not gradient[~mask].any()
    assert gradient[0, 0] != 0
    assert entropy[1].item() == 0.0  # one action is allowed


def test_a_mask_that_allows_nothing_allows_everything() -> None:
    """Such a row is drawn from all actions; the rows beside it keep their masks."""
    head = categorical(spaces.Discrete(3))
    params = torch.tensor([[1.0, 2.0, 3.0]]).expand(DRAWS, 3)
    mask = torch.zeros(DRAWS, 3, dtype=torch.bool)
    mask[::2, 1] = True
    (draws,), log_prob = head.draw(params, mask, noise(DRAWS, 1))
    assert bool((draws[::2] == 1).all())
    assert chi_squared(draws[1::2], params[0].softmax(0)) < 5
    assert bool(log_prob.isfinite().all())


def test_numbering_is_the_environments() -> None:
    """With a `start`, actions begin there, probabilities are those of their places, dtypes the wire's."""
    head = categorical(spaces.Discrete(3, start=-1))
    params = torch.tensor([[5.0, 0.0, 0.0], [0.0, 0.0, 5.0]])
    (modes,) = head.mode(params, None)
    assert modes.tolist() == [-1, 1]
    assert torch.allclose(head.log_prob(params, None, [modes]), params.log_softmax(1).amax(1))
    places = categorical(spaces.MultiDiscrete(np.array([[2, 3], [2, 2]]), start=np.array([[10, 20], [30, 40]])))
    (modes,) = places.mode(torch.tensor([[0, 1, 0, 0, 1, 1, 0, 0, 1]]).float(), None)
    assert modes.tolist() == [[[11, 22], [30, 41]]]
    assert places.stored([modes.numpy()])[0].dtype == np.int64
    assert places.env_action([modes.numpy()]) == []  # sent as it is stored


def test_coins_are_torchs_bernoulli() -> None:
    """MULTI_BINARY: log-probability and entropy are sums over coins, draws have their probabilities."""
    torch.manual_seed(7)
    head = BernoulliHead(space_spec(spaces.MultiBinary((2, 2))).nodes[0], 8)
    params = torch.randn(5, 4) * 3
    twin: Any = Bernoulli(logits=params)
    action = twin.sample().view(5, 2, 2)
    log_prob, entropy = head.evaluate(params, None, [action.to(torch.int8)])
    assert torch.allclose(log_prob, twin.log_prob(action.view(5, 4)).sum(1), atol=1e-5)
    assert torch.allclose(entropy, twin.entropy().sum(1), atol=1e-5)
    (draws,), drawn = head.draw(params[:1].expand(DRAWS, 4), None, noise(DRAWS, 4))
    assert torch.allclose(draws.double().mean(0).flatten(), params[0].double().sigmoid(), atol=0.01)
    assert torch.equal(drawn, head.log_prob(params[:1].expand(DRAWS, 4), None, [draws]))
    assert head.mode(params, None)[0].flatten(1).tolist() == (params > 0).tolist()
    assert head.stored([draws.numpy()])[0].dtype == np.int8
