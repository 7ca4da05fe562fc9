"""Settings that contradict each other."""

from __future__ import annotations

from typing import Any

import pytest

from asyncrl.errors import ConfigError
from asyncrl.search import SearchConfig


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_simulations": -1}, "at least"),
        ({"waves": 0}, "at least"),
        ({"groups": 0}, "at least"),
        ({"max_considered": 0}, "at least"),
        ({"discount": 2.0}, "discount is 2"),
        ({"discount": -0.1}, "discount is -0.1"),
        ({"algorithm": "rollouts"}, 'leaf="rollout"'),
        ({"leaf": "rollout", "rollout_steps": 0}, "rollout_steps"),
        ({"noise_fraction": 1.5}, "between 0 and 1"),
        ({"epsilon": -0.1}, "between 0 and 1"),
        ({"temperature": -1.0}, "not negative"),
        ({"keep_tree": True, "algorithm": "gumbel"}, "keep_tree"),
        ({"keep_tree": True, "rng": "open_loop"}, "keep_tree"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    """What cannot be is said when the settings are made, with the way out."""
    with pytest.raises(ConfigError, match=words):
        SearchConfig(**settings)


def test_the_defaults_are_the_published_ones() -> None:
    """PUCT and Gumbel constants as they are published."""
    config = SearchConfig()
    assert (config.c1, config.c2) == (1.25, 19652.0)
    assert (config.max_considered, config.value_scale, config.maxvisit_init) == (16, 0.1, 50.0)
    assert (config.use_mixed_value, config.gumbel_scale, config.waves) == (True, 1.0, 1)
