"""All recorders of a run, opened together and written by one thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from asyncrl.run.recorders import BackgroundRecorder, Fanout, Recorder
from asyncrl.run.row_files import Episode, MetricsFile, MonitorFile
from asyncrl.run.run_dir import RunDir
from asyncrl.run.tensorboard_events import Style, TensorBoardRecorder


class ResumeAt(NamedTuple):
    """Steps: where curves go on, and episodes, which without rounds are ahead of what is trained on."""

    trained: int
    collected: int


def begin_recording(
    recorder: BackgroundRecorder,
    run: RunDir,
    env_id: str,
    report: Callable[[str], None],
    *,
    track: bool = True,
    style: Style = "cleanrl",
    resume: ResumeAt | None = None,
) -> Sequence[Episode]:
    """Files of a new run, or of one that goes on at `resume`, for what `recorder` gets. Blocks on the disk.

    The episodes that a resumed run finished before. `report` hears of trouble, once each, in the writing thread.
    """
    trained, collected = (None, None) if resume is None else resume
    monitor = MonitorFile(run.monitor, env_id, report, collected)
    recorders: list[Recorder] = [monitor, MetricsFile(run.metrics, report, trained)]
    if track:
        board = TensorBoardRecorder(run.path, report, style=style, resume_step=trained, earlier=monitor.resumed)
        recorders.append(board)
    recorder.begin(Fanout(recorders, report))
    return monitor.resumed
