"""Schedules at exact step counts."""

from __future__ import annotations

import pytest

from asyncrl.config import PPOConfig
from asyncrl.learner.schedules import annealed, crossings


def test_schedules_are_driven_by_the_budget() -> None:
    """Half of the budget gives half of the value; rounds, which learner and collector count alike, make the share."""
    config = PPOConfig(num_envs=4, num_steps=128, total_timesteps=500_000)
    for rounds, expected in [(0, 2.5e-4), (1, 2.5e-4 * (1 - 1 / 976)), (488, 1.25e-4)]:
        assert annealed(2.5e-4, rounds / config.num_rounds) == pytest.approx(expected, rel=1e-12)
    assert annealed(2.5e-4, 0.5, enabled=False) == 2.5e-4


def test_final_lr_is_zero_at_the_budget() -> None:
    """Exactly 0 once every round has been trained on."""
    assert annealed(2.5e-4, 1.0) == 0.0


@pytest.mark.parametrize("num_envs", [1, 3, 7, 64, 1500])
def test_a_crossing_fires_once_per_multiple(num_envs: int) -> None:
    """Steps that come in rounds of any size pass every multiple of 1000 once."""
    fired = sum(crossings(steps, steps + num_envs, 1000) for steps in range(0, 10_000 * num_envs, num_envs))
    assert fired == 10_000 * num_envs // 1000
    assert crossings(0, 10**6, 0) == 0
