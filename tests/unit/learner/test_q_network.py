"""The network of action values: what its heads compute, and what they have in common."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from asyncrl.errors import ConfigError
from asyncrl.learner.model_config import ModelConfig
from asyncrl.learner.q_network import QNetwork, QShape, build_q_network
from tests.unit.learner.spaces_served import FRAMES, VECTOR, AnySpace, rows_of, served, tensors

ACTIONS = spaces.Discrete(3)
DICT = spaces.Dict({"frame": FRAMES, "speed": VECTOR, "gear": spaces.Discrete(4)})
SHAPES: list[dict[str, Any]] = [
    {},
    {"dueling": True},
    {"num_atoms": 5},
    {"num_atoms": 5, "dueling": True},
    {"num_atoms": 5, "dueling": True, "sigma0": 0.5},
]
EACH = pytest.mark.parametrize("shape", SHAPES, ids=str)


def made(shape: dict[str, Any], observation: AnySpace = VECTOR, seed: int = 1, **settings: Any) -> QNetwork:
    config = ModelConfig(hidden_sizes=(8,), activation="relu", **settings)
    return build_q_network(served(observation, ACTIONS), config, QShape(**shape), seed)


@EACH
@pytest.mark.parametrize("space", [VECTOR, FRAMES, DICT], ids=["vector", "frames", "dict"])
@torch.no_grad()
def test_rows_do_not_see_each_other(shape: dict[str, Any], space: AnySpace) -> None:
    """One value per action; the same in a batch and alone, with whatever noise is set."""
    model = made(shape, space)
    model.draw_noise(np.random.default_rng(1))
    obs = tensors(rows_of(space, 4))
    q = model.q_values(obs)
    assert q.shape == (4, 3) and q.dtype == torch.float32
    for row in range(4):
        alone = model.q_values([leaf[row : row + 1] for leaf in obs])
        torch.testing.assert_close(alone[0], q[row], atol=1e-4, rtol=1e-4)
    out = model.step(obs, torch.zeros(4, dtype=torch.bool), [])
    assert torch.equal(out.params, q) and torch.equal(out.value, q.max(1).values) and out.carry == []


@torch.no_grad()
def test_dueling_advantages_have_no_mean() -> None:
    """The mean over actions is the value of the state; a constant in all advantages changes nothing."""
    model = made({"dueling": True})
    obs = tensors(rows_of(VECTOR, 6))
    before = model.q_values(obs)
    assert model.value_out is not None
    state = model.value_out(model.torso(obs)[0]).squeeze(1)
    torch.testing.assert_close(before.mean(1), state, atol=1e-5, rtol=1e-5)
    model.advantage.bias.add_(7.0)
    torch.testing.assert_close(model.q_values(obs), before, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_dueling_of_distributions_is_before_the_softmax() -> None:
    """softmax(V + A - mean A) per action, and its mean over the support: written out by hand."""
    model = made({"dueling": True, "num_atoms": 5, "v_min": -2.0, "v_max": 2.0})
    obs = tensors(rows_of(VECTOR, 6))
    features = model.torso(obs)[0]
    assert model.value_out is not None
    advantage, state = model.advantage(features).view(6, 3, 5), model.value_out(features)
    expected = torch.zeros(6, 3)
    for row in range(6):
        mean = sum(advantage[row, action] for action in range(3)) / 3
        for action in range(3):
            weights = (state[row] + advantage[row, action] - mean).exp()
            expected[row, action] = (weights / weights.sum() * torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0])).sum()
    torch.testing.assert_close(model.q_values(obs), expected, atol=1e-5, rtol=1e-5)


@EACH
def test_equal_seeds_give_equal_weights(shape: dict[str, Any]) -> None:
    """And another seed others; what else is random in the process does not matter."""
    torch.manual_seed(99)
    first, second, other = made(shape), made(shape), made(shape, seed=2)
    state = first.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in second.state_dict().items())
    assert any(not torch.equal(state[name], tensor) for name, tensor in other.state_dict().items())


@pytest.mark.parametrize("space", [VECTOR, FRAMES], ids=["vector", "frames"])
def test_weights_begin_as_published(space: AnySpace) -> None:
    """Uniform within 1/√inputs, weights and biases of every layer."""
    model = made({"dueling": True}, space)
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    assert len(layers) == (3 if space is VECTOR else 6)
    for layer in layers:
        bound = float(np.prod(layer.weight.shape[1:])) ** -0.5
        for tensor in (layer.weight, layer.bias):
            assert tensor is not None
            assert 0.0 < float(tensor.detach().abs().max()) <= bound
        if layer.weight.numel() > 1000:
            assert float(layer.weight.detach().std()) == pytest.approx(bound / 3**0.5, rel=0.05)


def test_networks_of_the_user_begin_as_the_user_has_it() -> None:
    """Nothing is drawn over what it begins with."""

    class Theirs(nn.Module):
        num_features = 2

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)
            nn.init.constant_(self.layer.weight, 0.25)

        def forward(self, obs: list[Tensor]) -> Tensor:
            found: Tensor = self.layer(obs[0])
            return found

    model = build_q_network(served(VECTOR, ACTIONS), ModelConfig(network=lambda *_: Theirs()), QShape(), 1)
    weight = next(p for name, p in model.named_parameters() if name.endswith("layer.weight"))
    assert bool((weight == 0.25).all())


def test_the_trunk_is_one() -> None:
    """No parameter without use: each gets a gradient."""
    model = made({"dueling": True})
    model.q_values(tensors(rows_of(VECTOR, 4))).square().sum().backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("action", [VECTOR, spaces.MultiDiscrete([2, 2]), spaces.Dict({"a": ACTIONS})], ids=str)
def test_actions_that_cannot_be_counted_are_refused(action: AnySpace) -> None:
    """By a line that says what to take instead."""
    with pytest.raises(ConfigError, match=r"Test-v0 are no Discrete space: take ppo"):
        build_q_network(served(VECTOR, action), ModelConfig(), QShape(), 1)


def test_noise_is_drawn_where_there_are_noisy_layers() -> None:
    """One normal number per input and unit of each; a network without takes nothing from the generator."""
    noisy, plain = made({"sigma0": 0.5}), made({})
    assert (noisy.noise.num_noise, plain.noise.num_noise) == ((4 + 8) + (8 + 3), 0)
    rng = np.random.default_rng(1)
    plain.draw_noise(rng)
    assert rng.bit_generator.state == np.random.default_rng(1).bit_generator.state
    obs = tensors(rows_of(VECTOR, 4))
    noisy.draw_noise(rng)
    first = noisy.q_values(obs)
    noisy.draw_noise(rng)
    assert not torch.equal(noisy.q_values(obs), first)


def test_the_support_is_no_weight() -> None:
    """It follows from the settings: neither published with the weights nor part of a checkpoint."""
    network = build_q_network(served(VECTOR, spaces.Discrete(2)), ModelConfig(), QShape(num_atoms=5), 1)
    assert len(network.support) == 5
    assert "support" not in network.state_dict()


def test_a_step_tells_values_and_the_best_of_them() -> None:
    """What any model says of a row: parameters of what is done, a value, and no carry."""
    network = build_q_network(served(VECTOR, spaces.Discrete(3)), ModelConfig(), QShape(dueling=True), 1)
    obs = tensors(rows_of(VECTOR, 5))
    with torch.no_grad():
        out, values = network.step(obs, torch.zeros(5, dtype=torch.bool), []), network.q_values(obs)
    assert torch.equal(out.params, values)
    assert torch.equal(out.value, values.max(1).values)
    assert out.carry == []
