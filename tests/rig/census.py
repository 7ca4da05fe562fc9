"""`Census`: what this process holds, before and after: processes below it, descriptors, sockets, threads, tasks, files.

    async with census():          # or `with census():` outside a loop
        ...                       # fails with a list of what is left, after waiting for it to go away

Orphans count: the test process becomes the reaper of whatever its children leave behind.

Invariant: each kind of leak is named (test_every_kind_of_leak_is_named).
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final, Self

PATIENCE_S: Final = 10.0
_POLL_S: Final = 0.05
_PR_SET_CHILD_SUBREAPER: Final = 36
# gRPC keeps these for the life of the process once it was used; they belong to no call.
_KEPT_BY_GRPC: Final = ("anon_inode:", "/dev/urandom", "/dev/null")
# A thread of C that once called Python, as gRPC's do for tokens; the pool that an event loop keeps until it closes.
_THREADS_OF_OTHERS: Final = re.compile(r"(Dummy-|asyncio_|uvloop_)\d+")
_OUR_FILES: Final = ("asyncrl", "envserver")


@dataclass(frozen=True)
class Census:
    """A snapshot; every field maps what there is to how often."""

    processes: Counter[str]
    descriptors: Counter[str]
    listeners: Counter[str]
    threads: Counter[str]
    tasks: Counter[str]
    files: Counter[str]

    @classmethod
    def take(cls) -> Self:
        become_subreaper()
        reap_orphans()
        return cls(
            processes=Counter(f"{pid} {name}" for pid, name in descendants().items()),
            descriptors=_descriptors(),
            listeners=_listeners(),
            threads=Counter(each.name for each in threading.enumerate() if not _THREADS_OF_OTHERS.match(each.name)),
            tasks=_tasks(),
            files=_files(),
        )

    def extra(self, before: Census) -> dict[str, list[str]]:
        """What is here now and was not before, by kind."""
        found: dict[str, list[str]] = {}
        for each in fields(self):
            more = getattr(self, each.name) - getattr(before, each.name)
            if more:
                found[each.name] = sorted(more.elements())
        return found


def descendants(root: int | None = None) -> dict[int, str]:
    """pid -> name of all processes below `root` (this one), zombies included, found by parentage."""
    parents: dict[int, tuple[int, str]] = {}
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            head, _, rest = (directory / "stat").read_text().rpartition(")")
        except OSError:
            continue
        state, parent = rest.split()[:2]
        name = head.partition("(")[2] + (" (zombie)" if state == "Z" else "")
        parents[int(directory.name)] = (int(parent), name)
    found: dict[int, str] = {}
    above = {root or os.getpid()}
    while above:
        below = {pid for pid, (parent, _) in parents.items() if parent in above and pid not in found}
        found |= {pid: parents[pid][1] for pid in below}
        above = below
    return found


def living(root: int | None = None) -> set[int]:
    """pids of all processes below `root` (this one) that are not dead and only waiting to be collected."""
    return {pid for pid, name in descendants(root).items() if not name.endswith("(zombie)")}


def become_subreaper() -> None:
    """Orphans of our children become our children, so that they are seen (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_orphans() -> None:
    """Collect zombies that came to us as orphans; whoever started one of the others waits for it."""
    zombies = [pid for pid, name in descendants().items() if name.endswith("(zombie)")]
    for pid in set(zombies) - _started_by_us() if zombies else ():
        try:
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            continue


def _started_by_us() -> set[int]:
    """pids that subprocess or asyncio will wait for themselves."""
    return {each.pid for each in gc.get_objects() if isinstance(each, subprocess.Popen) and each.returncode is None}


def _descriptors() -> Counter[str]:
    found: Counter[str] = Counter()
    for entry in Path("/proc/self/fd").glob("*"):
        try:
            target = str(entry.readlink())
        except OSError:
            continue
        if not target.startswith(_KEPT_BY_GRPC):
            found[target.partition(":")[0] if target.startswith(("socket:", "pipe:")) else target] += 1
    return found


def _listeners() -> Counter[str]:
    """Listening TCP sockets of this process, by address."""
    inodes = set()
    for entry in Path("/proc/self/fd").glob("*"):
        try:
            target = str(entry.readlink())
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found: Counter[str] = Counter()
    for table in ("tcp", "tcp6"):
        path = Path("/proc/self/net") / table
        for line in path.read_text().splitlines()[1:] if path.exists() else ():
            columns = line.split()
            if columns[3] == "0A" and columns[9] in inodes:
                found[f"port {int(columns[1].rpartition(':')[2], 16)}"] += 1
    return found


def _tasks() -> Counter[str]:
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return Counter()
    current = asyncio.current_task()
    return Counter(repr(task.get_coro()) for task in asyncio.all_tasks(loop) if task is not current)


def _files() -> Counter[str]:
    directory = Path(tempfile.gettempdir())
    return Counter(entry.name for entry in directory.iterdir() if entry.name.startswith(_OUR_FILES))


def _report(extra: dict[str, list[str]]) -> str:
    lines = [f"  {kind}: {', '.join(names[:8])}" for kind, names in extra.items()]
    return "left behind:\n" + "\n".join(lines)


class census:
    """See the module. `patience_s` is how long what is on its way out may take."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._before: Census | None = None

    def __enter__(self) -> Self:
        self._before = Census.take()
        return self

    def __exit__(self, kind: object, error: object, _trace: object) -> None:
        if error is None:
            for extra in self._looks():
                if extra:
                    time.sleep(_POLL_S)

    async def __aenter__(self) -> Self:
        self._before = Census.take()
        return self

    async def __aexit__(self, kind: object, error: object, _trace: object) -> None:
        """Cancellation leaves the comparison undone."""
        if error is None:
            for extra in self._looks():
                if extra:
                    await asyncio.sleep(_POLL_S)

    def assert_same(self) -> None:
        """Wait until nothing is left that was not there at the start; AssertionError otherwise."""
        self.__exit__(None, None, None)

    def _looks(self) -> Iterator[dict[str, list[str]]]:
        """Look again and again until nothing is left; raise when patience is over."""
        assert self._before is not None
        ends = time.monotonic() + self._patience_s
        while True:
            extra = Census.take().extra(self._before)
            yield extra
            if not extra:
                return
            if time.monotonic() > ends:
                raise AssertionError(_report(extra))


@contextmanager
def no_new_processes(patience_s: float = PATIENCE_S) -> Iterator[None]:
    """The cheap part of a census: only processes."""
    before = set(descendants())
    yield
    ends = time.monotonic() + patience_s
    while left := {pid: name for pid, name in descendants().items() if pid not in before}:
        reap_orphans()
        if time.monotonic() > ends:
            raise AssertionError(f"processes are left: {left}")
        time.sleep(_POLL_S)
