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
        ({"gae_lambda": 1.5}, "gae_lambda is 1.5: 0 to 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any], text: str) -> None:
    """The error names the setting, its value and what is possible."""
    with pytest.raises(ConfigError, match=text):
        PPOConfig(**wrong)


@pytest.mark.parametrize("wrong", [{"update_epochs": 4}, {"num_minibatches": 2}, {"clip_coef": 0.2}])
def test_what_is_no_a2c_is_refused(wrong: dict[str, Any]) -> None:
    """More than one step on a round, or a clip, is PPO; the error says so."""
    with pytest.raises(ConfigError, match="in A2C, or the algorithm is ppo"):
        A2CConfig(**wrong)
