"""`SyncDriver`: unrolls from a local Gymnasium vector environment, without a server: the smallest of collectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from asyncrl.policy import Acted, Policy
from asyncrl.records import Array, Unroll
from asyncrl.wire.spec import LaneSpec
from envserver.gym_spec import space_spec


def spec_of(env: gym.Env[Any, Any]) -> LaneSpec:
    """What a lane that served this environment would say of it."""
    return LaneSpec("probe", space_spec(env.observation_space), space_spec(env.action_space))


class SyncDriver:
    """Steps B environments T times per unroll; observations and actions are of one leaf."""

    def __init__(self, make: Callable[[], gym.Env[Any, Any]], num_envs: int, seed: int = 1) -> None:
        self._envs = SyncVectorEnv([make] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
        self._num_envs = num_envs
        self._obs, _ = self._envs.reset(seed=seed)
        self._first = np.ones(num_envs, np.bool_)
        self._carry: list[Array] = []
        self._round = 0
        self._step = 0
        self._episode, self._t = np.zeros((2, num_envs), np.int64)
        self._score = np.zeros(num_envs)
        self.returns: list[float] = []  # raw, of every episode that ended

    def __enter__(self) -> SyncDriver:
        return self

    def __exit__(self, *_: object) -> None:
        self._envs.close()

    def unroll(self, policy: Policy, num_steps: int, carry: list[Array] | None = None) -> Unroll:
        """`carry`: the initial one of a recurrent policy, wanted at the first call."""
        self._carry = carry if carry is not None and not self._round else self._carry
        rows, ends = [], []
        start = [leaf.copy() for leaf in self._carry]
        for t in range(num_steps):
            row, last = self._one_step(policy)
            rows.append(row)
            ends += [(t, b, last[b]) for b in np.flatnonzero(row["truncated"] & ~row["terminated"])]
        kept = [np.stack(leaves) for leaves in zip(*(row.pop("kept") for row in rows), strict=True)]
        columns = {name: np.stack([row[name] for row in rows]) for name in rows[0] if name != "version"}
        every = np.ones((num_steps, self._num_envs), np.bool_)
        unroll = Unroll(
            lane=0,
            round=self._round,
            fleet_slots=np.arange(self._num_envs),
            obs=[columns.pop("obs")],
            action=[columns.pop("action")],
            mask=None,
            version=np.array([row["version"] for row in rows]),
            cut=~every,
            soft=~every,
            valid=every,
            end_rows=np.array([(t, b) for t, b, _ in ends], np.int64).reshape(-1, 2),
            end_obs=[np.array([obs for _, _, obs in ends], self._obs.dtype).reshape(-1, *self._obs.shape[1:])],
            last_obs=[self._obs.copy()],
            last_mask=None,
            last_first=self._first.copy(),
            carry=start,
            kept=kept,
            incarnation=np.zeros_like(every, np.int64),
            **columns,
        )
        self._round += 1
        return unroll

    def _one_step(self, policy: Policy) -> tuple[dict[str, Any], Array]:
        """The row, and the true next observations."""
        keys = (np.arange(self._num_envs, dtype=np.uint64) << np.uint64(40)) | np.uint64(self._step)
        acted = policy.act([self._obs], None, self._first, self._carry, keys)
        sent = acted.sent_action[0]
        after, reward, terminated, truncated, info = self._envs.step(sent)
        row = self._row(acted) | {"reward": reward, "terminated": terminated, "truncated": truncated}
        ended = terminated | truncated
        last = after.copy()
        for b in np.flatnonzero(ended):
            last[b] = info["final_obs"][b]
        self._score += reward
        self.returns += self._score[ended].tolist()
        self._score[ended] = 0.0
        self._episode, self._t = self._episode + ended, np.where(ended, 0, self._t + 1)
        self._obs, self._first, self._carry = after, ended, list(acted.carry)
        self._step += 1
        return row, last

    def _row(self, acted: Acted) -> dict[str, Any]:
        return {
            "obs": self._obs.copy(),
            "action": acted.action[0],
            "log_prob": acted.log_prob,
            "value": acted.value,
            "version": acted.version,
            "kept": acted.kept,
            "first": self._first,
            "episode": self._episode,
            "t": self._t,
        }
