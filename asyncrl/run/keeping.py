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
    """`report` hears of trouble with the disk, on the loop; training goes on."""

    def __init__(self, store: CheckpointStore, report: Callable[[str], None]) -> None:
        self.store = store
        self.newest: Path | None = None
        self.newest_step: int | None = None
        self._report = report
        self._busy = asyncio.Lock()

    async def keep(self, progress: Progress, saved: Saved, score: float | None = None) -> None:
        """Save; with `score`, mark it as the best. Cancelled, the write goes on in its thread."""
        async with self._busy:
            await asyncio.to_thread(self._write, progress, saved, score, asyncio.get_running_loop())

    def _write(self, progress: Progress, saved: Saved, score: float | None, loop: asyncio.AbstractEventLoop) -> None:
        def report(text: str) -> None:
            loop.call_soon_threadsafe(self._report, text)

        info = {"round": progress.round, "eval_return": score}
        path = self.store.save_or_report(progress.steps, {**saved.parts(), **progress.parts()}, info, report=report)
        if path is None:
            return
        self.newest, self.newest_step = path, progress.steps
        if score is not None:
            try:
                self.store.mark_best(path, score)
            except CheckpointNotSaved as error:
                report(str(error))
