"""Which learner a configuration is of, and what a run wants of any of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from asyncrl.buffers.replay import Replay
from asyncrl.config import DQNConfig, ImpalaConfig, PPOConfig, RunConfig
from asyncrl.errors import ConfigError
from asyncrl.learner.dqn import DQN
from asyncrl.learner.exit import Exit, SearchedPPO
from asyncrl.learner.impala import Impala
from asyncrl.learner.model import Model, build_model
from asyncrl.learner.model_config import ModelConfig
from asyncrl.learner.ppo import PPO
from asyncrl.learner.publishing import Published
from asyncrl.params import ParamMailbox
from asyncrl.policy import Policy
from asyncrl.records import Unroll
from asyncrl.wire.spec import LaneSpec


class RunLearner(Protocol):
    """Owns a model. For one thread at a time, but for `policy`."""

    @property
    def model(self) -> Model: ...

    @property
    def replay(self) -> Replay | None:
        """Saved and loaded apart from `state`: it may be gigabytes, most of which are as they were."""
        ...

    def update(self, unrolls: Sequence[Unroll], progress: float) -> dict[str, float]:
        """Train on one round; `progress` in [0, 1] is the share of the budget before it. Metrics by name."""
        ...

    def policy(self, box: ParamMailbox[Published] | None, *, deterministic: bool, threads: int) -> Policy:
        """Acts with a copy of the model, which follows `box` where there is one."""
        ...

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Copies on the host of everything else that an update reads or writes, and the rest as JSON."""
        ...

    def load(self, tensors: Mapping[str, Tensor], rest: Mapping[str, Any]) -> None:
        """What `state` gave. Raises LookupError, ValueError or RuntimeError if it is another model's."""
        ...


def open_learner(config: RunConfig, spec: LaneSpec, device: torch.device) -> RunLearner:
    """With first weights, which follow from the seed."""
    if isinstance(config, PPOConfig):
        kinds: dict[str, type[PPO | Exit]] = {"off": PPO, "exit": Exit, "ppo-aux": SearchedPPO}
        kind = kinds[config.search]
        return kind(build_model(spec, ModelConfig.of(config), config.seed).to(device), config, device)
    if isinstance(config, ImpalaConfig):
        return Impala(build_model(spec, ModelConfig.of(config), config.seed).to(device), config, device)
    if isinstance(config, DQNConfig):
        return DQN(spec, config, device)
    raise ConfigError(f"there is no learner for a {type(config).__name__}")
