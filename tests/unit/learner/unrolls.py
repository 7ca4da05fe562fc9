"""Unrolls for tests of the update: acted by a real model in CartPole, then cut up as broken lanes would be."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

import gymnasium as gym
import numpy as np

from asyncrl.config import PPOConfig
from asyncrl.learner.model import ActorCritic, build_model
from asyncrl.learner.model_config import ModelConfig
from asyncrl.learner.ppo import PPO
from asyncrl.learner.torch_policy import TorchPolicy
from asyncrl.records import Array, Unroll
from tests.rig.sync_driver import SyncDriver, spec_of

ROWS: Final = ("log_prob", "value", "first", "reward", "terminated", "truncated", "cut", "soft", "valid")
NAMES: Final = ("incarnation", "episode", "t")
BY_SLOT: Final = (*ROWS, *NAMES, "obs", "action", "last_obs", "last_first", "carry", "fleet_slots")


def cartpole() -> gym.Env[Any, Any]:
    """CartPole with episodes of at most 30 steps, so that some are truncated."""
    return gym.make("CartPole-v1", max_episode_steps=30)


def model_for(config: PPOConfig, env: gym.Env[Any, Any] | None = None) -> ActorCritic:
    return build_model(spec_of(env or cartpole()), ModelConfig.of(config), config.seed)


def learner_for(config: PPOConfig) -> PPO:
    return PPO(model_for(config), config)


def acted(model: ActorCritic, num_steps: int = 32, num_envs: int = 4, seed: int = 1) -> Unroll:
    """The first unroll that the model makes of CartPole."""
    with SyncDriver(cartpole, num_envs, seed) as driver:
        carry = [leaf.numpy() for leaf in model.initial_carry(num_envs)]
        return driver.unroll(TorchPolicy(model, seed), num_steps, carry)


def lanes_of(unroll: Unroll, widths: Sequence[int]) -> list[Unroll]:
    """The same slots as the unrolls of several lanes."""
    found, start = [], 0
    for lane, width in enumerate(widths):
        slots = slice(start, start + width)
        here = (unroll.end_rows[:, 1] >= start) & (unroll.end_rows[:, 1] < start + width)
        changed = {name: _slots(getattr(unroll, name), slots, name) for name in BY_SLOT}
        found.append(
            dataclasses.replace(
                unroll,
                lane=lane,
                end_rows=unroll.end_rows[here] - np.array([0, start]),
                end_obs=[leaf[here] for leaf in unroll.end_obs],
                **changed,
            )
        )
        start += width
    return found


def _slots(field: Any, slots: slice, name: str) -> Any:
    if isinstance(field, list):
        return [leaf[slots] if name in ("last_obs", "carry") else leaf[:, slots] for leaf in field]
    return field[slots] if name in ("last_first", "fleet_slots") else field[:, slots]


def lost_at(unroll: Unroll, t: int, slots: Sequence[int]) -> Unroll:
    """The lane of these slots broke after row t: what follows is void, and row t is cut if its episode was open.

    Void rows and the void last observations hold NaN.
    """
    gone = np.zeros(unroll.valid.shape, np.bool_)
    gone[t + 1 :, list(slots)] = True
    cut = np.zeros_like(gone)
    cut[t, list(slots)] = ~(unroll.terminated | unroll.truncated)[t, list(slots)]
    kept = ~gone[unroll.end_rows[:, 0], unroll.end_rows[:, 1]]
    ends = np.concatenate([unroll.end_rows[kept], np.argwhere(cut)])
    end_obs = np.concatenate([unroll.end_obs[0][kept], unroll.obs[0][t + 1, np.argwhere(cut)[:, 1]]])
    order = np.lexsort((ends[:, 1], ends[:, 0]))
    obs, last = unroll.obs[0].copy(), unroll.last_obs[0].copy()
    obs[gone], last[list(slots)] = np.nan, np.nan
    fields = {name: getattr(unroll, name).copy() for name in ("reward", "log_prob", "value")}
    for array in fields.values():
        array[gone] = np.nan
    return dataclasses.replace(
        unroll,
        obs=[obs],
        last_obs=[last],
        valid=unroll.valid & ~gone,
        cut=cut,
        end_rows=ends[order],
        end_obs=[end_obs[order]],
        **fields,
    )


def changed(unroll: Unroll, **fields: Array | list[Array]) -> Unroll:
    return dataclasses.replace(unroll, **fields)  # type: ignore[arg-type]
