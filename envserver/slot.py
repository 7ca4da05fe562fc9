"""One environment of a lane that is a loop over single environments, and the record of what became of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np

from asyncrl.wire.flags import RowState
from envserver.gym_spec import BadValue
from envserver.slot_keeper import SlotKeeper

AnyEnv = gymnasium.Env[Any, Any]


def _no_env(action: Any) -> Any:
    raise RuntimeError("this slot has no environment")


@dataclass(slots=True)
class Slot:
    """`plain` is true while the slot runs, so that the hot loop asks one question; `set_state` keeps it so."""

    fleet_slot: int
    incarnation: int
    keeper: SlotKeeper
    env: AnyEnv | None = None
    step: Callable[[Any], tuple[Any, Any, Any, Any, dict[Any, Any]]] = field(default=_no_env)
    state: RowState = RowState.UNBORN
    plain: bool = False
    cause: str = ""  # of the fault that took the environment away

    def install(self, env: AnyEnv) -> None:
        """Take an environment that has not been reset yet."""
        self.env, self.step = env, env.step

    def set_state(self, state: RowState) -> None:
        self.state = state
        self.plain = state == RowState.RUNNING and self.env is not None

    def discard(self) -> None:
        """Close the environment, whatever that raises: it is broken already."""
        env, self.env, self.step, self.plain = self.env, None, _no_env, False
        if env is not None:
            try:
                env.close()
            except Exception:  # it raised before, which is why it is closed; that fault was reported
                return


def as_reward(reward: Any) -> float:
    """A reward that is no plain float, or BadValue."""
    if isinstance(reward, np.ndarray) and reward.size == 1:
        reward = reward.reshape(())[()]
    if isinstance(reward, int | float | np.integer | np.floating | np.bool_):
        return float(reward)
    raise BadValue(f"the reward is a {type(reward).__name__}, no real number")
