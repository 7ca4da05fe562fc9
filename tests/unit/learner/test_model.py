"""The whole model: stepping equals sequences, ratios are 1, and equal seeds give equal weights."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from asyncrl.keyed_noise import uniform
from asyncrl.learner.model import ActorCritic, build_model
from asyncrl.learner.model_config import ModelConfig
from tests.unit.learner.spaces_served import FRAMES, VECTOR, AnySpace, rows_of, served, tensors

T, N = 6, 3
ACTIONS: dict[str, AnySpace] = {
    "discrete": spaces.Discrete(4, start=2),
    "multi-discrete": spaces.MultiDiscrete([2, 3]),
    "box": spaces.Box(-1.0, 1.0, (2,)),
    "dict": spaces.Dict({"a": spaces.MultiBinary(2), "b": spaces.Box(-1.0, 1.0, (1,))}),
}


def random_model(observation: AnySpace, action: AnySpace, **settings: Any) -> ActorCritic:
    """A model whose last layers are not near zero."""
    model = build_model(served(observation, action), ModelConfig(**settings), seed=3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith("head"):
                parameter.normal_(0.0, 0.1, generator=torch.Generator().manual_seed(len(name)))
    return model


def rollout(model: ActorCritic, space: AnySpace) -> tuple[list[Tensor], Tensor, list[Tensor]]:
    """Observations per leaf [T, N, *shape], b1 [T, N] and the carry before row 0."""
    obs = [leaf.unflatten(0, (T, N)) for leaf in tensors(rows_of(space, T * N))]  # type: ignore[no-untyped-call]
    carry = [torch.randn(leaf.shape, generator=torch.Generator().manual_seed(1)) for leaf in model.initial_carry(N)]
    first = torch.rand(T, N, generator=torch.Generator().manual_seed(2)) < 0.3
    return obs, first, carry


@pytest.mark.parametrize("observation", [VECTOR, FRAMES], ids=["vector", "frames"])
@pytest.mark.parametrize("gru_size", [0, 8], ids=["feed-forward", "gru"])
def test_a_sequence_is_its_steps(observation: AnySpace, gru_size: int) -> None:
    """A step is a sequence of one row, bit for bit; a longer one is its steps to 1e-6, the carry too."""
    model = random_model(observation, spaces.Discrete(3), gru_size=gru_size)
    obs, first, carry = rollout(model, observation)
    with torch.no_grad():
        whole = model.sequence(obs, first, carry)
        assert whole.params.shape == (T, N, model.head.num_params)
        assert whole.value.shape == (T, N)
        assert [leaf.shape for leaf in whole.carry] == [(T, *leaf.shape) for leaf in carry]
        for t in range(T):
            row = model.sequence([leaf[t : t + 1] for leaf in obs], first[t : t + 1], carry)
            step = model.step([leaf[t] for leaf in obs], first[t], carry)
            for a, b, c in ((step.params, row.params, whole.params), (step.value, row.value, whole.value)):
                assert torch.equal(a, b[0])
                assert torch.allclose(a, c[t], atol=1e-6)
            for a, c in zip(step.carry, whole.carry, strict=True):
                assert torch.allclose(a, c[t], atol=1e-6)
            carry = step.carry


@pytest.mark.parametrize("action", ACTIONS.values(), ids=ACTIONS.keys())
@pytest.mark.parametrize("settings", [{}, {"gru_size": 8}, {"normalize_obs": True}], ids=["plain", "gru", "normalised"])
def test_the_ratio_is_one_at_the_weights_that_acted(action: AnySpace, settings: dict[str, Any]) -> None:
    """The log-probability of what was drawn, recomputed over the sequence, is the one of the forward that acted."""
    model = random_model(VECTOR, action, **settings)
    obs, first, carry = rollout(model, VECTOR)
    before = carry
    drawn: list[list[Tensor]] = []
    acted: list[Tensor] = []
    with torch.no_grad():
        for t in range(T):
            out = model.step([leaf[t] for leaf in obs], first[t], carry)
            noise = torch.from_numpy(
                uniform(5, np.arange(N, dtype=np.uint64) + np.uint64(t << 8), model.head.num_noise)
            )
            actions, log_prob = model.head.draw(out.params, None, noise)
            drawn.append(actions)
            acted.append(log_prob)
            carry = out.carry
        whole = model.sequence(obs, first, before)
        chosen = [torch.stack(leaves) for leaves in zip(*drawn, strict=True)]
        again = model.head.log_prob(whole.params, None, chosen)
    assert torch.allclose(again, torch.stack(acted), atol=1e-6)
    assert float((again - torch.stack(acted)).exp().sub(1).abs().max()) < 1e-5


def test_the_carry_is_cleared_on_the_side_of_the_new_episode() -> None:
    """What a row with `first` gives does not depend on what came before; what the row before gives does."""
    model = random_model(VECTOR, spaces.Discrete(3), gru_size=8)
    obs, first, carry = rollout(model, VECTOR)
    first[:] = False
    first[3] = True
    with torch.no_grad():
        one = model.sequence(obs, first, carry)
        other = model.sequence(obs, first, model.initial_carry(N))
    assert torch.equal(one.params[3:], other.params[3:])
    assert not torch.allclose(one.params[2], other.params[2], atol=1e-6)


def test_gradients_reach_every_parameter_through_the_sequence() -> None:
    """Policy, value and carry have gradients back to the first weights and to the initial carry."""
    model = random_model(VECTOR, ACTIONS["dict"], gru_size=8)
    obs, first, carry = rollout(model, VECTOR)
    first[:] = False
    carry = [leaf.requires_grad_() for leaf in carry]
    out = model.sequence(obs, first, carry)
    gradients = torch.autograd.grad(
        out.params[-1].sum() + out.value[-1].sum() + model.head.entropy(out.params, None).sum(),
        [*model.parameters(), *carry],
    )
    assert all(bool(gradient.any()) for gradient in gradients)


def test_equal_seeds_give_equal_weights() -> None:
    """The seed decides, whatever else has drawn numbers, and building draws none of anybody's."""
    spec = served(VECTOR, spaces.Discrete(2))
    torch.manual_seed(1)
    one = build_model(spec, ModelConfig(), seed=7)
    torch.manual_seed(2)
    expected = torch.rand(1, generator=torch.Generator().manual_seed(2))
    two, other = build_model(spec, ModelConfig(), seed=7), build_model(spec, ModelConfig(), seed=8)
    assert torch.equal(torch.rand(1), expected)
    weights, same, different = (m.torso.state_dict() for m in (one, two, other))
    assert all(torch.equal(weights[name], same[name]) for name in weights)
    assert not all(torch.equal(weights[name], different[name]) for name in weights)


def test_heads_begin_with_their_gains() -> None:
    """0.01 for the policy, 1 for the value, no biases: a first policy is nearly uniform."""
    model = build_model(served(VECTOR, spaces.Discrete(4)), ModelConfig(), seed=1)
    assert float(model.value_out.weight.detach().norm()) == pytest.approx(1.0, abs=1e-5)
    assert not model.value_out.bias.any()
    out = model.step([torch.randn(100, 4)], torch.zeros(100, dtype=torch.bool), [])
    assert float(model.head.entropy(out.params, None).detach().min()) == pytest.approx(math.log(4), abs=1e-3)


def test_bf16_computes_features_alone() -> None:
    """With bf16 the outputs are float32 and near those without."""
    plain = random_model(FRAMES, spaces.Discrete(3))
    short = random_model(FRAMES, spaces.Discrete(3), bf16=True)
    obs = tensors(rows_of(FRAMES, 4))
    with torch.no_grad():
        one, other = (model.step(obs, torch.zeros(4, dtype=torch.bool), []) for model in (plain, short))
    assert other.params.dtype == other.value.dtype == torch.float32
    assert not torch.equal(one.value, other.value)
    assert torch.allclose(one.value, other.value, atol=0.05)
