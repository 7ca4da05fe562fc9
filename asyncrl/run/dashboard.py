"""A run on the screen: a live panel on a terminal, plain lines elsewhere and under CI.

* Nobody waits for the screen: `show` leaves a snapshot, a thread draws the newest one; a terminal that is stopped
  (Ctrl-S) or a pipe that nobody reads stops this thread alone (test_a_screen_that_hangs_stops_nobody), and one that is
  gone costs what would have been on it (test_a_screen_that_is_gone_costs_no_status).
* What is said meanwhile stands above the panel, or between the lines, once each (test_what_is_said_is_shown_once).
* Plain lines come every `plain_every_s` of the run's own clock; every event comes once (test_plain_lines).
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.live import Live

from asyncrl.run.dashboard_view import Snapshot, line, new_events, panel

EVERY_S: Final = 0.2
PLAIN_EVERY_S: Final = 10.0
PATIENCE_S: Final = 2.0  # at the end, with a screen that hangs
# What comes of a terminal that has vanished or a pipe that is closed; rich would have the process exit there.
GONE: Final = (OSError, ValueError, SystemExit)


class Dashboard:
    """Draws from `start` to `close`. Guard of `_shot`: it is replaced whole, by one side, and read by the other."""

    def __init__(
        self, console: Console | None = None, *, live: bool | None = None, plain_every_s: float = PLAIN_EVERY_S
    ) -> None:
        self.console = Console(highlight=False) if console is None else console
        self.is_live = self.console.is_terminal and not os.environ.get("CI") if live is None else live
        self._plain_every_s = plain_every_s
        self._shot: Snapshot | None = None
        self._said: deque[str] = deque()  # append and popleft are atomic
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dashboard", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def show(self, shot: Snapshot) -> None:
        """This is how the run stands. Never blocks."""
        self._shot = shot

    def say(self, text: str) -> None:
        """A line for whoever watches. Never blocks while the dashboard is open."""
        if self._thread.is_alive():
            self._said.append(text)
        else:
            with contextlib.suppress(*GONE):
                self._print(text)

    def leave(self) -> None:
        """The process ends now: the terminal gets its cursor back. Blocks on the screen."""
        if self.is_live and self._thread.is_alive():
            self.console.show_cursor(True)

    def close(self) -> None:
        """Draws the last snapshot and leaves it on the screen. Idempotent; gives up on a screen that hangs."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(PATIENCE_S)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        try:
            (self._run_live if self.is_live else self._run_plain)()
        except GONE:  # the run goes on unseen
            return

    def _run_live(self) -> None:
        drawn: Snapshot | None = None
        with Live(console=self.console, auto_refresh=False) as live:
            stopping = False
            while not stopping:
                stopping = self._stopping.wait(EVERY_S)
                self._print_said()
                shot = self._shot
                if shot is not None and shot is not drawn:
                    # Room for what a terminal echoes at the end: ^C would begin a line that nobody counts.
                    live.update(panel(shot, self.console.width - 3, self.console.height), refresh=True)
                drawn = shot

    def _run_plain(self) -> None:
        printed: Snapshot | None = None
        seen_events = 0
        stopping = False
        while not stopping:
            stopping = self._stopping.wait(EVERY_S)
            self._print_said()
            shot = self._shot
            if shot is None:
                continue
            for text in new_events(shot, seen_events):
                self._print(text)
            seen_events = shot.num_events
            if self._is_due(shot, printed) or (stopping and shot is not printed):
                self._print(line(shot))
                printed = shot

    def _is_due(self, shot: Snapshot, printed: Snapshot | None) -> bool:
        if printed is None or shot.state != printed.state:
            return True
        return shot.elapsed_s - printed.elapsed_s >= self._plain_every_s

    def _print_said(self) -> None:
        while self._said:
            self._print(self._said.popleft())

    def _print(self, text: str) -> None:
        self.console.print(text, soft_wrap=True, markup=False)
