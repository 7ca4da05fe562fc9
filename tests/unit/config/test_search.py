"""Settings of learners that search."""

from __future__ import annotations

from typing import Any

import pytest

from asyncrl.config import PPOConfig
from asyncrl.errors import ConfigError


def test_simulations_become_more() -> None:
    """From the first number to the last in the share of the budget that was said, and not beyond."""
    config = PPOConfig(total_timesteps=1000, search_sims_first=4, search_sims=20, search_ramp=0.5)
    assert [config.simulations(steps) for steps in (0, 125, 250, 500, 1000, 2000)] == [4, 8, 12, 20, 20, 20]
    at_once = PPOConfig(total_timesteps=1000, search_sims_first=4, search_sims=20, search_ramp=0.0)
    assert at_once.simulations(0) == 20


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"search_sims": 0}, "search_sims is 0: 1 or more"),
        ({"search_share": 1.5}, "search_share is 1.5: 0 to 1"),
        ({"search": "exit", "search_temperature": 0.0}, "what is played needs a probability"),
        ({"search": "exit", "search_temperature": -1.0}, "search_temperature is -1.0: 0 or more"),
        ({"search_noise_alpha": -0.3}, "search_noise_alpha is -0.3: 0 or more"),
        ({"search": "exit", "normalize_reward": True}, "normalize_reward false, gru_size 0"),
        ({"search": "ppo-aux", "gru_size": 8}, "normalize_reward false, gru_size 0"),
    ],
)
def test_what_cannot_be_is_said(changes: dict[str, Any], why: str) -> None:
    """By the field's name, with what it may be."""
    with pytest.raises(ConfigError, match=why):
        PPOConfig(**changes)


def test_what_is_off_is_not_checked() -> None:
    """A run without a search may normalise rewards and have a memory."""
    assert PPOConfig(normalize_reward=True, gru_size=8, search_temperature=0.0).search == "off"


def test_what_plays_by_its_policy_needs_no_temperature() -> None:
    """ppo-aux draws from the policy, whose probabilities are known: 0 is no mistake there."""
    assert PPOConfig(search="ppo-aux", search_temperature=0.0).search == "ppo-aux"


def test_a_run_keeps_its_kind_of_search() -> None:
    """Another one has another learner: it is fixed with the run."""
    assert "search" in PPOConfig.FIXED
