"""Whose processes are, and what they weigh together."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from asyncrl.wire._generated import env_pb2 as pb
from envserver.config import Quotas
from envserver.descendants import MARKER, MOST_MEASURED, children, lane_of, memory_of
from tests.unit.envserver.memory_lane import settle
from tests.unit.envserver.test_core import rig

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

MIB = 1 << 20


@contextmanager
def running(code: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Python in a session of its own, from its first line of output on."""
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, **environment},
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


HUGE = f"x = b'x' * {200 * MIB}; print(flush=True); input()"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {HUGE!r}], start_new_session=True)"


def test_memory_counts_what_a_process_started() -> None:
    """A child of a child, in another session; nothing of a process that is no more."""
    with running(PARENT) as process:
        (child,) = children(process.pid)
        assert 200 * MIB < memory_of(child) < memory_of(process.pid)
    assert memory_of(process.pid) == 0


def test_a_crowd_is_not_walked_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop waits for the walk: processes that have children without end are measured by the first of them."""
    monkeypatch.setattr("envserver.descendants.children", lambda pid: [pid, pid])
    alone = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    assert memory_of(os.getpid()) >= 0.9 * MOST_MEASURED * alone


def test_whose_a_process_is() -> None:
    """By its marker: a lane's, nobody's, or not known."""
    wait = "print(flush=True); input()"
    for value, owner in (("0000004711", 4711), ("0000000000", 0), ("nonsense", None)):
        with running(wait, **{MARKER: value}) as process:
            assert lane_of(process.pid) == owner
    with running(wait) as process:
        assert lane_of(process.pid) is None
    assert lane_of(process.pid) is None


async def test_a_lane_pays_for_its_processes() -> None:
    """The lane itself is small, and what it has started is over its quota: the lane is lost to memory."""
    async with rig(quotas=Quotas(lane_memory_bytes=150 * MIB)) as made:
        with running(PARENT) as lane:
            client, opened = await made.open()
            assert opened.kind == pb.OPENED
            made.backends[0].pid = lane.pid
            ticking = asyncio.ensure_future(made.core.run())
            async with asyncio.timeout(20):
                await made.backends[0].exited
            ticking.cancel()
            await settle()
            assert pb.Error.FromString(client.pump()[-1].body).cause == "memory"
