"""The order in which rewards are scaled, signed and clipped."""

from __future__ import annotations

import numpy as np

from asyncrl.config import PPOConfig
from asyncrl.learner.rewards import train_reward

RAW = np.array([[-30.0, 0.0], [0.5, 400.0]])


def test_reward_clip_leaves_the_raw_reward_alone() -> None:
    """Clipped, signed or scaled: the array that returns are reported from is as it was."""
    before = RAW.copy()
    configs = [
        PPOConfig(),
        PPOConfig(sign_reward=True),
        PPOConfig(clip_reward=10.0),
        PPOConfig(normalize_reward=True, clip_reward=10.0),
    ]
    found = [train_reward(RAW, config, 2.0 if config.normalize_reward else 1.0).tolist() for config in configs]
    assert found == [
        [[-30.0, 0.0], [0.5, 400.0]],
        [[-1.0, 0.0], [1.0, 1.0]],
        [[-10.0, 0.0], [0.5, 10.0]],
        [[-10.0, 0.0], [0.25, 10.0]],
    ]
    np.testing.assert_array_equal(RAW, before)
