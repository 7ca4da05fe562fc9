"""How far a batch is from the policy that learns from it, told by the ratios ρ = π(a)/μ(a) of its rows.

Invariants: the effective share is 1 for equal ratios and 1/M where one row is all that counts
(test_the_effective_share_of_rows); a share of ratios is clipped where it is above the limit, not at it
(test_ratios_at_the_limit_are_not_clipped).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from asyncrl.records import Array


class Importance(NamedTuple):
    """Shares of 1."""

    effective: float  # (Σρ)² / (M Σρ²): rows that an average with these weights is as good as, of M
    rho_clipped: float  # rows with ρ > ρ̄
    c_clipped: float  # rows with ρ > c̄

    def metrics(self) -> dict[str, float]:
        return {
            "async/ess": self.effective,
            "async/rho_clipfrac": self.rho_clipped,
            "async/c_clipfrac": self.c_clipped,
        }


def importance(rho: Array, rho_bar: float = 1.0, c_bar: float = 1.0) -> Importance:
    """Of f [M] ratios; at least one."""
    weights = rho.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        effective = float(weights.sum() ** 2 / (len(weights) * np.square(weights).sum()))
    return Importance(effective, float(np.mean(rho > rho_bar)), float(np.mean(rho > c_bar)))
