"""What a dashboard gets to see of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from asyncrl.run.view import View
from tests.unit.run.tiny_training import TinyRun, tiny_config

pytestmark = [pytest.mark.rpc, pytest.mark.timeout(60)]


async def test_a_run_that_has_not_begun(tmp_path: Path) -> None:
    """No lane, no figure, and its budget in whole rounds."""
    shot = View(TinyRun(tmp_path, tiny_config(tmp_path, total_timesteps=100)).training, "runs/x").snapshot()
    assert (shot.state, shot.step, shot.total_steps, shot.lanes, shot.run_dir) == ("starting", 0, 96, (), "runs/x")
    assert shot.mean_return is shot.best_return is shot.checkpoint_step is shot.eval_return is None
    assert shot.sps == 0


async def test_a_run_under_way(tmp_path: Path) -> None:
    """Steps, lanes that are up with their speeds, losses by short names; at the end the evaluation and checkpoint."""
    run = TinyRun(tmp_path, tiny_config(tmp_path, total_timesteps=3200))
    view = View(run.training, "runs/x")
    view.snapshot()
    async with run.running():
        await run.until(lambda: run.training.progress.round >= 20)
        shot = view.snapshot()
    assert shot.step >= 640
    assert shot.sps > 0
    assert [lane.num_slots for lane in shot.lanes] == [2, 2]
    assert all(lane.is_up and lane.steps_per_s > 0 for lane in shot.lanes)
    assert set(shot.losses) == {"policy", "value", "entropy", "approx_kl"}
    assert sum(shot.time_split.values()) == pytest.approx(1.0)
    assert shot.lag_mean == 0
    ended = view.snapshot()
    assert ended.share == 1.0
    assert ended.lanes == ()
    assert (ended.checkpoint_step, ended.eval_step) == (3200, 3200)
    assert ended.eval_return is not None


async def test_events_are_numbered(tmp_path: Path) -> None:
    """The last fifty, and how many there were; first lines alone."""
    run = TinyRun(tmp_path)
    for number in range(70):
        run.training.log.tell("lane_lost", f"{number}\nmore of it")
    shot = View(run.training, "x").snapshot()
    assert (len(shot.events), shot.num_events) == (50, 70)
    assert shot.events[-1][1] == "lane_lost: 69"
    run.training.log.tell("empty", "")
    assert View(run.training, "x").snapshot().events[-1][1] == "empty: "
