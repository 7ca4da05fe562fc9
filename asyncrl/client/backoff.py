"""Exponential backoff with jitter, pure: no clock, no sleep.

Invariants: the n-th delay lies within the closed form of its jitter (test_delays_lie_within_the_closed_form); after
`reset` the sequence starts again (test_reset_starts_again).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from asyncrl.client.seams import Rng

Jitter = Literal["none", "full", "equal"]


@dataclass(frozen=True)
class BackoffPolicy:
    """Delay n is `min(cap_s, first_s * factor**n)`: times U(0, 1) with full jitter, U(1/2, 1) with equal jitter."""

    first_s: float = 0.1
    cap_s: float = 2.0
    factor: float = 2.0
    jitter: Jitter = "equal"

    def ceiling_s(self, failures: int) -> float:
        """The longest delay after `failures` earlier ones."""
        if self.first_s >= self.cap_s:
            return self.cap_s
        # Bounded before the power is taken: an outage of days must not overflow a float.
        steps = 0
        ceiling = self.first_s
        while steps < failures and ceiling < self.cap_s:
            ceiling *= self.factor
            steps += 1
        return min(ceiling, self.cap_s)


class Backoff:
    """The delays of one thing that is tried again and again; `reset` it on success."""

    def __init__(self, rng: Rng, policy: BackoffPolicy = BackoffPolicy()) -> None:
        self._rng = rng
        self._policy = policy
        self.failures = 0

    def next_s(self) -> float:
        """The delay after one more failure."""
        ceiling = self._policy.ceiling_s(self.failures)
        self.failures += 1
        if self._policy.jitter == "none":
            return ceiling
        if self._policy.jitter == "full":
            return ceiling * self._rng.random()
        return ceiling * (0.5 + 0.5 * self._rng.random())

    def reset(self) -> None:
        self.failures = 0
