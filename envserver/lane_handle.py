"""`LaneHandle`: one lane process as the server's event loop sees it, and `LogPipe`, by which its output comes.

Invariants: everything the lane sent before it died is delivered before `exited` is set
(test_replies_before_the_death_are_delivered_first); a lane's output never blocks it and is never kept whole
(test_200_mb_of_output_neither_blocks_nor_stays); what it logs is in the server's log, to its last line
(test_the_rest_of_the_output_is_logged_at_the_end); nothing of a closed lane is left (test_everything_is_given_back).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Final

from envserver.lane_log import LaneLog
from envserver.lane_protocol import LaneProtocol

LOG_BYTES: Final = 64 * 1024
CLOSE_S: Final = 2.0
# After the death of a lane grandchildren may still print: no more than this is read of them.
_REST_READS: Final = 16


class LogPipe:
    """Drains the read end of a lane's stdout and stderr, keeps the last LOG_BYTES of it, and passes it to the log."""

    def __init__(self, descriptor: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._descriptor: int | None = descriptor
        self._tail = b""
        self.lines = LaneLog()
        if sys.platform == "win32":
            threading.Thread(target=self._drain_blocking, args=(descriptor,), name="lane-log", daemon=True).start()
        else:
            os.set_blocking(descriptor, False)
            # One bounded read a wake-up: a lane that prints all the time gets its turn, not the loop.
            self._loop.add_reader(descriptor, self.read_once)

    @property
    def tail(self) -> bytes:
        return self._tail

    def note(self, text: str) -> None:
        """A line of the server's own."""
        self._keep(text.encode() + b"\n")

    def read_once(self) -> bool:
        """Whether there was something."""
        if self._descriptor is None:
            return False
        try:
            data = os.read(self._descriptor, LOG_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self.close()
            return False
        self._keep(data)
        return True

    def read_rest(self) -> None:
        if sys.platform != "win32":
            for _ in range(_REST_READS):
                if not self.read_once():
                    break

    def close(self) -> None:
        if self._descriptor is not None and sys.platform != "win32":
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self.lines.close()
        self._descriptor = None

    def _keep(self, data: bytes) -> None:
        self._tail = (self._tail + data)[-LOG_BYTES:]
        self.lines.feed(data)

    def _drain_blocking(self, descriptor: int) -> None:
        """Windows: the loop cannot wait for a pipe. The thread owns the descriptor; only it writes what is kept."""
        while data := os.read(descriptor, LOG_BYTES):
            self._keep(data)
        os.close(descriptor)
        self.lines.close()


class LaneEnds:
    """The lane's ends of its socket and log pipe until a process has them, and the server's ends of both."""

    def __init__(self, lane: socket.socket, log_fd: int, protocol: LaneProtocol, log: LogPipe) -> None:
        self.lane = lane
        self.log_fd: int | None = log_fd
        self.protocol = protocol
        self.log = log

    @staticmethod
    async def make() -> LaneEnds:
        """Cancellation leaves nothing open."""
        ours, lane = socket.socketpair()
        try:
            log_read, log_write = os.pipe()
        except BaseException:
            ours.close()
            lane.close()
            raise
        ends = LaneEnds(lane, log_write, LaneProtocol(), LogPipe(log_read))
        loop = asyncio.get_running_loop()
        try:
            if ours.family == getattr(socket, "AF_UNIX", None):
                await loop.create_unix_connection(lambda: ends.protocol, sock=ours)
            else:
                await loop.create_connection(lambda: ends.protocol, sock=ours)
        except BaseException:
            ours.close()
            ends.abandon()
            raise
        return ends

    def close_theirs(self) -> None:
        """A process has them now: as long as this one held them too, the lane's death would not close them."""
        self.lane.close()
        if self.log_fd is not None:
            os.close(self.log_fd)
            self.log_fd = None

    def abandon(self) -> None:
        """No process will use them."""
        self.close_theirs()
        self.protocol.close()
        self.log.close()


class LaneHandle:
    """A running lane process. Whoever launched it reports its end by `process_ended`."""

    def __init__(self, pid: int, ends: LaneEnds, kill_group: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self.pid = pid
        self.exited: asyncio.Future[str] = self._loop.create_future()
        self._protocol = ends.protocol
        self._log = ends.log
        self._kill_group = kill_group
        self._closed = asyncio.Event()
        self._killer: asyncio.TimerHandle | None = None
        self.send = ends.protocol.send
        self.call("")
        ends.protocol.on_closed = self._socket_closed

    @property
    def on_message(self) -> Callable[[int, int, bytes], None]:
        """Called by the loop with kind, seq and body. Set it before the first `send`."""
        return self._protocol.on_message

    @on_message.setter
    def on_message(self, callback: Callable[[int, int, bytes], None]) -> None:
        self._protocol.on_message = callback

    def call(self, lane: str) -> None:
        """Say whose process this is: its lines in the server's log begin with that."""
        self._log.lines.label = f"{lane}, pid {self.pid}" if lane else f"pid {self.pid}"

    def log_tail(self) -> bytes:
        """The last 64 KiB that the lane and its children wrote to stdout and stderr."""
        return self._log.tail

    def dump_stacks(self) -> None:
        """Have the stacks of all its threads written to its log; works while C code holds the GIL."""
        if self.exited.done():
            return
        if sys.platform == "win32":
            self._log.note("stacks of a running process cannot be dumped on Windows")
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR1)

    def kill(self) -> None:
        """End the lane and everything it started, at once."""
        if not self.exited.done():
            self._kill_group()

    def close(self) -> None:
        """Close the socket: the lane ends by itself, and is killed if it has not within CLOSE_S."""
        self._protocol.close()
        self._kill_later()

    @property
    def closed(self) -> bool:
        """The process is reaped, and all descriptors are given back."""
        return self._closed.is_set()

    async def wait_closed(self) -> None:
        """Until `closed`. Cancellation changes nothing."""
        await self._closed.wait()

    def process_ended(self, cause: str) -> None:
        """The process is gone. Called by its launcher; a second call is ignored."""
        if self.exited.done():
            return
        if self._killer is not None:
            self._killer.cancel()
        if sys.platform != "win32":
            self._protocol.read_rest()
        self._protocol.close()
        self._log.read_rest()
        self._log.close()
        self.exited.set_result(cause)
        if self._protocol.is_closed:
            self._closed.set()

    def _socket_closed(self) -> None:
        if self.exited.done():
            self._closed.set()
        else:
            # No proof of death, but a lane without its socket is of no use.
            self._kill_later()

    def _kill_later(self) -> None:
        if self._killer is None and not self.exited.done():
            self._killer = self._loop.call_later(CLOSE_S, self.kill)


async def close_all(lanes: Mapping[int, LaneHandle]) -> None:
    """Until all of them are gone: every lane has CLOSE_S to close its environments, all at the same time.

    After a cancellation call it again.
    """
    while handles := [handle for handle in lanes.values() if not handle.closed]:  # a start may add one meanwhile
        for handle in handles:
            handle.close()
        for handle in handles:
            await handle.wait_closed()
