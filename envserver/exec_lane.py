"""Entry of a lane process that was not forked: `python -m envserver.exec_lane SOCKET_FD DEATH_FD`.

On Windows without arguments: the socket comes through standard input.

Invariant: the lane and what it started end with the server, whatever ended that
(test_nothing_outlives_a_killed_parent). Not while C code holds the GIL on macOS, where nothing but
the server's own end of the lane would kill it.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from typing import Final, NoReturn

from envserver.confinement import confine

# A dying server's socket closes a moment before or after its death pipe.
_DEATH_S: Final = 0.5


def main(arguments: Sequence[str]) -> NoReturn:
    confine()
    if sys.platform == "win32":
        sock, before_exit = socket.fromshare(sys.stdin.buffer.read()), _nothing
    else:
        lane_fd, death_fd = map(int, arguments)
        os.set_inheritable(lane_fd, False)
        os.set_inheritable(death_fd, False)
        death_watch = threading.Thread(target=_die_with, args=(death_fd,), name="death-watch", daemon=True)
        death_watch.start()
        sock = socket.socket(fileno=lane_fd)

        def before_exit() -> None:
            # Where the server is dead, a lane that left at once would leave behind what it started.
            death_watch.join(_DEATH_S)

    # Imports of simulators are slow; from here on stacks can be dumped and the server's end is seen.
    from envserver.lane_process import run_lane

    run_lane(sock, None, before_exit)


def _nothing() -> None:
    """On Windows the job object ends what the lane started."""


def _die_with(descriptor: int) -> None:
    """Kill this lane's process group when the other end of a pipe closes: the server is gone."""
    while os.read(descriptor, 1):
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
