"""Stable-Baselines3's PPO: on Atari with CnnPolicy, otherwise with MlpPolicy."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from benchmarks.train_peers.counting import StepWindow, TrainSettings, report
from benchmarks.train_peers.sb3 import learn


def train(settings: TrainSettings, window: StepWindow) -> None:
    ppo: Any = import_module("stable_baselines3.ppo")
    batch = settings.num_envs * settings.num_steps // settings.minibatches
    shape = {"n_steps": settings.num_steps, "n_epochs": settings.epochs, "batch_size": batch}
    rates = {"learning_rate": 2.5e-4, "clip_range": 0.1 if settings.atari else 0.2, "ent_coef": 0.01}
    policy = "CnnPolicy" if settings.atari else "MlpPolicy"
    learn(settings, window, lambda envs: ppo.PPO(policy, envs, **shape, **rates, device="cpu"))


if __name__ == "__main__":
    report(train)
