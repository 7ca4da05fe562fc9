"""The log of a server on its standard error, for which its event loop never waits.

Invariant: whoever holds the other end of the pipe and does not read it, such as a program that stands still beside its
embedded server, costs records and no time (test_a_pipe_that_nobody_reads_holds_up_nothing).
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import sys
from typing import Final

FORMAT: Final = "%(asctime)s %(levelname).1s %(name)s: %(message)s"
# What a pipe takes at once that poll() calls writable.
PIECE_BYTES: Final = getattr(select, "PIPE_BUF", 512)


class NeverWaitingHandler(logging.Handler):
    """Writes to a descriptor what it takes without waiting; the rest is counted, and said as soon as it takes more.

    On Windows, where no pipe can be asked, it waits.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._num_left_out = 0
        self.setFormatter(logging.Formatter(FORMAT))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record)
            with contextlib.suppress(OSError):  # nobody will ever read it
                if self._num_left_out and self._write(f"\n{self._num_left_out} records left out: nobody read them\n"):
                    self._num_left_out = 0
                if self._num_left_out or not self._write(f"{text}\n"):
                    self._num_left_out += 1
        except Exception:
            self.handleError(record)

    def _write(self, text: str) -> bool:
        """Whether all of it was written."""
        data = text.encode(errors="backslashreplace")
        while data and self._takes_more():
            # A terminal or a socket may take less.
            data = data[os.write(self._descriptor, data[:PIECE_BYTES]) :]
        return not data

    def _takes_more(self) -> bool:
        if sys.platform == "win32":
            return True
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        return bool(poll.poll(0))


def log_to_stderr(level: int) -> None:
    """Everything that this process logs."""
    logging.basicConfig(level=level, handlers=[NeverWaitingHandler(2)])
