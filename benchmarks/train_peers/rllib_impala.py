"""RLlib's IMPALA on CartPole: env runners that are processes, and a learner in the driver or in one of its own.

CONFIGS has what `variant` chooses. `example` is RLlib's own CartPole example with as many runners as there are cores
here; the others widen what it leaves to its user: environments of a runner, how they are stepped, the batch, and where
the learner is.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from benchmarks.train_peers.counting import StepWindow, TrainSettings, report

STEPS = "num_env_steps_sampled_lifetime"


@dataclass(frozen=True)
class Wide:
    """What is RLlib's to choose."""

    runners: int
    envs: int  # of a runner
    batch: int  # steps
    learners: int = 0  # processes of their own; 0: in the driver
    vectorise: str = "sync"  # vector_entry_point: Gymnasium's own vectorised CartPole, which is what our lanes step


CONFIGS = {
    "example": Wide(2, 16, 500),
    "wide": Wide(2, 64, 4000),
    "wide-learner": Wide(2, 64, 4000, learners=1),
    "native": Wide(2, 256, 8000, vectorise="vector_entry_point"),
    "native-learner": Wide(1, 512, 8000, learners=1, vectorise="vector_entry_point"),
}


def config_of(settings: TrainSettings) -> Any:
    """RLlib's configuration, with the numbers of its CartPole example."""
    impala: Any = import_module("ray.rllib.algorithms.impala")
    models: Any = import_module("ray.rllib.core.rl_module.default_model_config")
    filters: Any = import_module("ray.rllib.connectors.env_to_module.mean_std_filter")
    wide = CONFIGS[settings.variant or "example"]
    return (
        impala.IMPALAConfig()
        .environment(settings.env)
        .env_runners(
            num_env_runners=wide.runners,
            num_envs_per_env_runner=wide.envs,
            gym_env_vectorize_mode=wide.vectorise,
            env_to_module_connector=lambda *_unused, **_more: filters.MeanStdFilter(),
        )
        .learners(num_learners=wide.learners)
        .training(
            train_batch_size_per_learner=wide.batch, lr=5e-4, grad_clip=40.0, vf_loss_coeff=0.05, entropy_coeff=0.0
        )
        .rl_module(model_config=models.DefaultModelConfig(vf_share_layers=True))
        .reporting(min_time_s_per_iteration=0.5)
    )


def train(settings: TrainSettings, window: StepWindow) -> None:
    import torch

    torch.set_num_threads(settings.threads)
    ray: Any = import_module("ray")
    # More than there are: it books a core for each process, and would not start a learner beside two runners.
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False, configure_logging=False)
    algorithm = config_of(settings).build_algo()
    try:
        while not window.over:
            result = algorithm.train()
            window.add(int(result["env_runners"].get(STEPS, 0)))
    finally:
        algorithm.stop()
        ray.shutdown()


if __name__ == "__main__":
    report(train)
