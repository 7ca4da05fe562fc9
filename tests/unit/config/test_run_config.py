"""Settings that every algorithm has; tried on those of PPO, which has a batch and a round."""

from __future__ import annotations

from typing import Any

import pytest

from asyncrl.config import ALGORITHMS, PPOConfig, algorithm_of
from asyncrl.errors import ConfigError


@pytest.mark.parametrize(("mode", "ahead"), [("sync", 0), ("lag 1", 1), ("lag 12", 12), ("lag3", 3), ("async", None)])
def test_a_mode_says_how_far_collection_may_be_ahead(mode: str, ahead: int | None) -> None:
    """Synchronous is a lag of nothing; free-running has no rounds."""
    assert PPOConfig(mode=mode).max_ahead == ahead


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"mode": "lag 0"}, "mode 'lag 0': sync, lag N"),
        ({"num_envs": 0}, "num_envs is 0: 1 or more"),
        ({"gamma": 1.5}, "gamma is 1.5: 0 to 1"),
        ({"learning_rate": -1.0}, "learning_rate is -1.0: 0 or more"),
        ({"total_timesteps": 511}, "less than one round of 512 steps .num_envs 4 x num_steps 128."),
        ({"env_kwargs": "[1]"}, "JSON object"),
        ({"final_eval_episodes": 0}, "final_eval_episodes is 0: 1 or more"),
        ({"env_kwargs": "{"}, "env_kwargs is no JSON"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any], text: str) -> None:
    """The error names the setting, its value and what is possible."""
    with pytest.raises(ConfigError, match=text.replace("(", r"\(")):
        PPOConfig(**wrong)


def test_rounds_are_whole() -> None:
    """As in CleanRL, what does not fill a round is not collected."""
    config = PPOConfig(num_envs=4, num_steps=128, total_timesteps=500_000)
    assert (config.batch_size, config.num_rounds) == (512, 976)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_configuration_knows_its_algorithm(name: str) -> None:
    """Those that differ in defaults alone, too: a run is found again under its own name."""
    assert algorithm_of(ALGORITHMS[name]()) == name
