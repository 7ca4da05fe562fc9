"""Async training of IMPALA and APPO on a real server: what is stored, how old it gets, and who contributes."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from asyncrl.buffers.gathering import slots_of
from asyncrl.config import RunConfig
from asyncrl.learner.impala import Impala
from asyncrl.learner.model import ActorCritic
from asyncrl.records import Unroll
from tests.rpc.serving import serving
from tests.unit.run.tiny_training import TinyRun, tiny_config

pytestmark = [pytest.mark.rpc, pytest.mark.timeout(90)]

SLOW_LANE = 'uneven=tests.rpc.dawdling_env:make{"slow_seeds": [1], "sleep_s": 0.02, "jitter_s": 0.002}'


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with serving("CartPole-v1", SLOW_LANE, num_envs=16) as address:
        yield address


def config_of(tmp_path: Path, algorithm: str = "impala", **changed: Any) -> RunConfig:
    """Lanes of two slots, unrolls of 8 steps, updates of 32: half of what a turn of the fleet gives."""
    sizes = {"num_envs": 8, "lanes": 4, "batch_steps": 32, "total_timesteps": 3200}
    return tiny_config(tmp_path, algorithm, **(sizes | changed))


class Watched:
    """Sees what Impala trains on, and keeps the weights of every version. `run`: updates take so long that collection
    always fills the hand-off meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, run: TinyRun | None = None, *, remembers: bool = True) -> None:
        self.seen: list[Unroll] = []
        self.sizes: list[int] = []
        self.weights: list[dict[str, torch.Tensor]] = []
        self.alive: list[int] = []  # unrolls anywhere in the process, now and then
        self.model: ActorCritic | None = None
        self._update = Impala.update
        self._run = run
        self._remembers = remembers
        monkeypatch.setattr(Impala, "update", lambda *arguments: self.update(*arguments))

    def update(self, learner: Impala, unrolls: Sequence[Unroll], progress: float) -> dict[str, float]:
        self.model = learner.model
        self.sizes.append(sum(unroll.num_valid for unroll in unrolls))
        if self._remembers:
            self.weights.append({name: tensor.clone() for name, tensor in learner.model.state_dict().items()})
            self.seen += unrolls
        elif len(self.sizes) % 20 == 0:
            self.alive.append(sum(isinstance(each, Unroll) for each in gc.get_objects()))
        if self._run is not None:
            self._wait_until_full(self._run)
        return self._update(learner, unrolls, progress)

    def _wait_until_full(self, run: TinyRun) -> None:
        assert run.training.collector is not None
        handoff, ends = run.training.collector._handoff, time.monotonic() + 30
        while handoff.num_waiting < handoff.capacity and time.monotonic() < ends:
            time.sleep(0.001)
        assert handoff.num_waiting == handoff.capacity == 2 * 4

    def log_probs(self, unroll: Unroll, version: int) -> np.ndarray[Any, Any]:
        """f4 [T, B]: of the stored actions under the weights of a version."""
        assert self.model is not None
        self.model.load_state_dict(self.weights[version])
        with torch.no_grad():
            out = self.model.sequence([torch.from_numpy(unroll.obs[0])], torch.from_numpy(unroll.first), [])
            action = [torch.from_numpy(unroll.action[0])]
            found: np.ndarray[Any, Any] = self.model.head.log_prob(out.params, None, action).numpy()
        return found


@pytest.mark.parametrize("algorithm", ["impala", pytest.param("appo", marks=pytest.mark.slow)])
async def test_an_async_run_trains_its_budget(tmp_path: Path, server: str, algorithm: str) -> None:
    """So many updates and no more; how old data was is told step by step, and nothing was too old."""
    run = TinyRun(tmp_path, config_of(tmp_path, algorithm))
    await run.run(server)
    training, notes = run.training, run.notes
    assert training.progress.round == 100
    assert training.progress.steps == 3200
    assert training.last_eval is not None
    told: dict[int, int] = {}
    for _, name, counts in notes.histograms:
        assert name == "async/policy_lag"
        told = {lag: told.get(lag, 0) + counts.get(lag, 0) for lag in told.keys() | counts.keys()}
    assert sum(told.values()) == 3200
    assert training.metrics["async/policy_lag_mean"] == pytest.approx(sum(lag * told[lag] for lag in told) / 3200)
    assert training.metrics["async/dropped_stale"] == 0.0
    assert 0.0 < training.metrics["async/ess"] <= 1.0


async def test_each_row_has_its_version_and_its_own_log_prob(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights change inside of unrolls; versions only grow along them, and log μ is that of the version named."""
    watched = Watched(monkeypatch)
    run = TinyRun(tmp_path, config_of(tmp_path, learning_rate=1e-2))
    await run.run(server)
    assert set(watched.sizes) == {32}
    newest: dict[int, int] = {}
    num_mixed, largest_error, largest_change = 0, 0.0, 0.0
    for unroll in watched.seen:
        assert (np.diff(unroll.version) >= 0).all()
        assert unroll.version[0] >= newest.get(unroll.lane, 0)
        if unroll.fleet_slots[-1] % 2:  # the last part of an unroll that went into several batches
            newest[unroll.lane] = int(unroll.version[-1])
        num_mixed += unroll.version[0] != unroll.version[-1]
        for version in np.unique(unroll.version).tolist():
            of_version = (unroll.version == version)[:, None] & unroll.valid
            stored = unroll.log_prob[of_version]
            largest_error = max(largest_error, np.abs(watched.log_probs(unroll, version)[of_version] - stored).max())
            later = watched.log_probs(unroll, len(watched.weights) - 1)[of_version]
            largest_change = max(largest_change, np.abs(later - stored).max())
    assert num_mixed > 10
    assert largest_error < 1e-5
    assert largest_change > 1e-2


async def test_a_slow_learner_bounds_the_lag(tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Updates that last until nothing more finds room: what waits stays as little as it was, and environments wait.

    At most two unrolls a lane wait in the hand-off and one outside, one grows, and a part of one is gathered: of the
    fleet's unrolls, which are two updates each turn, no row is older than ten updates while lanes take turns. One
    that the machine keeps waiting may miss a turn.
    """
    run = TinyRun(tmp_path, config_of(tmp_path, total_timesteps=32 * 100, max_lag=100))
    watched = Watched(monkeypatch, run, remembers=False)
    await run.run(server)
    assert run.training.learner is not None
    lags = run.training.learner.staleness.lags
    assert max(lags) >= 4
    assert sum(count for lag, count in lags.items() if lag > 10) <= 0.01 * lags.total()
    assert len(watched.alive) == 5
    assert max(watched.alive) <= 4 * (2 + 1 + 1) + 4


async def test_the_oldest_rows_are_dropped_not_the_newest(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a cap below what a slow learner makes of it no row is older; those left out are older than the others."""
    run = TinyRun(tmp_path, config_of(tmp_path, total_timesteps=32 * 60, max_lag=4))
    watched = Watched(monkeypatch, run)
    await run.run(server)
    assert run.training.learner is not None
    counts = run.training.learner.staleness
    assert max(counts.lags) <= 4
    assert counts.steps_dropped > 0
    partly = [unroll for unroll in watched.seen if not unroll.valid.all()]
    assert all(unroll.valid[-1].all() for unroll in partly)
    assert all(
        unroll.version[~unroll.valid[:, 0]].max() < unroll.version[unroll.valid[:, 0]].min() for unroll in partly
    )


async def test_a_lane_ten_times_as_slow_is_no_part_of_every_batch(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every contribution is a whole unroll of a slot, however fast its lane is; how much came from whom is told, and
    games that have begun are counted beside those that have ended, which alone would be the short ones."""
    watched = Watched(monkeypatch)
    run = TinyRun(tmp_path, config_of(tmp_path, env_id="uneven", total_timesteps=3200))
    async with run.running(server):
        await run.until(lambda: len(watched.sizes) >= 90)
        collector, metrics = run.training.collector, run.training.metrics
        assert collector is not None
        stats = collector.stats
        assert stats.episodes_started == stats.episodes_finished + 8
    assert all(slots_of(unroll, 0, 1).valid.all() for unroll in watched.seen)
    assert {unroll.num_steps for unroll in watched.seen} == {8}
    # Lane 0 has the slot that dozes.
    slots = [slot for unroll in watched.seen for slot in unroll.fleet_slots.tolist()]
    by_lane = [slots.count(2 * lane) + slots.count(2 * lane + 1) for lane in range(4)]
    assert 0 < by_lane[0] < min(by_lane[1:])  # by how much depends on what else the machine does
    assert metrics["async/lane_share_min"] == pytest.approx(by_lane[0] / sum(by_lane), abs=0.05)
    assert metrics["async/lane_share_max"] == pytest.approx(max(by_lane) / sum(by_lane), abs=0.05)
    assert metrics["charts/episodes_started"] > metrics["charts/episodes_finished"] > 0
