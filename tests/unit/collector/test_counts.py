"""What a collector counts that is more than a sum."""

from __future__ import annotations

import numpy as np

from asyncrl.collector.counts import CollectorState, CollectorStats


def test_a_straggler_takes_twice_as_long_as_the_others() -> None:
    """Four lanes: one at 2.5 times the median of the others is counted, once an unroll; a lone lane never."""
    stats = CollectorStats(0)
    for _ in range(2):
        for lane, seconds in ((0, 1.0), (1, 1.1), (2, 0.9), (3, 2.5)):
            stats.unroll_took(lane, seconds)
    assert stats.stragglers == {3: 2}
    alone = CollectorStats(0)
    for seconds in (1.0, 100.0):
        alone.unroll_took(0, seconds)
    assert not alone.stragglers


def test_a_fresh_state_begins_at_nothing() -> None:
    """No acts, no rounds, no steps; the carry is the policy's initial one."""
    state = CollectorState.fresh(3, [np.ones((3, 2))])
    assert (state.act_steps.tolist(), state.round, state.steps) == ([0, 0, 0], 0, 0)
    assert state.carry[0].tolist() == [[1.0, 1.0]] * 3
