"""What a lane process gives up before any environment's code runs in it.

This contains accidents; it is no sandbox: the code still runs as the user of the server.
"""

from __future__ import annotations

import ctypes
import faulthandler
import io
import os
import signal
import sys
import threading
from types import FrameType
from typing import Final, TextIO

_PR_SET_NO_NEW_PRIVS: Final = 38
_STDERR: Final = 2
_STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def confine() -> None:
    """To be called once, in the main thread, when descriptor 2 is the lane's log already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        # The handler is C code: it writes while other C code holds the GIL.
        faulthandler.register(signal.SIGUSR1, file=_STDERR, all_threads=True)
    faulthandler.enable(_STDERR)
    ignore_stop_signals()
    sys.stdout, sys.stderr = _line_by_line(sys.stdout), _line_by_line(sys.stderr)


def _line_by_line(stream: TextIO) -> TextIO:
    """What an environment printed before it crashed is wanted most.

    A new wrapper: the old one remembers that its descriptor was a file which can seek, if it was; now it is a pipe.
    """
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    return open(stream.fileno(), "w", buffering=1, errors="backslashreplace", closefd=False)


def ignore_stop_signals() -> None:
    """SIGINT and SIGTERM are the server's: it drains, then closes its sockets, and everything of it exits.

    By handlers that do nothing, because ignored signals would stay ignored in programs that an environment
    starts, and `Popen.terminate()` would not end them.
    """
    for number in _STOP_SIGNALS:
        signal.signal(number, _ignore)
    if sys.platform != "win32" and not _watched_forks:
        # Once: a lane inherits the hooks of the nursery that forked it.
        _watched_forks.append(True)
        os.register_at_fork(before=_hold_back, after_in_parent=_let_through, after_in_child=_obey_stop_signals)


# Non-empty when the hooks are registered.
_watched_forks: list[bool] = []
_before_fork = threading.local()


def _hold_back() -> None:
    """A signal that came to a forked process before it obeys would be lost: it has to wait."""
    _before_fork.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)


def _let_through() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _before_fork.mask)


def _obey_stop_signals() -> None:
    """In processes that an environment forks. A lane that the nursery has forked ignores them again."""
    for number in _STOP_SIGNALS:
        if signal.getsignal(number) is _ignore:
            signal.signal(number, signal.SIG_DFL)
    _let_through()


def _ignore(_number: int, _frame: FrameType | None) -> None:
    pass
