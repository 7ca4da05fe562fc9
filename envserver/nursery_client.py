"""The server's end of a nursery: asks for lanes, hears of their ends, outlives its death.

Invariant: a lane whose nursery died is killed, and its end is reported with that cause
(test_a_dead_nursery_is_replaced).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final

from asyncrl.errors import ServerRefused
from envserver.child_process import CONTROL_BYTES, cause_of, kill_group, start_nursery
from envserver.lane_handle import LaneEnds, LaneHandle, close_all
from envserver.refusals import stopping
from envserver.registry import Registry

READY_S: Final = 120.0
CLOSE_S: Final = 2.0
# A pidfd tells of a death, its cause comes from the nursery; where that is stopped, nobody waits for it.
CAUSE_S: Final = 1.0


class ExitWatch:
    """Calls back once when a process has exited. Owns the pidfd."""

    def __init__(self, pidfd: int, on_exit: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._pidfd: int | None = pidfd
        self._on_exit = on_exit
        self._loop.add_reader(pidfd, self._readable)

    def close(self) -> None:
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None

    def _readable(self) -> None:
        self.close()
        self._on_exit()


class NurseryClient:
    """One nursery process, from its start to its end."""

    def __init__(self, registry: Registry, secrets: Sequence[str]) -> None:
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[str] = self._loop.create_future()
        self.lanes: dict[int, LaneHandle] = {}
        self._watches: dict[int, ExitWatch] = {}
        self._ready = asyncio.Event()
        self._closing = False
        self._tickets: dict[int, tuple[asyncio.Future[LaneHandle], LaneEnds]] = {}
        self._last_ticket = 0
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = start_nursery(theirs.fileno(), registry, secrets)
        self.pid = self._process.pid
        self._control.setblocking(False)
        self._loop.add_reader(self._control.fileno(), self._readable)
        ExitWatch(os.pidfd_open(self.pid), self._nursery_exited)

    async def wait_ready(self) -> None:
        """Until it has imported the environments. Cancellation changes nothing."""
        try:
            async with asyncio.timeout(READY_S):
                await self._ready.wait()
        except TimeoutError:
            self._kill()
            text = f"importing the environments took longer than {READY_S:.0f} s"
            raise ServerRefused("BUILD_FAILED", text) from None
        if self.ended.done():
            raise self._refusal()

    async def start_lane(self, ends: LaneEnds) -> LaneHandle:
        """A forked lane that has `ends`, whose owner this is from now on. Cancellation kills what was forked."""
        if self.ended.done() or self._closing:
            ends.abandon()
            raise self._refusal() if self.ended.done() else stopping()
        assert ends.log_fd is not None
        self._last_ticket += 1
        ticket = self._last_ticket
        answer: asyncio.Future[LaneHandle] = self._loop.create_future()
        self._tickets[ticket] = (answer, ends)
        try:
            request = json.dumps({"fork": ticket}).encode()
            socket.send_fds(self._control, [request], [ends.lane.fileno(), ends.log_fd])
        except OSError as error:
            del self._tickets[ticket]
            ends.abandon()
            raise ServerRefused("BUSY", f"the nursery takes no request: {error.strerror}", retryable=True) from error
        try:
            return await answer
        except asyncio.CancelledError:
            if not answer.cancelled() and answer.exception() is None:
                # The cancellation came after the answer and before this task had run again.
                answer.result().close()
                answer.result().kill()
            raise

    async def close(self) -> None:
        """End all lanes as `close_all` does, then the nursery. After a cancellation call it again."""
        self._closing = True
        await close_all(self.lanes)
        if not self.ended.done():
            with contextlib.suppress(OSError):
                self._control.shutdown(socket.SHUT_RDWR)
            killer = self._loop.call_later(CLOSE_S, self._kill)
            try:
                await asyncio.shield(self.ended)
            finally:
                killer.cancel()
        await close_all(self.lanes)  # forks that had been asked for: the end of the nursery killed them

    # ------------------------------------------------------------------ what the nursery says

    def _readable(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, CONTROL_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except ConnectionError:
            data, descriptors = b"", []
        if not data:
            self._loop.remove_reader(self._control.fileno())
            self._loop.call_later(CLOSE_S, self._kill)  # it is ending: its last act is to kill its lanes
            return
        self._hear(json.loads(data), descriptors)

    def _hear(self, message: dict[str, Any], descriptors: list[int]) -> None:
        if "ready" in message:
            self._ready.set()
        elif "started" in message:
            self._started(message["started"], message["pid"], descriptors)
        elif "failed" in message:
            answer, ends = self._tickets.pop(message["failed"])
            ends.abandon()
            if not answer.done():
                answer.set_exception(ServerRefused("BUSY", f"no new lane: {message['text']}", retryable=True))
        elif "exited" in message:
            self._lane_ended(message["exited"], message["cause"])

    def _started(self, ticket: int, pid: int, descriptors: list[int]) -> None:
        answer, ends = self._tickets.pop(ticket)
        ends.close_theirs()
        handle = self.lanes[pid] = LaneHandle(pid, ends, lambda: kill_group(pid))
        if descriptors:  # none where this process has no descriptor left: the nursery tells of the death too
            self._watches[pid] = ExitWatch(descriptors[0], lambda: self._lane_exited(pid))
        if answer.done():
            handle.close()
            handle.kill()
        else:
            answer.set_result(handle)

    def _lane_exited(self, pid: int) -> None:
        if self.ended.done():
            self._lane_ended(pid, f"nursery {self.ended.result()}")
        else:
            self._loop.call_later(CAUSE_S, self._lane_ended, pid, "crash(unknown)")

    def _lane_ended(self, pid: int, cause: str) -> None:
        handle = self.lanes.pop(pid, None)
        watch = self._watches.pop(pid, None)
        if watch is not None:
            watch.close()
        if handle is not None:
            handle.process_ended(cause)

    # ------------------------------------------------------------------ its end

    def _nursery_exited(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while self._control.fileno() >= 0:  # what it said last
                data, descriptors, _, _ = socket.recv_fds(self._control, CONTROL_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
                if not data:
                    break
                self._hear(json.loads(data), descriptors)
        self._loop.remove_reader(self._control.fileno())
        self._control.close()
        self.ended.set_result(cause_of(self._process.wait()))
        self._ready.set()
        for answer, ends in self._tickets.values():
            ends.abandon()
            if not answer.done():
                answer.set_exception(self._refusal())
        self._tickets.clear()
        for pid, handle in list(self.lanes.items()):
            handle.kill()
            if pid not in self._watches:
                self._lane_ended(pid, f"nursery {self.ended.result()}")

    def _kill(self) -> None:
        if not self.ended.done():
            self._process.kill()

    def _refusal(self) -> ServerRefused:
        text = f"the nursery process ended: {self.ended.result()}; the server's standard error may say why"
        return ServerRefused("INTERNAL", text, retryable=True)
