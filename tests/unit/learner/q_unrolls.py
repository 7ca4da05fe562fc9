"""Q-learners in CartPole without a server, and the unrolls that they make."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from asyncrl.config import DQNConfig
from asyncrl.learner.dqn import DQN
from asyncrl.learner.publishing import mailbox_for, publish
from asyncrl.learner.q_policy import QPolicy
from asyncrl.records import Unroll
from asyncrl.wire.spec import LaneSpec
from tests.rig.sync_driver import SyncDriver, spec_of
from tests.unit.learner.unrolls import cartpole

Make = Callable[[], gym.Env[Any, Any]]
CONFIG = DQNConfig(
    num_envs=4,
    num_steps=8,
    hidden_sizes=(16,),
    minibatch_size=16,
    buffer_size=4000,
    learning_starts=0,
    learning_rate=1e-3,
    target_network_frequency=32,
    total_timesteps=4000,
)


def learner_for(config: DQNConfig = CONFIG, spec: LaneSpec | None = None) -> DQN:
    return DQN(spec or spec_of(cartpole()), config, torch.device("cpu"))


def following(learner: DQN) -> QPolicy:
    """Acts with the weights of now."""
    box = mailbox_for(learner.model)
    publish(learner.model, box, 0)
    return learner.policy(box, deterministic=False, threads=0)


def collected(learner: DQN, num_steps: int, make: Make = cartpole, count: int = 1) -> list[Unroll]:
    """Unrolls one after the other, by the learner's first weights."""
    with SyncDriver(make, learner.config.num_envs) as driver:
        policy = following(learner)
        return [driver.unroll(policy, num_steps) for _ in range(count)]


def masked(unroll: Unroll, seed: int = 1) -> Unroll:
    """With masks that forbid one of two actions in half of all places, and never the one that was taken."""
    rng = np.random.default_rng(seed)

    def mask(*shape: int) -> Any:
        allowed = rng.random((*shape, 2)) < 0.5
        return allowed | ~allowed.any(-1, keepdims=True)

    rows = mask(*unroll.valid.shape) | (unroll.action[0][..., None] == np.arange(2))
    slots, ends = mask(unroll.num_slots), mask(len(unroll.end_rows))
    return dataclasses.replace(unroll, mask=rows, last_mask=slots, end_mask=ends)
