"""The line of requests."""

from __future__ import annotations

import asyncio

import pytest

from asyncrl.client.pending import Pending, PendingLine
from asyncrl.wire._generated import env_pb2 as pb


def test_deadlines_run_from_head_of_line() -> None:
    """The second request is not late because the first one was slow."""
    line = PendingLine(0.0)
    line.add(Pending(pb.STEP, 30.0), 0.0)
    line.add(Pending(pb.STEP, 30.0), 1.0)
    assert line.overdue(30.0, 5.0) is None
    assert line.overdue(35.1, 5.0) is not None
    line.answered(34.0)
    assert line.overdue(60.0, 5.0) is None
    assert line.overdue(69.1, 5.0) is not None


def test_progress_and_our_own_lag_start_the_deadline_again() -> None:
    """Building 1024 environments takes minutes, and our own loop may stand still."""
    line = PendingLine(0.0)
    line.add(Pending(pb.OPEN, 10.0), 0.0)
    line.progress(9.0)
    assert line.overdue(18.0, 0.0) is None
    line.forgive(5.0)
    assert line.overdue(23.9, 0.0) is None
    assert line.overdue(24.1, 0.0) is not None


def test_an_empty_line_is_never_late() -> None:
    """Idle lanes have no deadline."""
    line = PendingLine(0.0)
    assert line.overdue(1e9, 0.0) is None


async def test_every_waiter_hears_of_the_end() -> None:
    """Whoever awaits a reply gets the error that ended the lane; a cancelled waiter is left alone."""
    loop = asyncio.get_running_loop()
    waiters: list[asyncio.Future[bytes]] = [loop.create_future() for _ in range(3)]
    line = PendingLine(0.0)
    for waiter in waiters:
        line.add(Pending(pb.RENDER, 1.0, waiter=waiter), 0.0)
    line.add(Pending(pb.STEP, 1.0), 0.0)
    line.answered(0.0).resolve(b"image")
    waiters[1].cancel()
    assert line.fail_all(RuntimeError("gone")) == 3
    assert await waiters[0] == b"image"
    with pytest.raises(RuntimeError, match="gone"):
        await waiters[2]
    assert len(line) == 0
