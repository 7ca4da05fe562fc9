"""Runs on the disk for tests of what reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from asyncrl.run.recorders import BackgroundRecorder
from asyncrl.run.recording import begin_recording
from asyncrl.run.run_dir import RunDir


def make_run(path: Path, *, seed: int = 1, scale: float = 1.0, num_steps: int = 100, **config: Any) -> RunDir:
    """Ten steps an episode whose return is `scale` times its number; a loss every twenty steps."""
    path.mkdir(parents=True)
    run = RunDir(path)
    run.write_config({"algorithm": "ppo", "env_id": "CartPole-v1", "seed": seed, **config})
    recorder = BackgroundRecorder()
    begin_recording(recorder, run, "CartPole-v1", print, track=False)
    for step in range(10, num_steps + 1, 10):
        recorder.episode(step, scale * step / 10, 10, step / 100)
        if step % 20 == 0:
            recorder.histogram(step, "async/policy_lag", {0: 15, step // 20: 5})
            recorder.scalars(step, {"losses/value_loss": 1 / step, "charts/SPS": 100.0, "eval/episodic_return": scale})
    recorder.event(num_steps, "lane_lost", "lane 0")
    recorder.close()
    return run
