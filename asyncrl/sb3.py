"""`RemoteVecEnv`: remote environments as a Stable-Baselines3 `VecEnv`; needs the extra `asyncrl[sb3]`.

    model = PPO("MlpPolicy", asyncrl.sb3.RemoteVecEnv("CartPole-v1", num_envs=64, servers="worker1:50051"))

Invariant: with equal seeds and actions it gives what SB3's `DummyVecEnv` gives (test_parity_with_dummy_vec_env).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NoReturn

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn

from asyncrl.errors import ConfigError, LocalProtocolError
from asyncrl.vector import RemoteVectorEnv
from asyncrl.vector.infos import EPISODE, LOST

__all__ = ["RemoteVecEnv"]

# Keys of ours that tell of the episode that ended, in the infos of the row in which the next one begins.
_OF_THE_END: Final = (EPISODE, LOST)


class RemoteVecEnv(VecEnv):
    """`num_envs` environments of the alias `env_id`; `settings` are those of `asyncrl.RemoteVectorEnv`.

    `step_async` writes to the streams and does not wait. Infos are those of the step, also where it ended an episode:
    what the reset behind it said is in `reset_infos`. They have `episode` and `terminal_observation` there,
    `TimeLimit.truncated` as SB3 means it, and `asyncrl/lost` where the environment was lost: such a row ends its
    episode as a truncation, from which SB3 bootstraps.
    """

    def __init__(self, env_id: str, num_envs: int = 1, **settings: Any) -> None:
        for fixed in ("autoreset_mode", "batch_size"):
            if fixed in settings:
                raise ConfigError(f"{fixed} is what SB3 demands here and cannot be chosen")
        self._remote = RemoteVectorEnv(env_id, num_envs, autoreset_mode=AutoresetMode.SAME_STEP, **settings)
        spaces = self._remote.single_observation_space, self._remote.single_action_space
        if isinstance(spaces[0], gymnasium.spaces.Tuple):
            self._remote.close()
            raise ConfigError("Stable-Baselines3 has no Tuple observations: serve a wrapper that makes them a Dict")
        super().__init__(num_envs, *spaces)

    def reset(self) -> VecEnvObs:
        """First observations; `reset_infos` has their infos. Seeds and options are those set before, once."""
        options = self._options[0] if any(self._options) else None
        if options is not None and any(each != options for each in self._options):
            raise ConfigError("remote environments are reset together: give all of them the same options")
        seeds = None if set(self._seeds) == {None} else list(self._seeds)
        obs, infos = self._remote.reset(seed=seeds, options=options)
        self.reset_infos = self._infos_of(infos)
        self._reset_seeds()
        self._reset_options()
        return obs  # type: ignore[no-any-return]

    def step_async(self, actions: np.ndarray) -> None:
        """Send one action per environment."""
        self._remote.step_async(actions)

    def step_wait(self) -> VecEnvStepReturn:
        """The rows that answer `step_async`, one per environment. After Ctrl-C in here go on as you like."""
        obs, rewards, terminated, truncated, infos = self._remote.step_wait()
        listed = self._infos_of(infos)
        ended = terminated | truncated
        finals = infos.get("final_obs")
        if ended.any():
            self._tell_apart(listed, infos.get("final_info", {}), ended & self._remote.begun)
        for row, info in enumerate(listed):
            info["TimeLimit.truncated"] = bool(truncated[row] and not terminated[row])
            if ended[row] and finals is not None:
                info["terminal_observation"] = _unbatched(finals[row])
        return obs, rewards.astype(np.float32), ended, listed

    def close(self) -> None:
        """Give the environments back. Idempotent."""
        self._remote.close()

    def get_images(self) -> Sequence[np.ndarray | None]:
        return self._remote.render() or [None] * self.num_envs

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """`render_mode` and `spec`; what else an environment has stays on its machine."""
        if not self.has_attr(attr_name):
            self._refuse(f"get_attr({attr_name!r})")
        return [getattr(self._remote, attr_name)] * len(list(self._get_indices(indices)))

    def has_attr(self, attr_name: str) -> bool:
        return attr_name in ("render_mode", "spec")

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> NoReturn:
        """Refused: the environments run on other machines."""
        self._refuse(f"set_attr({attr_name!r})")

    def env_method(self, method_name: str, *args: Any, indices: VecEnvIndices = None, **kwargs: Any) -> NoReturn:
        """Refused: an env server executes nothing but steps."""
        self._refuse(f"env_method({method_name!r})")

    def env_is_wrapped(
        self, wrapper_class: type[gymnasium.Wrapper[Any, Any, Any, Any]], indices: Any = None
    ) -> list[bool]:
        """False, except for `Monitor`: episode statistics are counted on the server."""
        wrapped = wrapper_class.__name__ == "Monitor"
        return [wrapped] * len(list(self._get_indices(indices)))

    def _refuse(self, what: str) -> NoReturn:
        raise LocalProtocolError(
            f"{what}: the environments run on other machines, and an env server executes nothing but steps. "
            "Serve a wrapper of the environment instead: envserver --env mine=my_package.envs:make_env"
        )

    def _tell_apart(self, listed: list[dict[str, Any]], final_info: dict[str, Any], begun: np.ndarray) -> None:
        """What an episode's last step said stays with its row; what the reset behind it said is in `reset_infos`.

        Of rows without another episode, such as those of a lost life, the infos are the step's as they are.
        """
        finals = self._infos_of(final_info)
        for row in np.flatnonzero(begun).tolist():
            info = listed[row]
            listed[row] = finals[row] | {key: info.pop(key) for key in _OF_THE_END if key in info}
            self.reset_infos[row] = info

    def _infos_of(self, infos: dict[str, Any]) -> list[dict[str, Any]]:
        """One dict per row, with what that row has."""
        listed: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for key, values in infos.items():
            present = infos.get(f"_{key}")
            if key.startswith("_") or present is None or key in ("final_obs", "final_info"):
                continue
            for row in np.flatnonzero(present).tolist():
                listed[row][key] = _row(values, row)
        return listed


def _row(values: Any, row: int) -> Any:
    """Row of an info: dicts of arrays become dicts of values."""
    if isinstance(values, dict):
        return {key: _row(each, row) for key, each in values.items() if not key.startswith("_")}
    value = values[row]
    return value.item() if isinstance(value, np.generic) else value


def _unbatched(final: Any) -> Any:
    """A final observation of its own, which a replay buffer may keep."""
    return {key: np.array(each) for key, each in final.items()} if isinstance(final, dict) else np.array(final)
