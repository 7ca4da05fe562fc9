"""What one segment of a run tells about itself after each round, beside what the learner does.

Invariants: lags are told in portions that add up to what was trained on (test_portions_of_lags_add_up); shares of lanes
are of the steps that arrived (test_shares_of_lanes).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from asyncrl.client.fleet_config import FleetStats
from asyncrl.client.loop_lag import LoopLag
from asyncrl.collector.counts import CollectorStats
from asyncrl.learner.loop import LearnerThread, Update
from asyncrl.run.curves import LAG
from asyncrl.run.progress import Progress


class Measuring:
    """Of one fleet, collector and learner's thread. `loop_lag` is from when they began. Loop only."""

    def __init__(
        self,
        num_lanes: int,
        fleet: FleetStats,
        collector: CollectorStats,
        learner: LearnerThread,
        loop_lag: LoopLag,
    ) -> None:
        self._num_lanes = num_lanes
        self._loop_lag = loop_lag
        self._fleet, self._collector, self._learner = fleet, collector, learner
        self._told_lags: Counter[int] = Counter()

    def metrics(self, update: Update, progress: Progress, elapsed_s: float) -> dict[str, float]:
        """By name, after this update."""
        lag, collected, stats = self._learner.staleness, self._collector, self._fleet
        return update.metrics | {
            "charts/SPS": progress.steps / max(elapsed_s, 1e-9),
            "charts/SPS_learner": update.steps / max(update.update_s, 1e-9),
            "charts/episodes_started": float(collected.episodes_started),
            "charts/episodes_finished": float(collected.episodes_finished),
            "perf/update_s": update.update_s,
            "perf/wait_s": update.wait_s,
            "time/wall_s": elapsed_s,
            f"{LAG}_mean": lag.mean_lag,
            f"{LAG}_max": float(max(lag.lags, default=0)),
            "async/dropped_stale": float(lag.steps_dropped),
            "async/lost_steps": float(collected.lost_steps),
            "async/restarts": float(stats.faults["lane_lost"]),
            "async/reconnects": float(stats.faults["stream_resumed"]),
            "async/loop_lag_p99_ms": 1e3 * self._loop_lag.quantile(0.99),
            "async/loop_lag_max_ms": 1e3 * self._loop_lag.max_s,
            **self._shares(),
        }

    def _shares(self) -> dict[str, float]:
        """Of the steps that arrived: the lane with the fewest, and the one with the most."""
        by_lane = self._collector.steps_by_lane
        total = max(by_lane.total(), 1)
        shares = [by_lane[lane] / total for lane in range(self._num_lanes)]
        return {"async/lane_share_min": min(shares), "async/lane_share_max": max(shares)}

    def lags(self) -> Mapping[int, int]:
        """Steps that were trained on since the last call, by how many versions old they were."""
        known = self._learner.staleness.lags
        new, self._told_lags = known - self._told_lags, known
        return new
