"""The nursery: a single-threaded process that imports the simulators once and forks lanes that share them.

`python -m envserver.nursery CONTROL_FD`, with the configuration (JSON) on standard input. The control socket keeps
message boundaries; a request to fork brings the lane's socket and log pipe, its answer a pidfd.

Orphans below the nursery become its children. Those of a lane that has ended are killed; a daemon of a lane that
lives is left to it, and what the environments' modules started while they were imported belongs to nobody and stays.
Of a process without a marker nobody knows whose it is: it goes with the last lane.

Invariants: when the control socket closes, every lane's process group is killed
(test_nothing_outlives_a_killed_parent); grandchildren die with their lane
(test_grandchildren_die_with_their_lane), in whatever session they are (test_what_left_the_group_dies_with_its_lane),
and with no other one (test_a_daemon_lives_as_long_as_its_lane); a lane holds no descriptor of the nursery's
(test_a_lane_inherits_no_socket); neither grpc, torch nor asyncio is imported here (test_the_nursery_stays_light).
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
import traceback
from typing import Any, Final, NoReturn

import numpy as np

from envserver.child_process import CONTROL_BYTES, cause_of, kill_group
from envserver.confinement import confine
from envserver.descendants import adopt_orphans, children, lane_of, mark_as_lane
from envserver.lane_process import run_lane
from envserver.registry import Registry

_NUM_FDS: Final = 2  # of a request: the lane's socket, the write end of its log


class Nursery:
    """Forks on request, reaps and reports, until its control socket closes."""

    def __init__(self, control: socket.socket, registry: Registry) -> None:
        self._control = control
        self._registry = registry
        self._lanes: set[int] = set()
        self._kept = set(children(os.getpid()))  # started by the imports
        self._wake_read, self._wake_write = os.pipe()
        for descriptor in (self._wake_read, self._wake_write):
            os.set_blocking(descriptor, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)

    def run(self) -> None:
        self._tell({"ready": True})
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self._wake_read in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_read, CONTROL_BYTES)
                self._reap()
            if self._control.fileno() in ready and not self._serve_request():
                return

    def kill_all(self) -> None:
        """Every lane with everything it started."""
        for pid in self._lanes:
            kill_group(pid)
        for pid in self._lanes:
            os.waitpid(pid, 0)  # from now on its orphans are ours
        self._lanes.clear()
        while strays := self._strays():
            for pid in strays:
                os.kill(pid, signal.SIGKILL)
            for pid in strays:
                os.waitpid(pid, 0)

    def _serve_request(self) -> bool:
        data, descriptors = b"", list[int]()
        with contextlib.suppress(ConnectionResetError):  # the server died with messages of ours unread
            data, descriptors, _, _ = socket.recv_fds(self._control, CONTROL_BYTES, _NUM_FDS, socket.MSG_CMSG_CLOEXEC)
        if not data:
            return False
        try:
            ticket = json.loads(data)["fork"]
            if len(descriptors) == _NUM_FDS:
                self._fork(ticket, *descriptors)
            else:
                self._tell({"failed": ticket, "text": "the nursery is out of file descriptors"})
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return True

    def _fork(self, ticket: int, lane_fd: int, log_fd: int) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            self._tell({"failed": ticket, "text": f"fork: {error.strerror}"})
            return
        if pid == 0:
            self._become_lane(lane_fd, log_fd)
        self._lanes.add(pid)
        # Nobody but this process reaps it, so the pid is still its own.
        pidfd = os.pidfd_open(pid)
        try:
            self._tell({"started": ticket, "pid": pid}, [pidfd])
        finally:
            os.close(pidfd)

    def _become_lane(self, lane_fd: int, log_fd: int) -> NoReturn:
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._control.close()
            os.close(self._wake_read)
            os.close(self._wake_write)
            os.dup2(log_fd, sys.stdout.fileno())
            os.dup2(log_fd, sys.stderr.fileno())
            os.close(log_fd)
            mark_as_lane()
            confine()
            # Lanes would share the state of this generator; `random` sees to that itself.
            np.random.seed()
            sock = socket.socket(fileno=lane_fd)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        run_lane(sock, self._registry)

    def _reap(self) -> None:
        self._reap_ended()
        # Each of them says of its end by a signal; the next call sees whom that has orphaned.
        for pid in self._strays():
            os.kill(pid, signal.SIGKILL)

    def _strays(self) -> list[int]:
        """Children that are no lanes, and whose lane is no more. Nobody else reaps them: their pids are their own."""
        orphans = (pid for pid in children(os.getpid()) if pid not in self._lanes and pid not in self._kept)
        return [pid for pid in orphans if not self._may_live(lane_of(pid))]

    def _may_live(self, lane: int | None) -> bool:
        return bool(self._lanes) if lane is None else lane == 0 or lane in self._lanes

    def _reap_ended(self) -> None:
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None:
                return
            pid = found.si_pid
            if pid in self._lanes:
                # As long as it is not reaped its pid, and so the name of its group, is nobody else's.
                kill_group(pid)
            _, status = os.waitpid(pid, 0)
            self._kept.discard(pid)
            if pid in self._lanes:
                self._lanes.remove(pid)
                self._tell({"exited": pid, "cause": cause_of(os.waitstatus_to_exitcode(status))})

    def _tell(self, message: dict[str, Any], descriptors: list[int] | None = None) -> None:
        # Where the server is gone, the next read of the control socket says so.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self._control, [json.dumps(message).encode()], descriptors or [])


def _read_configuration() -> Registry:
    told = json.loads(sys.stdin.buffer.read())
    with open(os.devnull, "rb") as null:  # noqa: PTH123  # a device, wanted for its descriptor
        os.dup2(null.fileno(), sys.stdin.fileno())
    sys.path[:] = told["path"]
    return Registry.from_json(told["registry"])


def _warn_of_threads() -> None:
    threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208  # no paths wanted, a count
    if threads > 1:
        sys.stderr.write(
            f"envserver: importing the environments started {threads - 1} threads; a lane forked beside them "
            "may hang. If lanes do, start the server with --launcher exec\n"
        )


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    # Lanes inherit what this sets until they set it for themselves.
    confine()
    adopt_orphans()
    registry = _read_configuration()
    registry.preload()
    _warn_of_threads()
    # Lanes collect nothing that was there before the fork: looking at it would copy its pages.
    gc.collect()
    gc.disable()
    gc.freeze()
    nursery = Nursery(control, registry)
    try:
        nursery.run()
    finally:
        nursery.kill_all()


if __name__ == "__main__":
    main()
