"""Launchers: how lane processes come into being, and how their death is noticed.

`NurseryLauncher` (Linux) has them forked by a process that has imported the simulators; `ExecLauncher` starts
an interpreter for each and runs everywhere.

Invariants: death is seen by pidfd or by the parent's wait, never by the end of a socket
(test_a_grandchild_with_the_socket_does_not_delay_the_news); the next start replaces a nursery that died
(test_a_dead_nursery_is_replaced); everything is gone when `close` returns (test_everything_is_given_back), after
environments were closed (test_the_environments_of_every_lane_are_closed).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from asyncrl.errors import ConfigError, ServerRefused
from envserver.child_process import cause_of, configuration, kill_group, start_lane
from envserver.lane_handle import LaneEnds, LaneHandle, close_all
from envserver.lane_socket import CONFIGURE
from envserver.nursery_client import ExitWatch, NurseryClient
from envserver.refusals import stopping
from envserver.registry import Registry

__all__ = ["ExecLauncher", "LaneHandle", "Launcher", "NurseryLauncher", "default_launcher", "make_launcher"]

# More forks at once would only wait in the nursery, with their descriptors open.
CONCURRENT_STARTS: Final = 16


class Launcher(Protocol):
    """Makes lane processes."""

    async def start(self) -> LaneHandle:
        """A new lane process. Raises ServerRefused. Cancellation leaves no process behind."""
        ...

    async def close(self) -> None:
        """End every lane and wait until they are gone. Idempotent. After a cancellation call it again.

        Their environments have CLOSE_S to close, all lanes at the same time; a lane that has not ended then is killed.
        """
        ...

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the lanes that live."""
        ...


class NurseryLauncher:
    """Lanes forked by a nursery process, which is started with the first lane. Linux only."""

    def __init__(self, registry: Registry, secrets: Sequence[str] = ()) -> None:
        if not _has_nursery():
            raise ConfigError("the nursery needs Linux (pidfd): use --launcher exec on this system")
        self._registry = registry
        self._secrets = tuple(secrets)
        self._lock = asyncio.Lock()
        self._starts = asyncio.Semaphore(CONCURRENT_STARTS)
        self._nursery: NurseryClient | None = None
        self._closed = False

    @property
    def pids(self) -> tuple[int, ...]:
        return () if self._nursery is None else tuple(self._nursery.lanes)

    @property
    def nursery_pid(self) -> int | None:
        """None before the first lane and after `close`."""
        return None if self._nursery is None else self._nursery.pid

    async def start(self) -> LaneHandle:
        """A new lane process. Cancellation leaves no process behind."""
        async with self._starts:
            nursery = await self._living_nursery()
            ends = await _make_ends()
            return await nursery.start_lane(ends)

    async def close(self) -> None:
        """End every lane, then the nursery, and wait until they are gone. After a cancellation call it again."""
        self._closed = True
        async with self._lock:
            if self._nursery is not None:
                await self._nursery.close()
                self._nursery = None

    async def _living_nursery(self) -> NurseryClient:
        async with self._lock:
            if self._closed:
                raise stopping()
            if self._nursery is None or self._nursery.ended.done():
                if self._nursery is not None:
                    await self._nursery.close()
                self._nursery = NurseryClient(self._registry, self._secrets)
            # Waits outside of any lane's own time: the first start of all pays for the imports.
            await self._nursery.wait_ready()
            return self._nursery


class ExecLauncher:
    """An interpreter for each lane: slower to start and larger, but without a fork.

    The Windows branch has not been exercised on Windows.
    """

    def __init__(self, registry: Registry, secrets: Sequence[str] = ()) -> None:
        self._configuration = configuration(registry)
        self._secrets = tuple(secrets)
        self._lanes: dict[int, LaneHandle] = {}
        self._closed = False
        self._death_pipe: tuple[int, int] | None = None

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(self._lanes)

    async def start(self) -> LaneHandle:
        """A new lane process. Cancellation leaves no process behind."""
        ends = await _make_ends()
        if self._closed:  # perhaps meanwhile
            ends.abandon()
            raise stopping()
        try:
            handle = self._spawn_windows(ends) if sys.platform == "win32" else self._spawn(ends)
        except OSError as error:
            ends.abandon()
            raise ServerRefused("BUSY", f"no process could be started: {error.strerror}", retryable=True) from error
        ends.close_theirs()
        self._lanes[handle.pid] = handle
        handle.exited.add_done_callback(lambda _: self._lanes.pop(handle.pid, None))
        handle.send(CONFIGURE, 0, self._configuration)
        return handle

    async def close(self) -> None:
        """End every lane and wait until they are gone. After a cancellation call it again."""
        self._closed = True
        await close_all(self._lanes)
        self._lanes.clear()  # the callbacks of their ends may be due only after this task
        if self._death_pipe is not None:
            for descriptor in self._death_pipe:
                os.close(descriptor)
            self._death_pipe = None

    def _spawn(self, ends: LaneEnds) -> LaneHandle:
        if self._death_pipe is None:
            self._death_pipe = os.pipe()
        assert ends.log_fd is not None
        process = start_lane(ends.lane.fileno(), ends.log_fd, self._death_pipe[0], self._secrets)
        handle = LaneHandle(process.pid, ends, lambda: kill_group(process.pid))
        watch_child(process, handle.process_ended)
        return handle

    def _spawn_windows(self, ends: LaneEnds) -> LaneHandle:
        from envserver import job_object

        assert ends.log_fd is not None
        process, job = job_object.start_lane(ends.lane, ends.log_fd, self._secrets)
        handle = LaneHandle(process.pid, ends, job.terminate)

        def ended(cause: str) -> None:
            job.terminate()
            job.close()
            handle.process_ended(cause)

        _watch_by_thread(process, ended)
        return handle


def watch_child(process: subprocess.Popen[bytes], ended: Callable[[str], None]) -> None:
    """Call `ended(cause)` on the loop when a child of this process has exited; its group is killed before."""
    if not hasattr(os, "pidfd_open"):
        _watch_by_thread(process, ended)
        return

    def on_exit() -> None:
        kill_group(process.pid)  # while the pid is not reaped nobody else has it
        ended(cause_of(process.wait()))

    ExitWatch(os.pidfd_open(process.pid), on_exit)


def _watch_by_thread(process: subprocess.Popen[bytes], ended: Callable[[str], None]) -> None:
    loop = asyncio.get_running_loop()

    def wait() -> None:
        cause = cause_of(process.wait())
        # Reaped already: where members of the group live they keep its name taken; where none lives nothing is hit.
        if sys.platform != "win32":
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody wants to know
            loop.call_soon_threadsafe(ended, cause)

    threading.Thread(target=wait, name="lane-wait", daemon=True).start()


async def _make_ends() -> LaneEnds:
    try:
        return await LaneEnds.make()
    except OSError as error:
        raise ServerRefused("BUSY", f"no descriptors for a new lane: {error.strerror}", retryable=True) from error


def _has_nursery() -> bool:
    return sys.platform == "linux" and hasattr(os, "pidfd_open") and hasattr(socket, "recv_fds")


def default_launcher(registry: Registry, secrets: Sequence[str] = ()) -> Launcher:
    """The nursery where there can be one."""
    return NurseryLauncher(registry, secrets) if _has_nursery() else ExecLauncher(registry, secrets)


def make_launcher(name: str, registry: Registry, secrets: Sequence[str] = ()) -> Launcher:
    """By its name in the configuration: auto, nursery or exec."""
    if name == "auto":
        return default_launcher(registry, secrets)
    if name == "nursery":
        return NurseryLauncher(registry, secrets)
    if name == "exec":
        return ExecLauncher(registry, secrets)
    raise ConfigError(f"launcher {name!r}: choose auto, nursery or exec")
