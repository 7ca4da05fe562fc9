"""Classes of lag against the sorted list of all of them."""

from __future__ import annotations

import asyncio
import math
import time

from hypothesis import given
from hypothesis import strategies as st

from asyncrl.client.loop_lag import EDGES_S, LoopLag, LoopTicks

SECONDS = st.one_of(st.just(0.0), st.floats(1e-7, 1e3))


@given(st.lists(SECONDS, min_size=1, max_size=200), st.sampled_from([0.01, 0.5, 0.9, 0.99, 1.0]))
def test_quantiles_are_near_the_true_ones(seconds: list[float], share: float) -> None:
    """Not below the value of that rank, and above it by a factor of √2 at most, where classes are that narrow."""
    lag = LoopLag()
    for each in seconds:
        lag.add(each)
    true = sorted(seconds)[max(math.ceil(share * len(seconds) - 1e-9), 1) - 1]
    found = lag.quantile(share)
    assert true <= found <= lag.max_s == max(seconds)
    if true <= EDGES_S[-1]:
        assert found <= max(true * 2**0.5 * (1 + 1e-9), EDGES_S[0])
    assert lag.last_s == seconds[-1]


def test_there_are_as_many_classes_as_ever() -> None:
    """A million timers are kept in what the first one needed; without one every quantile is 0."""
    lag = LoopLag()
    assert lag.quantile(0.99) == 0.0
    before = len(lag._counts)
    for number in range(1_000_000):
        lag.add(number * 1e-6)
    assert len(lag._counts) == before
    assert 0.49 <= lag.quantile(0.5) <= 0.72


async def test_what_holds_the_loop_up_is_seen() -> None:
    """A moment in which nothing else runs; after `close` a second one is not."""
    ticks = LoopTicks(every_s=0.005)
    await asyncio.sleep(0.05)
    time.sleep(0.3)
    await asyncio.sleep(0.05)
    ticks.close()
    assert ticks.lag.max_s >= 0.29
    assert ticks.lag.quantile(0.5) < 0.29
    before = ticks.lag.max_s
    time.sleep(2 * before)
    await asyncio.sleep(0.05)
    assert ticks.lag.max_s == before
