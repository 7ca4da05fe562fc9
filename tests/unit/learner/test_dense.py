"""`DenseTorso` against the torso that it stands in for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from asyncrl.learner.dense import DenseTorso, Layer, fits
from asyncrl.learner.model import ActorCritic, build_model
from asyncrl.learner.model_config import ModelConfig
from asyncrl.learner.publishing import tensors_of
from asyncrl.learner.torsos import MLPTorso
from asyncrl.wire.tensors import Array
from tests.unit.learner.spaces_served import FRAMES, VECTOR, AnySpace, rows_of, served, tensors

MIXED = spaces.Dict({"speed": VECTOR, "gear": spaces.Discrete(5, start=2), "bits": spaces.MultiBinary(3)})
MATRIX = spaces.Box(-1.0, 1.0, (3, 2), np.float32)
DOUBLES = spaces.Box(-1.0, 1.0, (3,), np.float64)
BYTES = spaces.Box(0, 255, (6,), np.uint8)
ACTIONS = spaces.Discrete(3)


def made(observation: AnySpace = VECTOR, **settings: Any) -> ActorCritic:
    return build_model(served(observation, ACTIONS), ModelConfig(**settings), seed=1)


def dense(model: ActorCritic) -> DenseTorso:
    assert isinstance(model.torso, MLPTorso)
    return DenseTorso(model.torso, model.normaliser)


@torch.no_grad()
def plain(model: ActorCritic, obs: list[Array]) -> list[Array]:
    """The torso's own."""
    leaves = tensors(obs)
    policy, value = model.torso(leaves if model.normaliser is None else model.normaliser(leaves))
    return [policy.numpy(), value.numpy()]


def same(model: ActorCritic, obs: list[Array]) -> bool:
    pairs = zip(dense(model)(obs), plain(model, obs), strict=True)
    return all(ours.shape == theirs.shape and np.allclose(ours, theirs, atol=2e-6) for ours, theirs in pairs)


@pytest.mark.parametrize("space", [VECTOR, MIXED, MATRIX, DOUBLES, BYTES, spaces.Discrete(7)], ids=str)
@pytest.mark.parametrize("settings", [{}, {"normalize_obs": True}, {"share_trunk": True}], ids=str)
def test_features_are_those_of_the_torso(space: AnySpace, settings: dict[str, Any]) -> None:
    """Of every kind of leaf, whatever comes before the layers."""
    model = made(space, **settings)
    if model.normaliser is not None:
        model.normaliser.update(tensors(rows_of(space, 50, seed=3)), torch.ones(50, dtype=torch.bool))
    assert same(model, rows_of(space, 9))


@pytest.mark.parametrize("activation", ["tanh", "relu", "elu"])
@pytest.mark.parametrize("sizes", [(), (16,), (64, 64), (32, 16, 8)])
@pytest.mark.parametrize("rows", [1, 63, 64, 65, 200])
def test_layers_of_any_shape(activation: str, sizes: tuple[int, ...], rows: int) -> None:
    """For few rows and for so many that torch multiplies."""
    assert same(made(hidden_sizes=sizes, activation=activation), rows_of(VECTOR, rows))


def test_large_products_are_those_of_torch() -> None:
    """As many rows as NumPy multiplies with one thread, one more, and none."""
    layer = torch.nn.Linear(128, 256)
    mine = Layer(layer)
    assert mine.most_rows == 8
    for rows in (0, 1, 8, 9, 100):
        x = np.random.default_rng(rows).standard_normal((rows, 128), np.float32)
        with torch.no_grad():
            assert np.allclose(mine(x), layer(torch.from_numpy(x)), atol=1e-5)


def test_new_weights_count_at_once() -> None:
    """What is written into the tensors is what the next forward computes with."""
    model = made()
    torso, obs = dense(model), rows_of(VECTOR, 5)
    before = torso(obs)[0]
    with torch.no_grad():
        for tensor in tensors_of(model):
            tensor.mul_(0.5)
    after = torso(obs)[0]
    assert not np.allclose(before, after)
    assert np.allclose(after, plain(model, obs)[0], atol=2e-6)


@pytest.mark.parametrize("sizes", [(), (8,)])
def test_observations_are_left_alone(sizes: tuple[int, ...]) -> None:
    """They come off the wire read-only, and features of no layers are the observations themselves."""
    (rows,) = rows_of(VECTOR, 5)
    rows.flags.writeable = False
    model = made(hidden_sizes=sizes)
    (features, _), copy = dense(model)([rows]), rows.copy()
    Layer(model.value_out)(features)
    assert np.array_equal(rows, copy)


def test_huge_numbers_make_no_noise() -> None:
    """As in torch: an observation that is finite but too large gives saturated features and no warning."""
    huge = [np.full((2, 4), 3e38, np.float32)]
    assert np.isfinite(dense(made())(huge)[0]).all()


@pytest.mark.parametrize(
    ("settings", "space", "fit"),
    [
        ({}, VECTOR, True),
        ({"hidden_sizes": (256, 256)}, VECTOR, True),
        ({"hidden_sizes": (512, 512)}, VECTOR, False),
        ({"gru_size": 8}, VECTOR, False),
        ({"bf16": True}, VECTOR, False),
        ({"compile": True}, VECTOR, False),
        ({}, FRAMES, False),
        ({"network": "mlp", "hidden_sizes": (8,)}, FRAMES, True),
    ],
    ids=str,
)
def test_who_fits(settings: dict[str, Any], space: AnySpace, fit: bool) -> None:
    """Dense layers that are small, in single precision, without a memory."""
    assert fits(made(space, **settings)) is fit
