"""Settings of IMPALA and APPO."""

from __future__ import annotations

from typing import Any

import pytest

from asyncrl.config import ActorCriticConfig, APPOConfig, ImpalaConfig, PPOConfig
from asyncrl.errors import ConfigError


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"rho_bar": 0.0}, "rho_bar is 0.0: more than 0"),
        ({"c_bar": 1.5}, "c_bar is 1.5: at most rho_bar, 1.0"),
        ({"batch_steps": 50}, "batch_steps is 50: a multiple of num_steps, 20"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any], text: str) -> None:
    """The error names the setting, its value and what is possible."""
    with pytest.raises(ConfigError, match=text):
        ImpalaConfig(**wrong)


@pytest.mark.parametrize("config", [ImpalaConfig, APPOConfig, PPOConfig])
def test_a_batch_does_not_depend_on_the_fleet(config: type[ActorCriticConfig]) -> None:
    """In async mode it has the steps that are asked for; in rounds, or where none are asked for, it is the round."""
    for num_envs in (8, 800):
        found = config(num_envs=num_envs, num_steps=10, mode="async", batch_steps=40)
        assert found.batch_size == 40
        assert found.num_rounds == found.total_timesteps // 40
        for mode, steps in (("async", 0), ("sync", 40), ("lag 2", 40)):
            found = config(num_envs=num_envs, num_steps=10, mode=mode, batch_steps=steps)
            assert found.batch_size == 10 * num_envs


def test_what_counts_updates_cannot_change_on_the_way() -> None:
    """A run that is resumed has as many steps an update as it had."""
    for config in (ImpalaConfig, APPOConfig):
        assert {"batch_steps", "mode", "num_steps"} <= set(config.FIXED)
