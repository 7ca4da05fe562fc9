"""Q-learners on environments whose action values are known, without a server."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from asyncrl.config import DQNConfig
from asyncrl.learner.dqn import DQN
from asyncrl.learner.publishing import mailbox_for, publish
from asyncrl.records import Array
from tests.rig.probe_envs import (
    ConstantObs,
    DelayedReward,
    MarkedEnd,
    RandomObs,
    RewardByAction,
    RewardByBoth,
    Timeout,
)
from tests.rig.sync_driver import SyncDriver, spec_of

CONFIG = DQNConfig(
    num_envs=8,
    num_steps=16,
    total_timesteps=100_000,
    hidden_sizes=(32,),
    learning_rate=1e-2,
    minibatch_size=64,
    learning_starts=100,
    gradient_steps=16,
    target_network_frequency=128,
    start_e=0.5,
    end_e=0.5,
)
KINDS: list[dict[str, Any]] = [
    {},
    {"double": True, "dueling": True, "n_step": 3, "prioritized": True, "actor_priorities": True, "loss": "huber"},
    {"num_atoms": 21, "v_min": -2.0, "v_max": 2.0, "prioritized": True},
    {"noisy": True, "dueling": True, "sigma0": 0.3},
]
EACH = pytest.mark.parametrize("kind", KINDS, ids=["plain", "apex", "c51", "noisy"])


def trained(make: Callable[[], gym.Env[Any, Any]], rounds: int, config: DQNConfig = CONFIG) -> DQN:
    learner = DQN(spec_of(make()), config, torch.device("cpu"))
    box = mailbox_for(learner.model)
    publish(learner.model, box, 0)
    policy = learner.policy(box, deterministic=False, threads=0)
    with SyncDriver(make, config.num_envs) as driver:
        for round_ in range(rounds):
            learner.update([driver.unroll(policy, config.num_steps)], round_ / rounds)
            publish(learner.model, box, round_ + 1)
    return learner


def said(learner: DQN, *obs: list[float]) -> Array:
    """Values [N, 2] of what may be seen."""
    learner.model.noise.set_noise(None)
    with torch.no_grad():
        found: Array = learner.model.q_values([torch.tensor(obs)]).numpy()
    return found


def of(kind: dict[str, Any], **changes: Any) -> DQNConfig:
    return dataclasses.replace(CONFIG, **(kind | changes))


@EACH
def test_values_of_a_constant(kind: dict[str, Any]) -> None:
    """Reward 1 and the end: Q = 1 for both actions."""
    q = said(trained(ConstantObs, 70, of(kind)), [0.0])
    np.testing.assert_allclose(q, [[1.0, 1.0]], atol=0.05)


def test_values_depend_on_what_is_seen() -> None:
    """The reward is what is seen."""
    q = said(trained(RandomObs, 40), [1.0], [-1.0])
    np.testing.assert_allclose(q, [[1.0, 1.0], [-1.0, -1.0]], atol=0.05)


@EACH
def test_values_are_discounted(kind: dict[str, Any]) -> None:
    """A reward of 1 at the second of two steps: Q = γ, then 1; with n steps in one."""
    q = said(trained(DelayedReward, 40, of(kind, gamma=0.5)), [0.0], [1.0])
    np.testing.assert_allclose(q, [[0.5, 0.5], [1.0, 1.0]], atol=0.05)


@EACH
def test_the_better_action_depends_on_what_is_seen(kind: dict[str, Any]) -> None:
    """Each observation has an action of its own, worth 1, and the other is worth -1."""
    q = said(trained(RewardByBoth, 40, of(kind)), [1.0], [-1.0])
    np.testing.assert_allclose(q, [[-1.0, 1.0], [1.0, -1.0]], atol=0.1)


@EACH
def test_what_is_learned_is_done(kind: dict[str, Any]) -> None:
    """Greedily every episode pays 1, whatever training did."""
    learner = trained(RewardByAction, 40, of(kind))
    policy = learner.policy(None, deterministic=True, threads=0)
    with SyncDriver(RewardByAction, 8) as driver:
        driver.unroll(policy, 20)
        assert driver.returns == [1.0] * 160


def test_a_time_limit_is_no_end() -> None:
    """Reward 1 for ever, truncated every 10 steps: Q nears 50, and would stay below 10 if that were an end."""
    config = of({}, learning_rate=2e-2, hidden_sizes=(8,), n_step=3, gamma=0.98, loss="huber")
    q = said(trained(Timeout, 100, config), [1.0])
    assert q.min() > 35.0 and q.max() < 55.0  # 50 is the truth


@pytest.mark.parametrize("n_step", [1, 3])
def test_a_truncation_is_bootstrapped_from_the_last_observation(n_step: int) -> None:
    """What is seen at the truncation is worth 1, so the step before is worth γ = .5."""
    q = said(trained(MarkedEnd, 60, of({}, gamma=0.5, n_step=n_step)), [1.0], [-1.0])
    np.testing.assert_allclose(q, [[1.0, 1.0], [0.5, 0.5]], atol=0.05)


# ---------------------------------------------------------------------------------------------------------- a table


def cliff() -> gym.Env[Any, Any]:
    return gym.make("CliffWalking-v1", max_episode_steps=100)


def optimal_values(gamma: float) -> Array:
    """f8 [48, 4] by value iteration over the environment's own table."""
    table: Any = cliff().unwrapped
    q = np.zeros((48, 4))
    for _ in range(1000):
        value = q.max(1)
        q = np.array(
            [
                [
                    sum(p * (r + gamma * (0.0 if end else value[after])) for p, after, r, end in table.P[state][action])
                    for action in range(4)
                ]
                for state in range(48)
            ]
        )
    return q


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("changes", [{}, {"double": True, "prioritized": True}], ids=["plain", "double"])
def test_a_table_is_learned(changes: dict[str, Any]) -> None:
    """One-hot states of CliffWalking under random actions: |Q - Q*| < .5 wherever an action was tried."""
    config = DQNConfig(
        num_envs=16,
        num_steps=20,
        total_timesteps=100_000,
        buffer_size=40_000,
        hidden_sizes=(),
        gamma=0.9,
        learning_rate=1.0,
        anneal_lr=True,
        minibatch_size=256,
        learning_starts=10_000,
        gradient_steps=60,  # of six seeds the worst is off by .12; with half as many, by 2.5
        target_network_frequency=320,
        end_e=1.0,
        **changes,
    )
    learner = trained(cliff, 170, config)
    visited = np.zeros((48, 4), np.bool_)
    rng = np.random.default_rng(1)
    for _ in range(40):
        drawn = learner.replay.sample(1000, rng)
        visited[drawn.obs[0], drawn.action[0]] = True
    assert visited.sum() > 140
    with torch.no_grad():
        q = learner.model.q_values([torch.arange(48)]).numpy()
    error = np.abs(q - optimal_values(0.9))
    assert error[visited].max() < 0.5
