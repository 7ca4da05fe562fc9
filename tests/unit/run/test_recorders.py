"""Recorders: in order, off the caller's thread, and no recorder takes the others down."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from asyncrl.run.recorders import BackgroundRecorder, EpisodeWindow, Fanout, hyperparameters


class Remembering:
    """A recorder that keeps what it is told; `gate` closed: it hangs as on a disk."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, int]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.closed = 0
        self.threads: set[str] = set()

    def _row(self, kind: str, step: int) -> None:
        self.threads.add(threading.current_thread().name)
        self.gate.wait(30)
        self.rows.append((kind, step))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._row(str(dict(values)), step)

    def histogram(self, step: int, name: str, counts: Mapping[int, int]) -> None:
        self._row(f"{name} {dict(counts)}", step)

    def episode(self, step: int, ret: float, length: int, seconds: float) -> None:
        self._row("episode", step)

    def text(self, step: int, tag: str, text: str) -> None:
        self._row(tag, step)

    def event(self, step: int, kind: str, text: str) -> None:
        self._row(kind, step)

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        self.closed += 1


def begun(target: Remembering, **settings: Any) -> BackgroundRecorder:
    recorder = BackgroundRecorder(**settings)
    recorder.begin(target)
    return recorder


class Raising(Remembering):
    def episode(self, step: int, ret: float, length: int, seconds: float) -> None:
        raise RuntimeError("no")


def test_rows_arrive_in_order() -> None:
    """All kinds through one queue, written by the recorder's thread; a dictionary is taken as it was."""
    target = Remembering()
    recorder = begun(target)
    values = {"a": 1.0}
    recorder.scalars(1, values)
    values["a"] = 2.0
    counts = {0: 3}
    recorder.histogram(1, "lag", counts)
    counts[0] = 4
    recorder.episode(2, 1.0, 1, 0.0)
    recorder.text(3, "tag", "")
    recorder.event(4, "kind", "")
    recorder.close()
    assert target.rows == [("{'a': 1.0}", 1), ("lag {0: 3}", 1), ("episode", 2), ("tag", 3), ("kind", 4)]
    assert target.threads == {"recorder"}


def test_rows_wait_for_the_beginning() -> None:
    """More of them than the queue holds wait for no thread; a recorder that is closed first writes nothing."""
    target, never = Remembering(), BackgroundRecorder(limit=1)
    recorder = BackgroundRecorder(limit=1)
    for step in range(3):
        recorder.episode(step, 0.0, 1, 0.0)
        never.episode(step, 0.0, 1, 0.0)
    assert recorder.drain()
    never.close()
    recorder.begin(target)
    recorder.episode(3, 0.0, 1, 0.0)
    recorder.close()
    assert [step for _, step in target.rows] == [0, 1, 2, 3]


def test_callers_do_not_wait_for_a_slow_disk() -> None:
    """While the writing thread hangs, a thousand rows are taken, and counted as late only after it."""
    target = Remembering()
    recorder = begun(target)
    target.gate.clear()
    for step in range(1000):
        recorder.episode(step, 0.0, 1, 0.0)
    assert len(target.rows) == 0
    assert recorder.waits == 0
    target.gate.set()
    recorder.close()
    assert [step for _, step in target.rows] == list(range(1000))


def test_a_full_queue_makes_callers_wait() -> None:
    """The 12th row of a queue of ten waits for the disk; then all of them are there."""
    target = Remembering()
    recorder = begun(target, limit=10, every_s=0.01)
    target.gate.clear()

    def call() -> None:
        for step in range(30):
            recorder.episode(step, 0.0, 1, 0.0)

    caller = threading.Thread(target=call)
    caller.start()
    while not recorder.waits:
        pass
    assert caller.is_alive()
    target.gate.set()
    caller.join()
    recorder.close()
    assert [step for _, step in target.rows] == list(range(30))


def test_drain_means_written() -> None:
    """True as soon as everything is written, False where the disk hangs longer than the patience."""
    target = Remembering()
    recorder = begun(target, every_s=60)
    for step in range(100):
        recorder.episode(step, 0.0, 1, 0.0)
    assert recorder.drain()
    assert len(target.rows) == 100
    target.gate.clear()
    recorder.episode(100, 0.0, 1, 0.0)
    assert not recorder.drain(timeout_s=0.01)
    target.gate.set()
    recorder.close()
    assert recorder.drain()


def test_close_is_idempotent_and_later_rows_are_void() -> None:
    """The target is closed once; nobody waits for a thread that has ended."""
    target = Remembering()
    recorder = begun(target, limit=1)
    recorder.close()
    recorder.close()
    recorder.episode(1, 0.0, 1, 0.0)
    assert (target.closed, target.rows) == (1, [])


def test_a_recorder_that_raises_is_left_out() -> None:
    """One report with its name; the others have every row."""
    reports: list[str] = []
    good, bad = Remembering(), Raising()
    fanout = Fanout([bad, good], reports.append)
    for step in range(3):
        fanout.episode(step, 0.0, 1, 0.0)
    fanout.close()
    assert [step for _, step in good.rows] == [0, 1, 2]
    assert len(reports) == 1
    assert "Raising" in reports[0]


def test_the_window_has_the_last_episodes_and_the_best_of_all() -> None:
    """Means over the window's size; no episode, no mean."""
    window = EpisodeWindow(size=3)
    assert [window.mean_return, window.mean_length] == [None, None]
    for ret in (9.0, 1.0, 2.0, 3.0):
        window.add(ret, int(ret) * 2)
    assert [window.mean_return, window.mean_length, window.best, window.count] == [2.0, 4.0, 9.0, 4]


def test_hyperparameters_are_a_table() -> None:
    """A row per setting under CleanRL's heading."""
    assert hyperparameters({"gamma": 0.99, "seed": 1}) == "|param|value|\n|-|-|\n|gamma|0.99|\n|seed|1|"
