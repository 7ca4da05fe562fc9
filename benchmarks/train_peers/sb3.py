"""What the algorithms of Stable-Baselines3 share: environments, with its AtariWrapper on Atari, and a count of steps.

`variant` is where the environments are: `dummy`, in the learner's process, or `subproc`, each in its own.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from benchmarks.train_peers.counting import StepWindow, TrainSettings

FOREVER = 10_000_000


def make_bare(env: str) -> Any:
    """What the ids called NoFrameskip-v4 were. Called in the process that has the environment."""
    import gymnasium as gym

    gym.register_envs(import_module("ale_py"))
    return gym.make(env, frameskip=1, repeat_action_probability=0.0)


def make_envs(settings: TrainSettings) -> Any:
    vec_env = import_module("stable_baselines3.common.vec_env")
    env_util = import_module("stable_baselines3.common.env_util")
    kind = {"dummy": vec_env.DummyVecEnv, "subproc": vec_env.SubprocVecEnv}[settings.variant or "dummy"]
    if not settings.atari:
        return env_util.make_vec_env(settings.env, settings.num_envs, vec_env_cls=kind)
    kwargs = {"env": settings.env}
    envs = env_util.make_atari_env(make_bare, settings.num_envs, env_kwargs=kwargs, vec_env_cls=kind)
    return vec_env.VecFrameStack(envs, 4)


def learn(
    settings: TrainSettings, window: StepWindow, make_model: Callable[[Any], Any], *, counted_from: int = 0
) -> None:
    """Train what `make_model` makes of the environments until the window closes, which opens after so many steps."""
    import torch

    callbacks: Any = import_module("stable_baselines3.common.callbacks")
    torch.set_num_threads(settings.threads)

    class Count(callbacks.BaseCallback):  # type: ignore[misc]  # stable_baselines3 need not be there
        """Counts at the same place of every iteration, before it collects."""

        def _on_rollout_start(self) -> None:
            if self.num_timesteps >= counted_from:
                window.add(self.num_timesteps)

        def _on_step(self) -> bool:
            return not window.over

    envs = make_envs(settings)
    make_model(envs).learn(FOREVER, callback=Count())
    envs.close()
