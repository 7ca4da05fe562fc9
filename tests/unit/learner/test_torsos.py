"""Which torso a space and a configuration get, and networks of the user's own."""

from __future__ import annotations

import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from asyncrl.errors import ConfigError
from asyncrl.learner.convolutions import ImpalaCNN, NatureCNN
from asyncrl.learner.model import build_model
from asyncrl.learner.model_config import ModelConfig
from asyncrl.learner.torsos import ConvTorso, CustomTorso, MLPTorso, build_torso
from asyncrl.wire.spec import LaneSpec
from tests.unit.learner.spaces_served import FRAMES, VECTOR, rows_of, served, tensors

MIXED = spaces.Dict({"frames": FRAMES, "map": FRAMES, "speed": VECTOR, "gear": spaces.Discrete(5)})


class Doubling(nn.Module):
    """Features are the observation times a learnt number."""

    num_features = 4

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(2.0))

    def forward(self, obs: list[Tensor]) -> Tensor:
        return obs[0] * self.factor


class TwoSided(nn.Module):
    """Features for the policy and others for the value."""

    num_features = (2, 1)

    def forward(self, obs: list[Tensor]) -> tuple[Tensor, Tensor]:
        return obs[0][:, :2], obs[0][:, 2:3]


def doubling(spec: LaneSpec, config: ModelConfig) -> nn.Module:
    """A custom network as a user would write it."""
    assert spec.observation.leaves[0].shape == (4,)
    assert isinstance(config, ModelConfig)
    return Doubling()


def test_auto_goes_by_the_space() -> None:
    """Frames get Nature's convolutions, all else dense layers, both together both."""
    assert isinstance(build_torso(served(VECTOR, spaces.Discrete(2)), ModelConfig()), MLPTorso)
    frames = build_torso(served(FRAMES, spaces.Discrete(2)), ModelConfig())
    assert isinstance(frames, ConvTorso)
    assert isinstance(frames.convolutions[0], NatureCNN)
    assert frames.num_features == (512, 512)
    mixed = build_torso(served(MIXED, spaces.Discrete(2)), ModelConfig(hidden_sizes=(32,)))
    assert isinstance(mixed, ConvTorso)
    assert len(mixed.convolutions) == 2
    assert mixed.encoder is not None
    assert mixed.encoder.num_features == 9
    policy, value = mixed(tensors(rows_of(MIXED, 3)))
    assert policy is value
    assert policy.shape == (3, 32)


def test_networks_by_name() -> None:
    """`impala` on frames; `mlp` on frames flattens them, each byte divided once."""
    impala = build_torso(served(FRAMES, spaces.Discrete(2)), ModelConfig(network="impala"))
    assert isinstance(impala, ConvTorso)
    assert isinstance(impala.convolutions[0], ImpalaCNN)
    flat = build_torso(served(FRAMES, spaces.Discrete(2)), ModelConfig(network="mlp"))
    assert isinstance(flat, MLPTorso)
    frames = torch.full((2, 4, 84, 84), 255, dtype=torch.uint8)
    assert flat.encoder([frames]).tolist() == [[1.0] * (4 * 84 * 84)] * 2


def test_trunks_are_shared_or_not() -> None:
    """Separate trunks share no weight; a shared one, and any before a GRU, is one network."""
    spec = served(VECTOR, spaces.Discrete(2))
    obs = tensors(rows_of(VECTOR, 3))
    separate, shared = (build_torso(spec, ModelConfig(share_trunk=share)) for share in (False, True))
    policy, value = separate(obs)
    assert not torch.equal(policy, value)
    assert len(list(separate.parameters())) == 2 * len(list(shared.parameters()))
    policy, value = shared(obs)
    assert policy is value
    recurrent = build_torso(spec, ModelConfig(gru_size=1))
    assert len(list(recurrent.parameters())) == len(list(shared.parameters()))


@pytest.mark.parametrize("network", [doubling, f"{__name__}:doubling"], ids=["function", "path"])
def test_a_network_of_the_users_own(network: object) -> None:
    """Given as a function or by import path, it stands where the torso stands, and its weights are the model's."""
    config = ModelConfig(network=network)  # type: ignore[arg-type]
    model = build_model(served(VECTOR, spaces.Discrete(3)), config, seed=1)
    assert isinstance(model.torso, CustomTorso)
    obs = tensors(rows_of(VECTOR, 5))
    out = model.step(obs, torch.zeros(5, dtype=torch.bool), [])
    assert torch.equal(out.params, model.head.project(obs[0] * 2.0))
    assert "torso.network.factor" in dict(model.named_parameters())


def test_a_network_of_two_sides() -> None:
    """A pair of features feeds policy and value; a GRU behind it has no place."""
    spec = served(VECTOR, spaces.Discrete(3))
    model = build_model(spec, ModelConfig(network=lambda _spec, _config: TwoSided()), seed=1)
    obs = tensors(rows_of(VECTOR, 5))
    out = model.step(obs, torch.zeros(5, dtype=torch.bool), [])
    assert torch.equal(out.params, model.head.project(obs[0][:, :2]))
    assert torch.allclose(out.value, obs[0][:, 2] * model.value_out.weight[0, 0])
    with pytest.raises(ConfigError, match="GRU"):
        build_model(spec, ModelConfig(network=lambda _spec, _config: TwoSided(), gru_size=4), seed=1)


@pytest.mark.parametrize(
    ("network", "text"),
    [
        ("impala", "have none: pass mlp or auto"),
        ("resnet", "none of auto, mlp, nature, impala, nor module:function"),
        ("no.such.module:make", "cannot be imported"),
        ("asyncrl.errors:make", "cannot be imported"),
        (lambda _spec, _config: nn.Identity(), "num_features"),
    ],
    ids=["no frames", "no such name", "no such module", "no such function", "no size"],
)
def test_what_is_no_network_is_refused(network: object, text: str) -> None:
    """The error says what would do."""
    with pytest.raises(ConfigError, match=text):
        build_torso(served(VECTOR, spaces.Discrete(2)), ModelConfig(network=network))  # type: ignore[arg-type]
