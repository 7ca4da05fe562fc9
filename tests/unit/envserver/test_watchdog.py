"""The watchdog on a real loop and a real thread, with its periods shortened."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from envserver import watchdog
from envserver.watchdog import Watchdog


async def test_a_stuck_loop_is_dumped_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that does not turn for the stall time makes the thread act, while the loop is still stuck."""
    monkeypatch.setattr(watchdog, "CHECK_S", 0.02)
    stalled = threading.Event()
    with Watchdog(0.1, stalled.set):
        await asyncio.sleep(0.05)
        assert stalled.wait(10)  # blocks the loop, which is the fault under test


async def test_a_busy_loop_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses shorter than the stall time are no stall, however many there are."""
    monkeypatch.setattr(watchdog, "CHECK_S", 0.02)
    stalled = threading.Event()
    with Watchdog(2.0, stalled.set):
        for _ in range(20):
            time.sleep(0.03)
            await asyncio.sleep(0)
    assert not stalled.is_set()
