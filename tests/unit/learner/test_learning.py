"""PPO and IMPALA on environments of a few steps whose values and best actions are known, without a server."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch

from asyncrl.config import ImpalaConfig, PPOConfig
from asyncrl.learner.impala import Impala
from asyncrl.learner.model import ActorCritic, build_model
from asyncrl.learner.model_config import ModelConfig
from asyncrl.learner.ppo import PPO
from asyncrl.learner.publishing import mailbox_for, publish
from asyncrl.learner.torch_policy import TorchPolicy
from asyncrl.records import Array
from tests.rig.probe_envs import (
    ConstantObs,
    DelayedReward,
    MarkedEnd,
    Probe,
    RandomObs,
    RewardByAction,
    RewardByBoth,
    Timeout,
)
from tests.rig.sync_driver import SyncDriver, spec_of

CONFIG = PPOConfig(num_envs=8, num_steps=32, learning_rate=3e-3, hidden_sizes=(32,), ent_coef=0.0, clip_vloss=False)


IMPALA = ImpalaConfig(
    num_envs=8, num_steps=32, batch_steps=0, learning_rate=1e-2, hidden_sizes=(32,), ent_coef=0.0, reduction="mean"
)


def trained(make: Callable[[], Probe], rounds: int, config: PPOConfig | ImpalaConfig = CONFIG) -> ActorCritic:
    """After that many rounds of 256 steps. IMPALA acts with weights of three rounds ago."""
    model = build_model(spec_of(make()), ModelConfig.of(config), config.seed)
    box = mailbox_for(model)
    learner = PPO(model, config) if isinstance(config, PPOConfig) else Impala(model, config)
    policy = TorchPolicy(model, config.seed, box)
    carry = [leaf.numpy() for leaf in model.initial_carry(config.num_envs)]
    with SyncDriver(make, config.num_envs) as driver:
        for round_ in range(rounds):
            learner.update([driver.unroll(policy, config.num_steps, carry)], round_ / rounds)
            if isinstance(config, PPOConfig) or round_ % 3 == 2:
                publish(model, box, round_ + 1)
    return model


def said(model: ActorCritic, *obs: list[float]) -> tuple[Array, Array]:
    """Values [N] and probabilities [N, 2] of what may be seen."""
    with torch.no_grad():
        first = torch.zeros(len(obs), dtype=torch.bool)
        out = model.step([torch.tensor(obs)], first, model.initial_carry(len(obs)))
    return out.value.numpy(), torch.softmax(out.params, -1).numpy()


@pytest.mark.parametrize("gru_size", [0, 8])
def test_values_of_a_constant(gru_size: int) -> None:
    """Reward 1 and the end: V = 1."""
    value, _ = said(trained(ConstantObs, 20, dataclasses.replace(CONFIG, gru_size=gru_size)), [0.0])
    np.testing.assert_allclose(value, [1.0], atol=0.05)


def test_values_depend_on_what_is_seen() -> None:
    """The reward is what is seen: V(obs) = obs."""
    value, _ = said(trained(RandomObs, 20), [1.0], [-1.0])
    np.testing.assert_allclose(value, [1.0, -1.0], atol=0.05)


def test_values_are_discounted() -> None:
    """A reward of 1 at the second of two steps: V = γ, then 1."""
    value, _ = said(trained(DelayedReward, 20, dataclasses.replace(CONFIG, gamma=0.5)), [0.0], [1.0])
    np.testing.assert_allclose(value, [0.5, 1.0], atol=0.05)


@pytest.mark.parametrize("changes", [{}, {"correction": "vtrace"}, {"gru_size": 8}])
def test_the_better_action_is_learned(changes: dict[str, object]) -> None:
    """Action 1 is worth 1, action 0 is worth -1."""
    config = dataclasses.replace(CONFIG, **changes)  # type: ignore[arg-type]
    value, chosen = said(trained(RewardByAction, 20, config), [0.0])
    assert chosen[0, 1] > 0.95
    np.testing.assert_allclose(value, [1.0], atol=0.1)


@pytest.mark.parametrize("gru_size", [0, 8])
def test_the_better_action_is_learned_from_old_data(gru_size: int) -> None:
    """IMPALA, three updates behind: action 1 is worth 1, and the value is that of the policy that learns."""
    value, chosen = said(trained(RewardByAction, 100, dataclasses.replace(IMPALA, gru_size=gru_size)), [0.0])
    assert chosen[0, 1] > 0.95
    np.testing.assert_allclose(value, [1.0], atol=0.1)


def test_old_data_are_bootstrapped_from_the_last_observation() -> None:
    """IMPALA: what is seen at the truncation is worth 1, so the step before is worth γ = .5."""
    value, _ = said(trained(MarkedEnd, 120, dataclasses.replace(IMPALA, gamma=0.5)), [1.0], [-1.0])
    np.testing.assert_allclose(value, [1.0, 0.5], atol=0.05)


def test_the_better_action_depends_on_what_is_seen() -> None:
    """Each observation has an action of its own."""
    value, chosen = said(trained(RewardByBoth, 20), [1.0], [-1.0])
    assert chosen[0, 1] > 0.95
    assert chosen[1, 0] > 0.95
    np.testing.assert_allclose(value, [1.0, 1.0], atol=0.1)


def test_a_time_limit_is_no_end() -> None:
    """Reward 1 for ever, truncated every 10 steps: V nears 100, and would stay below 10 if that were an end."""
    config = dataclasses.replace(CONFIG, learning_rate=2e-2, hidden_sizes=(8,), anneal_lr=False)
    value, _ = said(trained(Timeout, 80, config), [1.0])
    assert 60.0 < value[0] < 110.0


@pytest.mark.parametrize("changes", [{}, {"correction": "vtrace"}])
def test_a_truncation_is_bootstrapped_from_the_last_observation(changes: dict[str, object]) -> None:
    """What is seen at the truncation is worth 1, so the step before is worth γ = .5; with V of the reset it is .33."""
    config = dataclasses.replace(CONFIG, gamma=0.5, **changes)  # type: ignore[arg-type]
    value, _ = said(trained(MarkedEnd, 25, config), [1.0], [-1.0])
    np.testing.assert_allclose(value, [1.0, 0.5], atol=0.05)
