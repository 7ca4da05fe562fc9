"""Curves from the files of runs, alone and over seeds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.run.curves import Curve, RunCurves, merged, moving_mean, read_curves, settings
from asyncrl.run.run_dir import RunDir
from tests.unit.run.run_making import make_run


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.integers(1, 60))
def test_a_moving_mean_is_the_mean_of_the_last(values: list[float], window: int) -> None:
    """Against the mean of each slice."""
    slow = [np.mean(values[max(end - window, 0) : end]) for end in range(1, len(values) + 1)]
    np.testing.assert_allclose(moving_mean(np.array(values), window), slow, atol=1e-6)


def test_curves_are_what_was_recorded(tmp_path: Path) -> None:
    """Returns as means over environment steps, scalars as they are; events and times are no curves."""
    found = read_curves(make_run(tmp_path / "x")).curves
    assert set(found) == {"return", "losses/value_loss", "charts/SPS", "eval/episodic_return"}
    assert found["return"].steps.tolist() == list(range(10, 101, 10))
    assert found["return"].values.tolist() == [(number + 1) / 2 for number in range(1, 11)]
    assert found["losses/value_loss"].values.tolist() == [1 / step for step in range(20, 101, 20)]


def test_counts_are_those_of_the_whole_run(tmp_path: Path) -> None:
    """What was recorded in portions of twenty steps is added up by value, and is no curve."""
    found = read_curves(make_run(tmp_path / "x"))
    assert found.counts == {"async/policy_lag": {0: 75, 1: 5, 2: 5, 3: 5, 4: 5, 5: 5}}
    assert "async/policy_lag" not in found.curves


def test_what_counts_something_else_is_left_out(tmp_path: Path) -> None:
    """Rows of other programs in the file: by name, or of no number; what is ours is read all the same."""
    run = make_run(tmp_path / "x")
    with run.metrics.open("a") as file:
        for value in ('{"left": 3}', '{"1": null}', '{"1.5": 2}'):
            file.write(f'{{"step": 100, "theirs": {value}, "charts/SPS": 7}}\n')
    found = read_curves(run)
    assert set(found.counts) == {"async/policy_lag"}
    assert found.curves["charts/SPS"].values.tolist()[-3:] == [7, 7, 7]


def test_seeds_are_compared_where_all_of_them_are() -> None:
    """Mean, minimum and maximum of straight lines, from the last beginning to the first end."""
    one = Curve(np.array([0.0, 100.0]), np.array([0.0, 100.0]))
    two = Curve(np.array([10.0, 50.0]), np.array([30.0, 150.0]))
    both = merged([one, two])
    assert (both.steps[0], both.steps[-1]) == (10, 50)
    np.testing.assert_allclose(both.values, 2 * both.steps)
    assert both.low is not None
    assert both.high is not None
    np.testing.assert_allclose(both.low, both.steps)
    np.testing.assert_allclose(both.high, 3 * both.steps)
    assert merged([one]) is one


def test_seeds_that_never_meet_are_not_mixed() -> None:
    """The longer one stands alone."""
    one = Curve(np.array([0.0, 1.0, 2.0]), np.zeros(3))
    assert merged([one, Curve(np.array([5.0]), np.ones(1))]) is one


def group(*configs: dict[str, object]) -> dict[str, int]:
    return {
        label: len(runs) for label, runs in settings(RunCurves(RunDir(Path()), config) for config in configs).items()
    }


def test_settings_differ_in_more_than_the_seed() -> None:
    """Labels name what sets them apart; where a run lies and what watches it make no difference."""
    base: dict[str, object] = {"env_id": "CartPole-v1", "algorithm": "ppo", "gamma": 0.99}
    assert group({**base, "seed": 1}, {**base, "seed": 2, "run_dir": "x", "track": False}) == {"CartPole-v1 ppo": 2}
    assert group({**base, "seed": 1}, {**base, "gamma": 0.9}) == {
        "CartPole-v1 ppo (gamma=0.99)": 1,
        "CartPole-v1 ppo (gamma=0.9)": 1,
    }
    assert group(base, {**base, "env_id": "Acrobot-v1"}) == {"CartPole-v1 ppo": 1, "Acrobot-v1 ppo": 1}


def test_labels_are_never_the_same() -> None:
    """Four settings that differ in the last of four names get numbers."""
    configs: list[dict[str, object]] = [{"a": n % 2, "b": n % 2, "c": n % 2, "d": n} for n in range(4)]
    assert len(group(*configs)) == 4
