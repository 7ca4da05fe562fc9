"""What a `Training` looks like right now, for the dashboard."""

from __future__ import annotations

from collections import deque
from typing import Final

from asyncrl.run.dashboard_view import LaneHealth, Snapshot
from asyncrl.run.training import Training

RATE_S: Final = 5.0  # speeds are over the last so many seconds
KEPT_EVENTS: Final = 50
SHOWN_LOSSES: Final = frozenset(
    {
        *("losses/policy_loss", "losses/value_loss", "losses/entropy", "losses/approx_kl"),
        *("losses/td_loss", "losses/q_values", "charts/epsilon"),
    }
)


class View:
    """Takes snapshots of one run. Loop only."""

    def __init__(self, training: Training, run_dir: str) -> None:
        self._training = training
        self._run_dir = run_dir
        self._speeds: deque[tuple[float, int, dict[int, int]]] = deque()  # (time, steps, steps by lane)
        self._last_sps = 0.0

    def snapshot(self) -> Snapshot:
        """Of this moment."""
        training = self._training
        config, progress, window = training.config, training.progress, training.window
        found = training.last_eval
        return Snapshot(
            algorithm=training.algorithm,
            env_id=config.env_id,
            seed=config.seed,
            run_dir=self._run_dir,
            state=training.state,
            step=progress.steps,
            total_steps=config.num_rounds * config.batch_size,
            elapsed_s=training.elapsed_s,
            sps=self._sps(),
            episodes=window.count,
            mean_return=window.mean_return,
            best_return=window.best if window.count else None,
            mean_length=window.mean_length,
            eval_return=None if found is None else found[1].mean,
            eval_step=0 if found is None else found[0],
            lag_mean=training.metrics.get("async/policy_lag_mean"),
            lag_max=training.metrics.get("async/policy_lag_max"),
            time_split=training.time_split(),
            losses={
                name.rpartition("/")[2].removesuffix("_loss"): value
                for name, value in training.metrics.items()
                if name in SHOWN_LOSSES
            },
            lanes=self._lanes(),
            events=tuple(training.log.events)[-KEPT_EVENTS:],
            num_events=training.log.num_events,
            checkpoint_step=None if training.keeper is None else training.keeper.newest_step,
        )

    def _sps(self) -> float:
        """Steps that arrived lately, trained on or not; once collection is over, as fast as it was at the end."""
        training, now = self._training, self._training.elapsed_s
        if training.fleet is None and training.collector is not None:
            return self._last_sps
        collector = training.collector
        steps = training.progress.steps if collector is None else collector.stats.steps
        by_lane = {} if collector is None else dict(collector.stats.steps_by_lane)
        self._speeds.append((now, steps, by_lane))
        while now - self._speeds[0][0] > RATE_S:
            self._speeds.popleft()
        then, before, _ = self._speeds[0]
        self._last_sps = max(steps - before, 0) / (now - then) if now > then else 0.0
        return self._last_sps

    def _lanes(self) -> tuple[LaneHealth, ...]:
        fleet = self._training.fleet
        if fleet is None:
            return ()
        then, _, before = self._speeds[0]
        now, _, by_lane = self._speeds[-1]
        seconds = max(now - then, 1e-9)
        return tuple(
            LaneHealth(
                index=lane.index,
                server=lane.address,
                num_slots=lane.num_slots,
                is_up=lane.up,
                losses=self._training.log.losses_by_lane[lane.index],
                steps_per_s=max(by_lane.get(lane.index, 0) - before.get(lane.index, 0), 0) / seconds,
            )
            for lane in fleet.lanes
        )
