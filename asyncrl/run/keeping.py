"""`Keeper`: checkpoints of a run, written off the loop, one at a time.

Invariants: a slow or broken disk delays neither the loop nor the learner
(test_a_slow_disk_delays_nobody); the best evaluation's checkpoint is the marked one (test_the_best_is_marked).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from asyncrl.errors import CheckpointNotSaved
from asyncrl.run.checkpoints import CheckpointStore
from asyncrl.run.learning import Saved
from asyncrl.run.progress import Progress


class Keeper:
    """`report` hears of trouble with the disk, on the loop; training goes on. `drain` is called before each save: the
    rows that a run recorded before its checkpoint are on the disk when the checkpoint is."""

    def __init__(self, store: CheckpointStore, report: Callable[[str], None], drain: Callable[[], object]) -> None:
        self.store = store
        self.newest: Path | None = None
        self.newest_step: int | None = None
        self._report = report
        self._drain = drain
        self._busy = asyncio.Lock()

    async def keep(self, progress: Progress, saved: Saved, score: float | None = None) -> None:
        """Save; with `score`, mark it as the best. Cancelled, the write goes on in its thread."""
        async with self._busy:
            await asyncio.to_thread(self._write, progress, saved, score, asyncio.get_running_loop())

    def _write(self, progress: Progress, saved: Saved, score: float | None, loop: asyncio.AbstractEventLoop) -> None:
        def report(text: str) -> None:
            loop.call_soon_threadsafe(self._report, text)

        if progress.steps == self.newest_step and score is not None and self.newest is not None:
            self._mark(self.newest, score, report)
            return
        info = {"round": progress.round, "eval_return": score}
        self._drain()
        path = self.store.save_or_report(progress.steps, {**saved.parts(), **progress.parts()}, info, report=report)
        if path is None:
            return
        self.newest, self.newest_step = path, progress.steps
        if score is not None:
            self._mark(path, score, report)

    def _mark(self, path: Path, score: float, report: Callable[[str], None]) -> None:
        try:
            self.store.mark_best(path, score)
        except CheckpointNotSaved as error:
            report(str(error))
