"""All files of a run at once, over a kill and a resume."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from asyncrl.run.recorders import BackgroundRecorder
from asyncrl.run.recording import ResumeAt, begin_recording
from asyncrl.run.row_files import read_metrics, read_monitor
from asyncrl.run.run_dir import RunDir

event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def recorded(run: RunDir, report: Callable[[str], None]) -> BackgroundRecorder:
    """A new run of thirty steps."""
    recorder = BackgroundRecorder()
    begin_recording(recorder, run, "CartPole-v1", report)
    for step in (10, 20, 30):
        recorder.episode(step, float(step), 10, step / 10)
        recorder.scalars(step, {"charts/SPS": step})
    return recorder


def test_a_recording_goes_on_where_its_checkpoint_was(tmp_path: Path) -> None:
    """Rows past the checkpoint are taken back, those before it are told of."""
    reports: list[str] = []
    run = RunDir(tmp_path)
    first, second = recorded(run, reports.append), BackgroundRecorder()
    assert first.drain()  # and no close: it was killed here
    resumed = begin_recording(second, run, "CartPole-v1", reports.append, resume=ResumeAt(20, 20))
    assert [(episode.ret, episode.step, episode.seconds) for episode in resumed] == [(10.0, 10, 1.0), (20.0, 20, 2.0)]
    second.episode(25, 1.0, 5, 2.5)
    second.close()
    first.close()
    assert [episode.step for episode in read_monitor(run.monitor)] == [10, 20, 25]
    assert [row["step"] for row in read_metrics(run.metrics)] == [10, 20]
    assert len(list(tmp_path.glob("events.out.tfevents.*"))) == 2
    assert reports == []


def test_episodes_of_what_was_collected_and_not_trained_on_stay(tmp_path: Path) -> None:
    """Without rounds collection goes on where it was, ahead of the learner: its episodes stay."""
    reports: list[str] = []
    run = RunDir(tmp_path)
    recorded(run, reports.append).close()
    second = BackgroundRecorder()
    begin_recording(second, run, "CartPole-v1", reports.append, resume=ResumeAt(10, 20))
    second.episode(25, 1.0, 5, 2.5)
    second.close()
    assert [episode.step for episode in read_monitor(run.monitor)] == [10, 20, 25]
    assert [row["step"] for row in read_metrics(run.metrics)] == [10]
    board = event_accumulator.EventAccumulator(str(tmp_path))
    board.Reload()
    assert [event.step for event in board.Scalars("charts/episodic_return")] == [10, 20, 25]
    assert [event.step for event in board.Scalars("charts/SPS")] == [10]
    assert reports == []


def test_without_tensorboard_there_are_two_files(tmp_path: Path) -> None:
    """`track` off: monitor.csv and metrics.jsonl alone."""
    recorder = BackgroundRecorder()
    begin_recording(recorder, RunDir(tmp_path), "CartPole-v1", print, track=False)
    recorder.close()
    assert {path.name for path in tmp_path.iterdir()} == {"monitor.csv", "metrics.jsonl"}
