"""Schedules at exact step counts."""

from __future__ import annotations

import pytest

from asyncrl.learner.schedules import annealed, crossings, progress_of


def test_schedules_are_driven_by_environment_steps() -> None:
    """Half of the steps give half of the value, whatever the number of updates that they were trained in."""
    for steps, expected in [(0, 2.5e-4), (128 * 4, 2.5e-4 * (1 - 512 / 500_000)), (250_000, 1.25e-4)]:
        assert annealed(2.5e-4, progress_of(steps, 500_000)) == pytest.approx(expected, rel=1e-12)
    assert annealed(2.5e-4, 0.5, enabled=False) == 2.5e-4


@pytest.mark.parametrize("steps", [500_000, 500_001, 10**9])
def test_final_lr_is_zero_at_the_budget(steps: int) -> None:
    """At the budget and beyond it the value is exactly 0, never below."""
    assert annealed(2.5e-4, progress_of(steps, 500_000)) == 0.0


@pytest.mark.parametrize("num_envs", [1, 3, 7, 64, 1500])
def test_a_crossing_fires_once_per_multiple(num_envs: int) -> None:
    """Steps that come in rounds of any size pass every multiple of 1000 once."""
    fired = sum(crossings(steps, steps + num_envs, 1000) for steps in range(0, 10_000 * num_envs, num_envs))
    assert fired == 10_000 * num_envs // 1000
    assert crossings(0, 10**6, 0) == 0
