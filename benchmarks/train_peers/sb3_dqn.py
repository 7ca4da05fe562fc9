"""Stable-Baselines3's DQN on Atari with its AtariWrapper and CnnPolicy. `variant` as for its PPO."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from benchmarks.train_peers.counting import StepWindow, TrainSettings, report
from benchmarks.train_peers.sb3_ppo import FOREVER, make_envs

STARTS = 2000  # steps before the first gradient step


def train(settings: TrainSettings, window: StepWindow) -> None:
    import torch

    callbacks: Any = import_module("stable_baselines3.common.callbacks")
    dqn: Any = import_module("stable_baselines3.dqn")
    torch.set_num_threads(settings.threads)

    class Count(callbacks.BaseCallback):  # type: ignore[misc]  # stable_baselines3 need not be there
        """Counts before each collection, from the first gradient step on."""

        def _on_rollout_start(self) -> None:
            if self.num_timesteps > STARTS:
                window.add(self.num_timesteps)

        def _on_step(self) -> bool:
            return not window.over

    envs = make_envs(settings)
    memory = {"buffer_size": 100_000, "learning_starts": STARTS, "batch_size": 32}
    turns = {"train_freq": settings.num_steps, "gradient_steps": settings.gradient_steps}
    rates = {"learning_rate": 1e-4, "target_update_interval": 1000, "exploration_fraction": 0.001}
    model = dqn.DQN("CnnPolicy", envs, **memory, **turns, **rates, device="cpu")
    model.learn(FOREVER, callback=Count())
    envs.close()


if __name__ == "__main__":
    report(train)
