"""The reward as it is trained on; what an unroll holds stays raw, and so does every return that is reported.

Invariant: the order is scale, then sign or clip, and the raw array is not written to
(test_reward_clip_leaves_the_raw_reward_alone).
"""

from __future__ import annotations

import numpy as np

from asyncrl.config import RunConfig
from asyncrl.records import Array


def train_reward(raw: Array, config: RunConfig, divisor: float = 1.0) -> Array:
    """f8 [T, N] for `raw` f8 [T, N]; `divisor` is the running deviation of returns, where rewards are normalised."""
    reward = raw / divisor
    if config.sign_reward:
        return np.sign(reward)
    if config.clip_reward > 0.0:
        return np.clip(reward, -config.clip_reward, config.clip_reward)
    return reward
