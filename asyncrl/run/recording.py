"""All recorders of a run, opened together and written by one thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from asyncrl.run.recorders import BackgroundRecorder, Fanout, Recorder
from asyncrl.run.row_files import Episode, MetricsFile, MonitorFile
from asyncrl.run.run_dir import RunDir
from asyncrl.run.tensorboard_events import Style, TensorBoardRecorder


def begin_recording(
    recorder: BackgroundRecorder,
    run: RunDir,
    env_id: str,
    report: Callable[[str], None],
    *,
    track: bool = True,
    style: Style = "cleanrl",
    resume_step: int | None = None,
    collected_step: int | None = None,
) -> Sequence[Episode]:
    """Files of a new run, or of one that goes on at `resume_step`, for what `recorder` gets. Blocks on the disk.

    `collected_step`: up to where episodes stay, if collection was ahead of `resume_step` and goes on from there.

    The episodes that a resumed run finished before. `report` hears of trouble, once each, in the writing thread.
    """
    monitor = MonitorFile(run.monitor, env_id, report, resume_step if collected_step is None else collected_step)
    recorders: list[Recorder] = [monitor, MetricsFile(run.metrics, report, resume_step)]
    if track:
        board = TensorBoardRecorder(run.path, report, style=style, resume_step=resume_step, earlier=monitor.resumed)
        recorders.append(board)
    recorder.begin(Fanout(recorders, report))
    return monitor.resumed
