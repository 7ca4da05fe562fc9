"""What an unroll says of itself."""

from __future__ import annotations

import dataclasses

import numpy as np

from asyncrl.config import PPOConfig
from tests.unit.learner.unrolls import acted, model_for


def test_counts_and_ends() -> None:
    """Sizes, transitions, and the rows that nothing may look past: terminated, truncated or cut."""
    config = PPOConfig(num_envs=3, num_steps=40, num_minibatches=1)
    unroll = acted(model_for(config), num_steps=40, num_envs=3)
    assert (unroll.num_steps, unroll.num_slots, unroll.num_valid) == (40, 3, 120)
    assert unroll.terminated.any()
    np.testing.assert_array_equal(unroll.ended, unroll.terminated | unroll.truncated)
    cut = np.zeros_like(unroll.cut)
    cut[5, 1] = True
    valid = unroll.valid.copy()
    valid[6:, 1] = False
    changed = dataclasses.replace(unroll, cut=cut, valid=valid)
    assert changed.ended[5, 1]
    assert changed.num_valid == 120 - 34
