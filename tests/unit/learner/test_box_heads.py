"""Gaussian heads against torch's distributions and the covariance that gSDE has on paper."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor
from torch.distributions import Normal

from asyncrl.keyed_noise import uniform
from asyncrl.learner.box_heads import GaussianHead, StateDependentHead
from asyncrl.learner.model_config import ModelConfig
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.spaces import Node
from envserver.gym_spec import space_spec

FEATURES = 6
FREE = spaces.Box(-np.inf, np.inf, (3,), np.float32)


def gaussian(space: spaces.Box = FREE, **settings: Any) -> GaussianHead:
    torch.manual_seed(1)
    return GaussianHead(space_spec(space).nodes[0], FEATURES, ModelConfig(**settings))


def state_dependent(**settings: Any) -> StateDependentHead:
    torch.manual_seed(1)
    return StateDependentHead(space_spec(FREE).nodes[0], FEATURES, ModelConfig(use_sde=True, **settings))


def noise(rows: int, columns: int) -> Tensor:
    return torch.from_numpy(uniform(3, np.arange(rows, dtype=np.uint64), columns))


def test_it_is_torchs_normal_summed_over_dimensions() -> None:
    """Log-probability and entropy are sums over dimensions, with the parameter as log-deviation."""
    head = gaussian(log_std_init=-0.5)
    with torch.no_grad():
        head.log_std.copy_(torch.tensor([-0.5, 0.3, 1.0]))
    mean = torch.randn(4, 5, 3)
    twin: Any = Normal(mean, head.log_std.detach().exp())
    action = twin.sample()
    log_prob, entropy = head.evaluate(mean, None, [action])
    assert torch.allclose(log_prob, twin.log_prob(action).sum(-1), atol=1e-5)
    assert torch.allclose(entropy, twin.entropy().sum(-1), atol=1e-5)
    closed_form = sum(0.5 * math.log(2 * math.pi * math.e) + s for s in (-0.5, 0.3, 1.0))
    assert head.entropy(mean, None)[0, 0].item() == pytest.approx(closed_form, abs=1e-5)


def test_draws_are_normal() -> None:
    """1e5 draws: moments of a Gaussian of the right mean and deviation, dimensions independent."""
    head = gaussian(log_std_init=math.log(2.0))
    (draws,), log_prob = head.draw(torch.tensor([1.0, 0.0, -3.0]).expand(100_000, 3), None, noise(100_000, 3))
    z = (draws.double() - torch.tensor([1.0, 0.0, -3.0])) / 2.0
    for power, moment in ((1, 0.0), (2, 1.0), (3, 0.0), (4, 3.0)):
        assert (z**power).mean(0).tolist() == pytest.approx([moment] * 3, abs=0.1)
    assert torch.allclose(torch.corrcoef(z.t()), torch.eye(3, dtype=torch.float64), atol=0.02)
    assert torch.equal(log_prob, head.log_prob(torch.tensor([1.0, 0.0, -3.0]).expand(100_000, 3), None, [draws]))


def test_noise_is_the_inverse_of_the_distribution() -> None:
    """A uniform number u gives the action below which a share u of the actions lies."""
    head = gaussian(log_std_init=math.log(2.0))
    quantiles = torch.tensor([[0.025, 0.5, 0.84134475]], dtype=torch.float64)
    (drawn,) = head.sample(torch.tensor([[1.0, 1.0, 1.0]]), None, quantiles)
    assert drawn[0].tolist() == pytest.approx([1.0 - 2 * 1.959964, 1.0, 3.0], abs=1e-4)


def test_the_log_deviation_begins_as_asked_and_learns() -> None:
    """`log_std_init` per dimension, whatever the observation; it has a gradient."""
    head = gaussian(log_std_init=-1.5)
    assert head.log_std.tolist() == [-1.5] * 3
    entropy = head.entropy(head.project(torch.randn(2, FEATURES)), None)
    (gradient,) = torch.autograd.grad(entropy.sum(), head.log_std)
    assert gradient.tolist() == [2.0] * 3


def test_bounds_apply_to_what_is_sent_alone() -> None:
    """The stored action is as drawn; the one that is sent is clipped, and of the wire's dtype and shape."""
    space = spaces.Box(np.array([[-1.0], [-2.0]]), np.array([[1.0], [0.5]]), (2, 1), np.float64)
    head = gaussian(space, log_std_init=2.0)
    (draws,), _ = head.draw(torch.zeros(500, 2), None, noise(500, 2))
    stored = head.stored([draws.detach().numpy()])
    (sent,) = head.env_action(stored)
    assert stored[0].dtype == np.float32
    assert stored[0].shape == sent.shape == (500, 2, 1)
    assert np.abs(stored[0]).max() > 2.0
    assert sent.dtype == np.float64
    assert np.array_equal(sent, np.clip(stored[0].astype(np.float64), space.low, space.high))
    assert head.mode(torch.zeros(1, 2), None)[0].tolist() == [[[0.0], [0.0]]]


def test_what_is_sent_is_in_the_dtype_of_the_wire() -> None:
    """Whole numbers are rounded within their bounds, bfloat16 goes as its bits; unbounded float32 as it is."""
    whole = gaussian(spaces.Box(-3, 3, (1,), np.int16))
    (sent,) = whole.env_action([np.array([[1.6], [-9.0], [0.4]], np.float32)])
    assert sent.dtype == np.int16
    assert sent.tolist() == [[2], [-3], [0]]
    unbounded = gaussian(spaces.Box(0, 255, (1,), np.uint8))
    assert unbounded.env_action([np.array([[300.0], [-1.0]], np.float32)])[0].tolist() == [[255], [0]]
    brain = Node(pb.BOX, dtype=np.dtype("u2"), shape=(1,), bf16=True, high=np.array([0x3F80], "u2"))  # up to 1.0
    (bits,) = GaussianHead(brain, FEATURES, ModelConfig()).env_action([np.array([[7.0], [-2.0]], np.float32)])
    assert bits.dtype == np.uint16
    assert bits.tolist() == [[0x3F80], [0xC000]]
    assert gaussian().env_action([np.zeros((1, 3), np.float32)]) == []


def test_the_head_begins_near_zero() -> None:
    """The last layer of the policy begins with gain 0.01."""
    weight = gaussian().out.weight.detach()
    assert torch.allclose(weight @ weight.t(), 1e-4 * torch.eye(3), atol=1e-8)


def test_noise_of_gsde_has_the_covariance_of_its_features() -> None:
    """Over matrices, the action is Gaussian with variance Σ features² σ², and its log-probability is that."""
    head = state_dependent(log_std_init=-0.3)
    params = head.project(torch.randn(1, FEATURES)).detach()
    rows = params.expand(50_000, -1)
    (draws,), log_prob = head.draw(rows, None, noise(50_000, head.num_noise))
    variance = (params[0, 3:] ** 2).sum() * math.exp(-0.6)
    assert draws.mean(0).tolist() == pytest.approx(params[0, :3].tolist(), abs=0.05)
    assert draws.var(0).tolist() == pytest.approx([float(variance)] * 3, rel=0.05)
    twin: Any = Normal(params[:, :3], variance.sqrt())
    assert torch.allclose(log_prob, twin.log_prob(draws).sum(1), atol=1e-3)
    assert head.entropy(params, None).item() == pytest.approx(twin.entropy().sum().item(), abs=1e-4)


def test_a_matrix_of_noise_is_kept_for_its_period() -> None:
    """The same noise makes near features give near actions; the period is `sde_sample_freq`, or an unroll."""
    head = state_dependent(sde_sample_freq=4)
    assert head.noise_period == 4
    assert state_dependent(num_steps=77).noise_period == 77
    uniforms = noise(1, head.num_noise)
    features = torch.randn(1, FEATURES)
    first, second, near, twice = (
        head.draw(head.project(f), None, n)[0][0]
        for f, n in (
            (features, uniforms), (features, uniforms.clone()), (features + 1e-4, uniforms), (features * 2, uniforms),
        )
    )  # fmt: skip
    assert torch.equal(first, second)
    assert torch.allclose(first, near, atol=1e-2)
    assert not torch.allclose(first, twice, atol=1e-2)


def test_gsde_learns_its_spread_but_not_through_the_features() -> None:
    """Entropy has a gradient for the log-deviations and none for the features."""
    head = state_dependent()
    features = torch.randn(2, FEATURES, requires_grad=True)
    entropy = head.entropy(head.project(features), None).sum()
    by_std, by_features = torch.autograd.grad(entropy, (head.log_std, features))
    assert by_std.abs().min() > 0
    assert not by_features.any()
