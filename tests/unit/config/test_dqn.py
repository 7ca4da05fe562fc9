"""Settings of the Q-learners."""

from __future__ import annotations

from typing import Any

import pytest

from asyncrl.config import ALGORITHMS, ApexConfig, C51Config, DQNConfig, RainbowConfig
from asyncrl.errors import ConfigError


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"buffer_size": 0}, "buffer_size is 0: 1 or more"),
        ({"buffer_size": 159, "num_envs": 4}, "buffer_size is 159: at least 160, which are four rounds"),
        ({"buffer_size": 104, "num_envs": 2, "n_step": 42}, "buffer_size is 104: at least 106, or n_step less than 42"),
        ({"n_step": 0}, "n_step is 0: 1 or more"),
        ({"target_network_frequency": 0}, "target_network_frequency is 0: 1 or more"),
        ({"gradient_steps": 0}, "gradient_steps is 0: 1 or more, or -1"),
        ({"gradient_steps": -2}, "gradient_steps is -2: 1 or more, or -1"),
        ({"end_e": 1.5}, "end_e is 1.5: 0 to 1"),
        ({"tau": -0.1}, "tau is -0.1: 0"),
        ({"num_atoms": 1}, "num_atoms is 1: 2 or more, or 0"),
        ({"num_atoms": 5, "v_min": 3.0, "v_max": 3.0}, "v_min is 3.0: less than v_max, which is 3.0"),
        ({"actor_priorities": True}, "actor_priorities are errors of means"),
        ({"actor_priorities": True, "prioritized": True, "num_atoms": 51}, "actor_priorities are errors of means"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any], text: str) -> None:
    """The error names the setting, its value and what is possible."""
    with pytest.raises(ConfigError, match=text):
        DQNConfig(**wrong)


def test_ranges_of_returns_may_be_below_zero() -> None:
    """Beside `gradient_steps` they are the only ones."""
    config = DQNConfig(num_atoms=11, v_min=-7.0, v_max=-1.0, gradient_steps=-1)
    assert (config.v_min, config.v_max) == (-7.0, -1.0)


def test_each_algorithm_has_what_it_is_named_for() -> None:
    """Rainbow has all six; Ape-X the ladder and priorities of actors; C51 a distribution and nothing else."""
    rainbow, apex, c51, dqn = RainbowConfig(), ApexConfig(), C51Config(), DQNConfig()
    assert rainbow.double and rainbow.dueling and rainbow.prioritized and rainbow.noisy
    assert (rainbow.n_step, rainbow.start_e, rainbow.end_e) == (3, 0.0, 0.0) and rainbow.num_atoms
    assert apex.exploration == "ladder" and apex.actor_priorities and apex.beta == apex.beta_final
    for plain in (c51, dqn):
        assert not (plain.double or plain.dueling or plain.prioritized or plain.noisy) and plain.n_step == 1
    assert c51.num_atoms and not dqn.num_atoms


@pytest.mark.parametrize("name", ["dqn", "c51", "rainbow", "apex"])
def test_what_the_replay_and_the_weights_are_of_cannot_change(name: str) -> None:
    """On the way of a run; and every such name is a setting."""
    config = ALGORITHMS[name]()
    fixed = {"buffer_size", "n_step", "gamma", "prioritized", "alpha", "num_atoms", "dueling", "noisy", "sign_reward"}
    assert fixed <= set(config.FIXED)
    assert all(hasattr(config, name) for name in config.FIXED)
