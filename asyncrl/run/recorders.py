"""What a run says of itself while it runs: the `Recorder` interface, fan-out, and a thread that does the writing.

* Callers never wait for a disk: rows go to a bounded queue and one thread writes them, in order
  (test_callers_do_not_wait_for_a_slow_disk, test_rows_arrive_in_order).
* Nothing is dropped: where the queue is full, the caller waits, and that is counted
  (test_a_full_queue_makes_callers_wait).
* A recorder that raises is dropped and reported once; the others go on (test_a_recorder_that_raises_is_left_out).
* After `drain()` everything recorded before it is in the files (test_drain_means_written).
* Nothing is written before `begin`; what was recorded until then comes first (test_rows_wait_for_the_beginning).
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Protocol

WINDOW: Final = 100  # episodes in a mean return
QUEUE_LIMIT: Final = 100_000  # rows
EVERY_S: Final = 0.25  # between two looks of the writing thread
LATE_S: Final = 2.0  # rows that waited longer are counted


class Recorder(Protocol):
    """Where a run's figures go. `step` counts environment steps; it never goes back, except where a run resumes."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Named numbers, as CleanRL names them."""

    def histogram(self, step: int, name: str, counts: Mapping[int, int]) -> None:
        """How often each value came up since the last one of that name."""

    def episode(self, step: int, ret: float, length: int, seconds: float) -> None:
        """A finished episode: return, steps, and seconds since the run began."""

    def text(self, step: int, tag: str, text: str) -> None:
        """Markdown."""

    def event(self, step: int, kind: str, text: str) -> None:
        """Something happened that a reader of the curves should know: a lane was lost, a checkpoint was not saved."""

    def flush(self) -> None:
        """Hands everything to the operating system."""

    def close(self) -> None:
        """Flushes and ends. Idempotent."""


class Fanout:
    """Several recorders as one."""

    def __init__(self, recorders: Iterable[Recorder], report: Callable[[str], None]) -> None:
        self.recorders = list(recorders)
        self._report = report

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._each("scalars", step, values)

    def histogram(self, step: int, name: str, counts: Mapping[int, int]) -> None:
        self._each("histogram", step, name, counts)

    def episode(self, step: int, ret: float, length: int, seconds: float) -> None:
        self._each("episode", step, ret, length, seconds)

    def text(self, step: int, tag: str, text: str) -> None:
        self._each("text", step, tag, text)

    def event(self, step: int, kind: str, text: str) -> None:
        self._each("event", step, kind, text)

    def flush(self) -> None:
        self._each("flush")

    def close(self) -> None:
        self._each("close")

    def _each(self, method: str, *arguments: Any) -> None:
        for recorder in tuple(self.recorders):
            try:
                getattr(recorder, method)(*arguments)
            except Exception as error:  # figures are not worth a run
                self.recorders.remove(recorder)
                self._report(f"{type(recorder).__name__} records nothing any more: {error!r}")


class BackgroundRecorder:
    """Hands rows to a recorder in a thread of its own, from `begin` on.

    Shared with that thread: `_rows`, whose append and popleft are atomic; the counters are written by one side each.
    """

    def __init__(self, limit: int = QUEUE_LIMIT, every_s: float = EVERY_S) -> None:
        self._limit = limit
        self._every_s = every_s
        self._rows: deque[tuple[float, str, tuple[Any, ...]]] = deque()
        self._wake = threading.Event()
        self._stopping = False
        self.waits = 0  # times that a caller found the queue full
        self.late_rows = 0  # rows that waited longer than LATE_S
        self.max_late_s = 0.0
        self._thread: threading.Thread | None = None

    def begin(self, target: Recorder) -> None:
        """This is where the rows go. Once."""
        self._thread = threading.Thread(target=self._run, args=[target], name="recorder", daemon=True)
        self._thread.start()

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._put("scalars", step, dict(values))

    def histogram(self, step: int, name: str, counts: Mapping[int, int]) -> None:
        self._put("histogram", step, name, dict(counts))

    def episode(self, step: int, ret: float, length: int, seconds: float) -> None:
        self._put("episode", step, ret, length, seconds)

    def text(self, step: int, tag: str, text: str) -> None:
        self._put("text", step, tag, text)

    def event(self, step: int, kind: str, text: str) -> None:
        self._put("event", step, kind, text)

    def flush(self) -> None:
        """Asks for it; `drain` waits for it."""
        self._wake.set()

    def drain(self, timeout_s: float | None = None) -> bool:
        """Blocks until everything recorded so far is written. False: not within `timeout_s`."""
        written = threading.Event()
        if not self._is_writing:
            return True
        self._rows.append((time.monotonic(), "", (written,)))
        self._wake.set()
        return written.wait(timeout_s)

    def close(self) -> None:
        """Blocks until everything is written, if it ever began. Idempotent."""
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    @property
    def _is_writing(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _put(self, method: str, *arguments: Any) -> None:
        if self._stopping:
            return
        if len(self._rows) >= self._limit:
            self.waits += 1
            self._wake.set()
            while len(self._rows) >= self._limit and self._is_writing:
                time.sleep(0.001)
        self._rows.append((time.monotonic(), method, arguments))

    def _run(self, target: Recorder) -> None:
        stopping = False
        while not stopping:
            self._wake.wait(self._every_s)
            self._wake.clear()
            stopping = self._stopping  # read before the rows: what came before it is still written
            drained = self._write_rows(target)
            target.flush()
            for written in drained:
                written.set()
        target.close()

    def _write_rows(self, target: Recorder) -> Sequence[threading.Event]:
        drained: list[threading.Event] = []
        while self._rows:
            began_s, method, arguments = self._rows.popleft()
            late_s = time.monotonic() - began_s
            self.max_late_s = max(self.max_late_s, late_s)
            self.late_rows += late_s > LATE_S
            if method:
                getattr(target, method)(*arguments)
            else:
                drained.extend(arguments)
        return drained


class EpisodeWindow:
    """Means over the last episodes, and the best of all. For one thread."""

    def __init__(self, size: int = WINDOW) -> None:
        self._returns: deque[float] = deque(maxlen=size)
        self._lengths: deque[int] = deque(maxlen=size)
        self.best = -math.inf
        self.count = 0

    def add(self, ret: float, length: int) -> None:
        self._returns.append(ret)
        self._lengths.append(length)
        self.best = max(self.best, ret)
        self.count += 1

    @property
    def mean_return(self) -> float | None:
        return math.fsum(self._returns) / len(self._returns) if self._returns else None

    @property
    def mean_length(self) -> float | None:
        return sum(self._lengths) / len(self._lengths) if self._lengths else None


def wall_s() -> float:
    """Seconds since 1970: for people who read files, never for timers."""
    return datetime.now(UTC).timestamp()


def hyperparameters(config: Mapping[str, object]) -> str:
    """The table that CleanRL logs under `hyperparameters`."""
    return "|param|value|\n|-|-|\n" + "\n".join(f"|{name}|{value}|" for name, value in config.items())
