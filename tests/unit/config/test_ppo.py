"""Settings of PPO and A2C."""

from __future__ import annotations

from typing import Any

import pytest

from asyncrl.config import A2CConfig, PPOConfig
from asyncrl.errors import ConfigError


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"num_minibatches": 3}, "num_minibatches is 3: it has to divide the 512 steps of an update"),
        ({"update_epochs": 0}, "update_epochs is 0: 1 or more"),
        ({"num_minibatches": 8, "gru_size": 16}, "num_minibatches is 8: at most 4 with gru_size"),
        ({"gae_lambda": 1.5}, "gae_lambda is 1.5: 0 to 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any], text: str) -> None:
    """The error names the setting, its value and what is possible."""
    with pytest.raises(ConfigError, match=text):
        PPOConfig(**wrong)


def test_a_memory_takes_as_many_minibatches_as_there_are_unrolls() -> None:
    """Those of an update: in async mode with batch_steps there may be more of them than environments."""
    assert PPOConfig(num_envs=4, num_minibatches=4, gru_size=16).num_minibatches == 4
    sized: dict[str, Any] = {
        "num_envs": 4,
        "num_steps": 128,
        "gru_size": 16,
        "batch_steps": 8 * 128,
        "num_minibatches": 8,
    }
    assert PPOConfig(**sized, mode="async").num_minibatches == 8
    with pytest.raises(ConfigError, match="at most 4 with gru_size"):
        PPOConfig(**sized)


@pytest.mark.parametrize("wrong", [{"update_epochs": 4}, {"num_minibatches": 2}, {"clip_coef": 0.2}])
def test_what_is_no_a2c_is_refused(wrong: dict[str, Any]) -> None:
    """More than one step on a round, or a clip, is PPO; the error says so."""
    with pytest.raises(ConfigError, match="in A2C, or the algorithm is ppo"):
        A2CConfig(**wrong)
