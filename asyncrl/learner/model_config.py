"""`ModelConfig`: what of a run's configuration decides the shape and the arithmetic of the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Literal

from torch import nn

from asyncrl.config import RunConfig
from asyncrl.wire.spec import LaneSpec

Activation = Literal["tanh", "relu", "elu"]


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Spelt as in the configurations of runs, where the same fields are."""

    network: str | CustomNetwork = "auto"  # mlp, nature, impala, auto, module:function, or the function itself
    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: Activation = "tanh"
    share_trunk: bool = False
    gru_size: int = 0  # 0: feed-forward
    log_std_init: float = 0.0
    use_sde: bool = False
    sde_sample_freq: int = -1  # steps that a noise matrix is kept; -1: an unroll
    num_steps: int = 128  # of an unroll
    normalize_obs: bool = False
    clip_obs: float = 10.0
    normalize_reward: bool = False
    gamma: float = 0.99
    num_envs: int = 0  # fleet slots whose discounted returns are kept, with normalize_reward
    bf16: bool = False
    compile: bool = False

    @staticmethod
    def of(config: RunConfig) -> ModelConfig:
        """What the configuration has of these; the rest is as it is by default."""
        return ModelConfig(
            **{each.name: getattr(config, each.name) for each in fields(ModelConfig) if hasattr(config, each.name)}
        )


# Takes what a lane serves and the configuration; gives a module whose forward maps observations, per leaf [N, *shape]
# in the dtype of the wire (float32 where they are normalised), to features [N, num_features], or to a pair of them for
# policy and value. The module has the attribute `num_features`: int, or a pair of them.
CustomNetwork = Callable[[LaneSpec, ModelConfig], nn.Module]
