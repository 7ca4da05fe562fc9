"""Sample Factory's APPO on CartPole: rollout workers, an inference worker and a learner, a process each.

Each process gives torch one thread, unless all is one process (`serial`). VARIANTS has what `variant` adds: `native-N`
steps Gymnasium's vectorised CartPole as environments of N agents, the others have an environment object per slot.
"""

from __future__ import annotations

import tempfile
from importlib import import_module
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from benchmarks.train_peers.counting import StepWindow, TrainSettings, report

Array = npt.NDArray[Any]

FOREVER = 1_000_000_000
BASE = (
    "--algo=APPO --device=cpu --use_rnn=False --recurrence=1 --with_vtrace=False --reward_scale=0.1 --num_workers=2 "
    "--policy_workers_per_policy=1 --save_every_sec=100000 --save_best_every_sec=100000 --experiment=bench "
    "--rollout=32 "
    f"--train_for_env_steps={FOREVER}"
)
BATCHED = "--batched_sampling=True"
SERIAL = "--serial_mode=True --async_rl=False --worker_num_splits=1"
VARIANTS = {
    "example": "--num_envs_per_worker=20 --batch_size=512",  # as in its own CartPole example
    "wide": "--num_envs_per_worker=64 --batch_size=4096",
    "batched": f"--num_envs_per_worker=64 --batch_size=4096 {BATCHED}",
    # In step: a batch is all that one rollout of 32 steps gives.
    "serial": f"--num_envs_per_worker=64 --batch_size=4096 {BATCHED} {SERIAL}",
    "native-64": f"--num_envs_per_worker=2 --batch_size=4096 {BATCHED}",
    "native-256": f"--num_envs_per_worker=2 --batch_size=8192 {BATCHED}",
    "native-serial-64": f"--num_envs_per_worker=1 --batch_size=4096 {BATCHED} {SERIAL}",
    "native-serial-256": f"--num_envs_per_worker=1 --batch_size=16384 {BATCHED} {SERIAL}",
}


class NativeCartPole(gym.Env[Array, Array]):
    """Every agent is a CartPole; ended ones have been reset already, as Sample Factory expects of vectors."""

    is_multiagent = True

    def __init__(self, num_agents: int) -> None:
        self.num_agents = num_agents
        cartpole: Any = import_module("gymnasium.envs.classic_control.cartpole")
        self._envs = cartpole.CartPoleVectorEnv(num_agents)
        self.observation_space = self._envs.single_observation_space
        self.action_space = self._envs.single_action_space
        self._infos: Any = [{} for _ in range(num_agents)]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, Any]:
        obs, _ = self._envs.reset(seed=seed)
        return np.asarray(obs, np.float32), self._infos

    def step(self, action: Array) -> tuple[Array, Any, Any, Any, Any]:
        obs, reward, terminated, truncated, _ = self._envs.step(np.asarray(action, np.int64))
        return np.asarray(obs, np.float32), reward, terminated, truncated, self._infos


def make_env(name: str, cfg: Any = None, env_config: Any = None, render_mode: str | None = None) -> Any:
    if name.startswith("native"):
        return NativeCartPole(int(name.rpartition("-")[2]))
    return gym.make(name, render_mode=render_mode)


def train(settings: TrainSettings, window: StepWindow) -> None:
    import torch

    torch.set_num_threads(settings.threads)
    arguments: Any = import_module("sample_factory.cfg.arguments")
    training: Any = import_module("sample_factory.train")
    runners: Any = import_module("sample_factory.algo.runners.runner")
    register: Any = import_module("sample_factory.envs.env_utils").register_env

    class Count(runners.AlgoObserver):  # type: ignore[misc]  # sample_factory need not be there
        """Counts the steps that the learner has taken in, after each of its iterations; ends the run."""

        def on_training_step(self, runner: Any, training_iteration_since_resume: int) -> None:
            window.add(sum(runner.env_steps.values()))
            if window.over:
                runner.cfg.train_for_env_steps = 0

    variant = settings.variant or "example"
    name = variant if variant.startswith("native") else settings.env
    register(name, make_env)
    with tempfile.TemporaryDirectory() as folder:
        given = [*f"{BASE} {VARIANTS[variant]}".split(), f"--env={name}", f"--train_dir={folder}"]
        parser, _ = arguments.parse_sf_args(given)
        _, runner = training.make_runner(arguments.parse_full_cfg(parser, given))
        runner.register_observer(Count())
        runner.init()
        runner.run()


if __name__ == "__main__":
    # Its processes import this module again, and read the command line for options of their own.
    report(train)
