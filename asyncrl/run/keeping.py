"""`Keeper`: checkpoints of a run, written off the loop, in the order they were asked for.

Invariants: a slow or broken disk delays neither the loop nor the learner (test_a_slow_disk_delays_nobody); the best
evaluation's checkpoint is the marked one (test_the_best_is_marked), and one of an earlier round is never taken for the
newest, however late it is saved (test_a_late_best_is_not_the_newest); a later life of the run has the best of those
before it to beat (test_a_later_life_has_the_best_to_beat); a round is saved once (test_a_round_is_saved_once).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from asyncrl.errors import CheckpointNotSaved
from asyncrl.run.checkpoints import CheckpointStore
from asyncrl.run.learning import Saved
from asyncrl.run.progress import Progress

R = TypeVar("R")


class Keeper:
    """`report` hears of trouble with the disk, on the loop; training goes on. `drain` is called before each save: the
    rows that a run recorded before its checkpoint are on the disk when the checkpoint is.

    Guard: `newest`, `newest_step` and `best` are written by the one thread that writes, and read by the loop.
    """

    def __init__(self, store: CheckpointStore, report: Callable[[str], None], drain: Callable[[], object]) -> None:
        self.store = store
        self.newest: Path | None = None
        self.newest_step: int | None = None
        self.best = _best_score(store)  # of the checkpoint that is marked
        self._report = report
        self._drain = drain
        self._num_waiting = 0
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="keeper")

    @property
    def is_busy(self) -> bool:
        """Something is being written, or waits for it."""
        return self._num_waiting > 0

    def resume(self, path: Path, step: int) -> None:
        """This one is where the run goes on from."""
        self.newest, self.newest_step = path, step

    async def keep(self, progress: Progress, saved: Saved, *, hold: bool = False) -> Path | None:
        """Save; the round's checkpoint, or None where the disk was in the way. With `hold` it stays until the next one
        that is held. Cancelled, a write that has begun goes on in its thread."""
        report = self._reporter()
        return await self._in_thread(lambda: self._write(progress, saved, hold, report))

    async def mark(self, path: Path, score: float) -> None:
        """This one is the best. Cancelled, it is so all the same."""
        report = self._reporter()
        await self._in_thread(lambda: self._mark(path, score, report))

    def close(self) -> None:
        """Nothing more is kept; what is being written is finished in its thread."""
        self._thread.shutdown(wait=False)

    async def _in_thread(self, work: Callable[[], R]) -> R:
        self._num_waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        finally:
            self._num_waiting -= 1

    def _reporter(self) -> Callable[[str], None]:
        """For the thread."""
        loop = asyncio.get_running_loop()

        def report(text: str) -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody is left to tell
                loop.call_soon_threadsafe(self._report, text)

        return report

    def _write(self, progress: Progress, saved: Saved, hold: bool, report: Callable[[str], None]) -> Path | None:
        path = self.newest
        if path is None or progress.steps != self.newest_step:
            info = {"round": progress.round}
            self._drain()
            parts = {**saved.parts(), **progress.parts()}
            path = self.store.save_or_report(progress.steps, parts, info, report=report, serial=progress.serial)
            if path is None:
                return None
            if progress.steps > (self.newest_step or -1):
                self.newest, self.newest_step = path, progress.steps
        if hold:
            self.store.held = path
        return path

    def _mark(self, path: Path, score: float, report: Callable[[str], None]) -> None:
        try:
            self.store.mark_best(path, score)
        except CheckpointNotSaved as error:
            report(str(error))
        else:
            self.best = score


def _best_score(store: CheckpointStore) -> float | None:
    """None where nothing is marked that could be beaten."""
    marked = store.best()
    return marked[1] if marked is not None and marked[0].is_dir() and math.isfinite(marked[1]) else None
