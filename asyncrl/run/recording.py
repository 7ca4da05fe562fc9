"""All recorders of a run, opened together and written by one thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from asyncrl.run.recorders import BackgroundRecorder, EpisodeWindow, Fanout, Recorder
from asyncrl.run.row_files import MetricsFile, MonitorFile
from asyncrl.run.run_dir import RunDir
from asyncrl.run.tensorboard_events import Style, TensorBoardRecorder


@dataclass(frozen=True)
class Recording:
    """`recorder` is for the loop; `window` has the episodes that a resumed run finished before, and is the caller's."""

    recorder: BackgroundRecorder
    window: EpisodeWindow
    elapsed_s: float  # of the run before it was resumed, as its last episode says


def open_recording(
    run: RunDir,
    env_id: str,
    report: Callable[[str], None],
    *,
    track: bool = True,
    style: Style = "cleanrl",
    resume_step: int | None = None,
) -> Recording:
    """Files of a new run, or of one that goes on at `resume_step`. Blocks on the disk.

    `report` hears of trouble, once each, in the writing thread.
    """
    monitor = MonitorFile(run.monitor, env_id, report, resume_step)
    window = EpisodeWindow()
    for episode in monitor.resumed:
        window.add(episode.ret, episode.length)
    recorders: list[Recorder] = [monitor, MetricsFile(run.metrics, report, resume_step)]
    if track:
        board = TensorBoardRecorder(run.path, report, style=style, resume_step=resume_step, earlier=monitor.resumed)
        recorders.append(board)
    elapsed_s = monitor.resumed[-1].seconds if monitor.resumed else 0.0
    return Recording(BackgroundRecorder(Fanout(recorders, report)), window, elapsed_s)
