"""Ratios of a batch: the share of rows that they leave, and how many are above the limits."""

from __future__ import annotations

import math

import numpy as np
import pytest

from asyncrl.learner.importance import Importance, importance


def test_the_effective_share_of_rows() -> None:
    """Equal ratios leave every row; one row of ten that has all the weight is a tenth; 1 and 3 are 16 / 20."""
    assert importance(np.full(10, 0.3, np.float32)).effective == pytest.approx(1.0)
    assert importance(np.eye(10)[3]).effective == pytest.approx(0.1)
    assert importance(np.array([1.0, 3.0])).effective == pytest.approx(16 / 20)


def test_ratios_at_the_limit_are_not_clipped() -> None:
    """Each limit has its own share; data of the weights of now has ratios of 1, and none is clipped at 1."""
    assert importance(np.ones(4)) == Importance(1.0, 0.0, 0.0)
    found = importance(np.array([0.5, 1.0, 1.5, 2.5]), rho_bar=2.0, c_bar=1.0)
    assert (found.rho_clipped, found.c_clipped) == (0.25, 0.5)


def test_ratios_that_are_not_finite_are_told() -> None:
    """Nothing is raised or warned of: the update finds what is wrong by itself."""
    assert math.isnan(importance(np.array([1.0, np.inf])).effective)
    assert math.isnan(importance(np.zeros(2)).effective)


def test_metrics_have_their_names() -> None:
    """Each under its own name."""
    assert Importance(0.9, 0.2, 0.1).metrics() == {
        "async/ess": 0.9,
        "async/rho_clipfrac": 0.2,
        "async/c_clipfrac": 0.1,
    }
