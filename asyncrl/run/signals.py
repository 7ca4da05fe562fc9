"""SIGINT and SIGTERM of a process that trains: the first one asks the run to end, the second ends the process.

Invariants: a signal that comes before anybody listens is heard as soon as somebody does
(test_a_signal_before_the_listener_is_kept); what does not end within `grace_s` is cut short, with status 1
(test_a_run_that_does_not_end_is_cut_short); a terminal that is gone stops no stop
(test_a_signal_that_cannot_be_told_is_heard); handlers are as they were before afterwards
(test_handlers_are_given_back).
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final, Self

# Whoever stops us kills after 30 s, as a rule.
GRACE_S: Final = 22.0
STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """A context manager. In another thread than the main one it catches nothing: Python has it so.

    `say` is told what the signal does; `at_once` is called before the process is ended, in a thread that nobody waits
    long for, since a terminal may hang.
    """

    def __init__(
        self,
        say: Callable[[str], None] = lambda text: None,
        at_once: Callable[[], None] = lambda: None,
        grace_s: float = GRACE_S,
    ) -> None:
        self.caught = False
        self._say = say
        self._at_once = at_once
        self._grace_s = grace_s
        self._listener: Callable[[], None] | None = None
        self._before: dict[signal.Signals, Any] = {}
        self._timer: threading.Timer | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in STOP_SIGNALS}
        return self

    def __exit__(self, *exc_info: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._timer is not None:
            self._timer.cancel()

    @contextlib.contextmanager
    def heard_by(self, listener: Callable[[], None]) -> Iterator[None]:
        """`listener` is called at the first signal, in the main thread between two steps of whatever runs there; at
        once if that has come already."""
        self._listener = listener
        try:
            if self.caught:
                listener()
            yield
        finally:
            self._listener = None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.caught:
            self._end(128 + number)
        self.caught = True
        self._timer = threading.Timer(self._grace_s, self._too_late)
        self._timer.daemon = True
        self._timer.start()
        if self._listener is not None:
            self._listener()
        # Raised from here, an error of a terminal that is gone would come out of whatever line runs just now.
        with contextlib.suppress(OSError, ValueError):
            self._say(f"{signal.Signals(number).name}: stops after this round, with a checkpoint; again: at once")

    def _too_late(self) -> None:
        self._end(1, f"it has not ended within {self._grace_s:g} s and is cut short: its last checkpoint stays")

    def _end(self, status: int, why: str = "") -> None:
        def last_words() -> None:
            self._at_once()
            if why:
                self._say(why)

        thread = threading.Thread(target=last_words, daemon=True)
        thread.start()
        thread.join(0.5)
        os._exit(status)
