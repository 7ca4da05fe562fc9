"""The server's end of a nursery: what the nursery's own death costs, and cancelled starts."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import pytest

from envserver.launching import NurseryLauncher
from envserver.nursery_client import NurseryClient
from tests.unit.envserver.watching import gone
from tests.unit.envserver.wild_env import (
    HANG,
    LaneDriver,
    until,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


async def test_a_dead_nursery_is_replaced(launcher: NurseryLauncher) -> None:
    """Its lanes die, a hanging one too, and say why; the next start has a new nursery."""
    lanes = [LaneDriver(await launcher.start()) for _ in range(2)]
    await lanes[0].open("wild")
    lanes[0].send_step(HANG)
    first = launcher.nursery_pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert [await lane.cause() for lane in lanes] == ["nursery crash(SIGKILL)"] * 2
    await gone(first, *(lane.handle.pid for lane in lanes))
    again = LaneDriver(await launcher.start())
    assert (await again.open("CartPole-v1")).obs[0].shape == (1, 4)
    assert launcher.nursery_pid not in (None, first)


async def test_a_stopped_nursery_hides_no_death(launcher: NurseryLauncher) -> None:
    """It cannot reap and report; the pidfd tells of the death, only not its cause."""
    lane = LaneDriver(await launcher.start())
    assert launcher.nursery_pid is not None
    os.kill(launcher.nursery_pid, signal.SIGSTOP)
    os.kill(lane.handle.pid, signal.SIGKILL)
    assert await lane.cause() == "crash(unknown)"
    os.kill(launcher.nursery_pid, signal.SIGCONT)


async def test_a_start_cancelled_after_its_answer_leaves_no_process(
    launcher: NurseryLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lane exists, but the task that wanted it is cancelled before it runs again."""
    await launcher.start()
    started = NurseryClient._started

    def cancel_at_once(client: NurseryClient, ticket: int, pid: int, descriptors: list[int]) -> None:
        started(client, ticket, pid, descriptors)
        task.cancel()

    monkeypatch.setattr(NurseryClient, "_started", cancel_at_once)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(launcher.start())
    assert task.cancelled()
    await until(lambda: len(launcher.pids) == 1)
