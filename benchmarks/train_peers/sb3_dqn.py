"""Stable-Baselines3's DQN on Atari with CnnPolicy."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from benchmarks.train_peers.counting import StepWindow, TrainSettings, report
from benchmarks.train_peers.sb3 import learn

STARTS = 2000  # steps before the first gradient step


def train(settings: TrainSettings, window: StepWindow) -> None:
    dqn: Any = import_module("stable_baselines3.dqn")
    memory = {"buffer_size": 100_000, "learning_starts": STARTS, "batch_size": 32}
    turns = {"train_freq": settings.num_steps, "gradient_steps": settings.gradient_steps}
    rates = {"learning_rate": 1e-4, "target_update_interval": 1000}
    exploring = {"exploration_fraction": 0.001, "exploration_final_eps": 0.01}
    options = {**memory, **turns, **rates, **exploring}
    learn(settings, window, lambda envs: dqn.DQN("CnnPolicy", envs, **options, device="cpu"), counted_from=STARTS)


if __name__ == "__main__":
    report(train)
