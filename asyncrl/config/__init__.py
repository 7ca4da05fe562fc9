"""What a run is asked for: one flat frozen dataclass per algorithm, for Python and for the command line.

Hyperparameters are spelt as in CleanRL. Steps are environment steps (Atari: four frames each), everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from asyncrl.config.dqn import ApexConfig, C51Config, DQNConfig, RainbowConfig
from asyncrl.config.impala import APPOConfig, ImpalaConfig
from asyncrl.config.ppo import A2CConfig, ActorCriticConfig, PPOConfig
from asyncrl.config.run_config import RunConfig

ALGORITHMS: Final[Mapping[str, type[RunConfig]]] = MappingProxyType(
    {
        "ppo": PPOConfig,
        "a2c": A2CConfig,
        "impala": ImpalaConfig,
        "appo": APPOConfig,
        "dqn": DQNConfig,
        "c51": C51Config,
        "rainbow": RainbowConfig,
        "apex": ApexConfig,
    }
)


def algorithm_of(config: RunConfig) -> str:
    """The name of what a configuration is of."""
    return next(name for name, kind in ALGORITHMS.items() if type(config) is kind)


__all__ = [
    "ALGORITHMS",
    "A2CConfig",
    "APPOConfig",
    "ActorCriticConfig",
    "ApexConfig",
    "C51Config",
    "DQNConfig",
    "ImpalaConfig",
    "PPOConfig",
    "RainbowConfig",
    "RunConfig",
    "algorithm_of",
]
