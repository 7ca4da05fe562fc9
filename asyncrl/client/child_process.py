"""A child that says one line on standard output, and then logs on standard error until its standard input closes.

Invariants: its end is that of the process, not of its pipes, which what it has started may hold open for ever
(test_what_the_environments_started_does_not_hold_up_stop); whoever waits for its end gets one, sooner or later
(test_a_child_that_does_not_end_is_killed).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final, cast

LINE_BYTES: Final = 64 * 1024
STOP_S: Final = 10.0
LOG_S: Final = 1.0  # for last words that are still on the way


class ChildProcess(asyncio.SubprocessProtocol):
    """`log` gets its lines of standard error; of one that is longer than LINE_BYTES the last part."""

    def __init__(self, log: deque[str]) -> None:
        loop = asyncio.get_running_loop()
        self._log = log
        self._transport: asyncio.SubprocessTransport
        self._said: asyncio.Future[bytes] = loop.create_future()
        self._exited = asyncio.Event()
        self._silent = asyncio.Event()
        self._parts = {1: b"", 2: b""}

    @classmethod
    async def start(cls, command: Sequence[str], log: deque[str]) -> ChildProcess:
        """Raises OSError. Cancelled, it leaves no child."""
        loop = asyncio.get_running_loop()
        # In a session of its own: Ctrl-C is meant for the program whose child this is, which may still need it.
        _transport, child = await loop.subprocess_exec(lambda: cls(log), *command, start_new_session=True)
        return child

    @property
    def pid(self) -> int:
        return self._transport.get_pid()

    @property
    def returncode(self) -> int | None:
        return self._transport.get_returncode()

    async def first_line(self) -> bytes:
        """Of standard output; empty if it closed before there was one. Cancellation loses nothing."""
        return await asyncio.shield(self._said)

    async def wait(self) -> int:
        """Its status, once it has ended and its last words are in the log."""
        await self._exited.wait()
        if not self._silent.is_set():
            asyncio.get_running_loop().call_later(LOG_S, self._silent.set)
            await self._silent.wait()
        return cast(int, self.returncode)

    async def end(self) -> None:
        """Close its standard input and wait; it is killed after STOP_S, or when this is cancelled."""
        stdin = self._transport.get_pipe_transport(0)
        if stdin is not None:
            stdin.close()
        try:
            async with asyncio.timeout(STOP_S):
                await self.wait()
        except TimeoutError:
            self._transport.kill()
            await self.wait()
        finally:
            self._transport.close()  # kills what is still there

    # ------------------------------------------------------------------ what the loop tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        *lines, rest = (self._parts[fd] + cast(bytes, data)).split(b"\n")
        self._parts[fd] = rest[-LINE_BYTES:]
        for line in lines:
            if fd == 2:
                self._log.append(line[-LINE_BYTES:].decode(errors="replace").rstrip())
            elif not self._said.done():
                self._said.set_result(line)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1 and not self._said.done():
            self._said.set_result(self._parts[1])
        if fd == 2:
            self._silent.set()

    def process_exited(self) -> None:
        self._exited.set()
