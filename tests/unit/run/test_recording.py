"""All files of a run at once, over a kill and a resume."""

from __future__ import annotations

from pathlib import Path

from asyncrl.run.recording import open_recording
from asyncrl.run.row_files import read_metrics, read_monitor
from asyncrl.run.run_dir import RunDir


def test_a_recording_goes_on_where_its_checkpoint_was(tmp_path: Path) -> None:
    """Rows past the checkpoint are taken back, the window and the clock go on."""
    reports: list[str] = []
    run = RunDir(tmp_path)
    first = open_recording(run, "CartPole-v1", reports.append)
    for step in (10, 20, 30):
        first.recorder.episode(step, float(step), 10, step / 10)
        first.recorder.scalars(step, {"charts/SPS": step})
    assert first.recorder.drain()  # and no close: it was killed here
    second = open_recording(run, "CartPole-v1", reports.append, resume_step=20)
    assert (second.window.mean_return, second.window.count, second.elapsed_s) == (15.0, 2, 2.0)
    second.recorder.episode(25, 1.0, 5, 2.5)
    second.recorder.close()
    first.recorder.close()
    assert [episode.step for episode in read_monitor(run.monitor)] == [10, 20, 25]
    assert [row["step"] for row in read_metrics(run.metrics)] == [10, 20]
    assert len(list(tmp_path.glob("events.out.tfevents.*"))) == 2
    assert reports == []


def test_without_tensorboard_there_are_two_files(tmp_path: Path) -> None:
    """`track` off: monitor.csv and metrics.jsonl alone."""
    open_recording(RunDir(tmp_path), "CartPole-v1", print, track=False).recorder.close()
    assert {path.name for path in tmp_path.iterdir()} == {"monitor.csv", "metrics.jsonl"}
