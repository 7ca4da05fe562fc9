"""What PPO and IMPALA do alike: the guarded step, the state, and what is told of values."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
import torch

from asyncrl.config import ImpalaConfig, PPOConfig
from asyncrl.learner.actor_critic import NonFiniteUpdate, explained_variance
from asyncrl.learner.dense_policy import DensePolicy
from asyncrl.learner.impala import Impala
from asyncrl.learner.model import build_model
from asyncrl.learner.model_config import ModelConfig
from asyncrl.learner.ppo import PPO
from asyncrl.learner.publishing import mailbox_for, publish
from asyncrl.learner.torch_policy import TorchPolicy
from tests.rig.sync_driver import spec_of
from tests.unit.learner.unrolls import acted, cartpole, lost_at

Config = PPOConfig | ImpalaConfig
Learner = PPO | Impala
SETTINGS = {"num_envs": 4, "num_steps": 32, "learning_rate": 1e-3, "anneal_lr": False}
PLAIN = PPOConfig(**SETTINGS, update_epochs=1, num_minibatches=1)  # type: ignore[arg-type]
SUMS = ImpalaConfig(**SETTINGS, batch_steps=0)  # type: ignore[arg-type]
EACH = pytest.mark.parametrize("config", [PLAIN, SUMS], ids=["ppo", "impala"])


def learner_for(config: Config) -> Learner:
    model = build_model(spec_of(cartpole()), ModelConfig.of(config), config.seed)
    return PPO(model, config) if isinstance(config, PPOConfig) else Impala(model, config)


@EACH
@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_step_along_nothing_finite_is_not_taken(config: Config, loss: float) -> None:
    """`raise`: a typed error; `cut`: None; no weight and no moment has changed in either."""
    for nonfinite in ("raise", "cut"):
        learner = learner_for(dataclasses.replace(config, nonfinite=nonfinite))
        weights, moments = learner.optimiser.flat.clone(), learner.optimiser.state()
        bad = learner.optimiser.parameters[0].square().sum() * loss
        if nonfinite == "raise":
            with pytest.raises(NonFiniteUpdate, match=f"the loss is {loss}"):
                learner._descend(bad, 1e-3)
        else:
            assert learner._descend(bad, 1e-3) is None
        assert torch.equal(weights, learner.optimiser.flat)
        assert all(torch.equal(moments[name], tensor) for name, tensor in learner.optimiser.state().items())


@EACH
def test_the_norm_is_that_before_the_limit(config: Config) -> None:
    """A loss of 3 times the sum of a weight's entries has a gradient of 3 √n."""
    learner = learner_for(dataclasses.replace(config, max_grad_norm=0.5))
    weight = learner.optimiser.parameters[0]
    assert learner._descend(3.0 * weight.sum(), 0.0) == pytest.approx(3.0 * weight.numel() ** 0.5, rel=1e-5)


@EACH
@pytest.mark.parametrize(
    "changes",
    [{}, {"gru_size": 8, "optimizer": "rmsprop"}, {"normalize_obs": True, "normalize_reward": True}],
    ids=["plain", "gru-rmsprop", "normalised"],
)
def test_a_loaded_learner_goes_on_bit_for_bit(config: Config, changes: dict[str, Any]) -> None:
    """Weights, moments, normalisers and, with several minibatches, the order of shuffles: two more updates give the
    same bits in both, and what was saved stays as it was."""
    shuffled: dict[str, Any] = {"update_epochs": 4, "num_minibatches": 4} if isinstance(config, PPOConfig) else {}
    config = dataclasses.replace(config, **(shuffled | changes))
    first = learner_for(config)
    unrolls = [acted(first.model, seed=seed) for seed in range(4)]
    for unroll in unrolls[:2]:
        first.update([unroll], 0.1)
    tensors, rest = first.state()
    second = learner_for(dataclasses.replace(config, seed=99))
    second.load(tensors, json.loads(json.dumps(rest)))
    saved = {name: tensor.clone() for name, tensor in tensors.items()}
    for unroll in unrolls[2:]:
        assert first.update([unroll], 0.2) == second.update([unroll], 0.2)
    ours, theirs = first.state()[0], second.state()[0]
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name
        assert torch.equal(saved[name], tensors[name]), f"{name} of the saved state has changed"


@EACH
def test_the_state_of_another_network_is_refused(config: Config) -> None:
    """Other sizes are an error of the model, another optimiser's moments one of the optimiser; both are typed."""
    learner = learner_for(config)
    wide = learner_for(dataclasses.replace(config, hidden_sizes=(16,)))
    with pytest.raises(RuntimeError):
        learner.load(*wide.state())
    tensors, rest = learner_for(dataclasses.replace(config, optimizer="rmsprop")).state()
    with pytest.raises(ValueError, match="another model"):
        learner.load(tensors, json.loads(json.dumps(rest)))


@EACH
def test_normalisers_follow_the_rows_that_are_trained_on(config: Config) -> None:
    """Valid rows are counted, after the update; rewards by slot, before it, since they are divided by what they did."""
    learner = learner_for(dataclasses.replace(config, normalize_obs=True, normalize_reward=True))
    normaliser = learner.model.normaliser
    assert normaliser is not None
    unroll = lost_at(acted(learner.model), 10, [1])
    for round_ in (1, 2):
        learner.update([unroll], 0.0)
        assert normaliser.state_dict()["moments.0.count"].item() == round_ * unroll.num_valid
    assert learner.model.rewards is not None
    assert learner.model.rewards.divisor != 1.0


def test_explained_variance_of_values() -> None:
    """1 for values that are the targets, 0 for a constant, NaN where there is nothing to explain."""
    target = np.array([1.0, 2.0, 4.0])
    assert explained_variance(target, target) == 1.0
    assert explained_variance(np.zeros(3), target) == pytest.approx(0.0)
    assert math.isnan(explained_variance(target, np.ones(3)))


@EACH
def test_a_policy_of_nobody_has_no_version(config: Config) -> None:
    """-1, which no round makes; one that follows a mailbox begins with the first weights there, version 0."""
    learner = learner_for(config)
    box = mailbox_for(learner.model)
    publish(learner.model, box, 0)
    rows = ([np.zeros((2, 4), np.float32)], None, np.zeros(2, np.bool_), (), None)
    versions = [learner.policy(each, deterministic=False, threads=0).act(*rows).version for each in (None, box)]
    assert versions == [-1, 0]


@pytest.mark.parametrize(("sizes", "kind"), [((64, 64), DensePolicy), ((1024, 1024), TorchPolicy)])
def test_a_policy_is_of_the_kind_that_acts_sooner(sizes: tuple[int, ...], kind: type) -> None:
    """NumPy for a small network, torch for a large one."""
    learner = learner_for(dataclasses.replace(PLAIN, hidden_sizes=sizes))
    assert type(learner.policy(None, deterministic=True, threads=0)) is kind
