"""Figures of a round, from what fleet, collector and learner count."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, cast

import pytest

from asyncrl.buffers.staleness import Staleness
from asyncrl.client.fleet_config import FleetStats
from asyncrl.client.lane_context import LaneContext
from asyncrl.client.loop_lag import LoopLag
from asyncrl.client.seams import Clock
from asyncrl.collector.counts import CollectorStats
from asyncrl.learner.loop import LearnerThread, Update
from asyncrl.run.measuring import Measuring
from asyncrl.run.progress import Progress
from tests.unit.buffers.unrolls import an_unroll


class Counted:
    """What a run counts, by hand."""

    def __init__(self, num_lanes: int = 3) -> None:
        self.fleet = FleetStats(LaneContext(cast(Clock, None), random.Random(0)))
        self.collector = CollectorStats(0)
        self.staleness = Staleness(None)
        thread = cast(LearnerThread, _Thread(self.staleness))
        self.loop_lag = LoopLag()
        self.measuring = Measuring(num_lanes, self.fleet, self.collector, thread, self.loop_lag)

    def metrics(self) -> dict[str, float]:
        return self.measuring.metrics(Update(1, 32, {"losses/entropy": 0.5}, 0.5), Progress(steps=100), 4.0)


class _Thread:
    def __init__(self, staleness: Staleness) -> None:
        self._staleness = staleness

    @property
    def staleness(self) -> Any:
        return self._staleness.counts


def test_portions_of_lags_add_up() -> None:
    """Told after any round, what was new since the last time; together all that was admitted."""
    counted = Counted()
    total: Counter[int] = Counter()
    for version in (0, 0, 2, 1, 2):
        counted.staleness.admit([an_unroll()], version)
        portion = counted.measuring.lags()
        assert sum(portion.values()) == 6
        total.update(portion)
    assert counted.measuring.lags() == {}
    assert total == {0: 12, 1: 6, 2: 12} == counted.staleness.counts.lags


def test_shares_of_lanes() -> None:
    """A lane from which nothing came has a share of 0; before anything came so have all."""
    counted = Counted()
    assert counted.metrics()["async/lane_share_max"] == 0.0
    counted.collector.steps_by_lane.update({0: 30, 2: 10})
    found = counted.metrics()
    assert (found["async/lane_share_min"], found["async/lane_share_max"]) == (0.0, 0.75)


def test_figures_are_those_of_their_sources() -> None:
    """Each number under its name, rates over the time that they belong to."""
    counted = Counted()
    counted.collector.episodes_started, counted.collector.episodes_finished = 9, 5
    counted.collector.lost_steps = 7
    counted.fleet.faults["lane_lost"] += 2
    counted.loop_lag.add(0.25)
    counted.staleness.admit([an_unroll()], 3)
    found = counted.metrics()
    expected = {
        "losses/entropy": 0.5,
        "charts/SPS": 25.0,
        "charts/SPS_learner": 64.0,
        "charts/episodes_started": 9.0,
        "charts/episodes_finished": 5.0,
        "async/policy_lag_mean": 3.0,
        "async/policy_lag_max": 3.0,
        "async/lost_steps": 7.0,
        "async/restarts": 2.0,
        "async/loop_lag_p99_ms": 250.0,
        "async/loop_lag_max_ms": 250.0,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)
