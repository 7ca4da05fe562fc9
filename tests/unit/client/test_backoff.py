"""Backoff against its closed form."""

from __future__ import annotations

import random

import pytest

from asyncrl.client.backoff import Backoff, BackoffPolicy, Jitter


@pytest.mark.parametrize(("jitter", "low"), [("none", 1.0), ("full", 0.0), ("equal", 0.5)])
def test_delays_lie_within_the_closed_form(jitter: Jitter, low: float) -> None:
    """Delay n is min(cap, first * factor**n), times what the jitter allows."""
    policy = BackoffPolicy(first_s=0.1, cap_s=2.0, factor=2.0, jitter=jitter)
    for seed in range(50):
        backoff = Backoff(random.Random(seed), policy)
        for n in range(12):
            ceiling = min(2.0, 0.1 * 2.0**n)
            assert low * ceiling <= backoff.next_s() <= ceiling * (1 + 1e-9)


def test_jitter_spreads_over_its_whole_range() -> None:
    """Clients that failed together do not come back together."""
    first = [Backoff(random.Random(seed), BackoffPolicy(jitter="full")).next_s() for seed in range(400)]
    assert min(first) < 0.01
    assert max(first) > 0.09
    equal = [Backoff(random.Random(seed)).next_s() for seed in range(400)]
    assert 0.05 <= min(equal) < 0.06 < 0.09 < max(equal) <= 0.1


def test_reset_starts_again() -> None:
    """After a success the next failure is treated as the first."""
    backoff = Backoff(random.Random(0), BackoffPolicy(jitter="none"))
    before = [backoff.next_s() for _ in range(5)]
    backoff.reset()
    assert [backoff.next_s() for _ in range(5)] == before == [0.1, 0.2, 0.4, 0.8, 1.6]


def test_an_outage_of_days_does_not_overflow() -> None:
    """The power is never taken past the cap."""
    assert BackoffPolicy().ceiling_s(10**6) == 2.0
    assert BackoffPolicy(first_s=3.0, cap_s=2.0).ceiling_s(0) == 2.0
