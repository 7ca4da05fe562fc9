"""Which learner a configuration is of."""

from __future__ import annotations

import pytest
import torch

from asyncrl.config import A2CConfig, APPOConfig, DQNConfig, ImpalaConfig, PPOConfig, RunConfig
from asyncrl.errors import ConfigError
from asyncrl.learner.algorithms import open_learner
from asyncrl.learner.dqn import DQN
from asyncrl.learner.exit import Exit, SearchedPPO
from asyncrl.learner.impala import Impala
from asyncrl.learner.ppo import PPO
from tests.rig.sync_driver import spec_of
from tests.unit.learner.unrolls import cartpole


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (PPOConfig(), PPO),
        (A2CConfig(), PPO),
        (APPOConfig(), PPO),
        (PPOConfig(search="exit"), Exit),
        (PPOConfig(search="ppo-aux"), SearchedPPO),
        (ImpalaConfig(), Impala),
        (DQNConfig(), DQN),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else type(value).__name__,
)
def test_every_configuration_has_its_learner(config: RunConfig, kind: type) -> None:
    """Of exactly that class; the same seed gives the same first weights."""
    one, two = (open_learner(config, spec_of(cartpole()), torch.device("cpu")) for _ in range(2))
    assert type(one) is kind
    for ours, theirs in zip(one.model.parameters(), two.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=0, rtol=0)


def test_a_configuration_of_nothing_is_refused() -> None:
    """The settings that all have in common make no learner."""
    with pytest.raises(ConfigError, match="no learner for a RunConfig"):
        open_learner(RunConfig(), spec_of(cartpole()), torch.device("cpu"))
