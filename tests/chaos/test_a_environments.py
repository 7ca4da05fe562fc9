"""Rows A: environments that raise, crash, hang, fork and print. A slot costs itself, anything worse its lane."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from asyncrl.client.timing import LaneTimers
from tests.chaos.driving import Scene, scene
from tests.rig.processes import until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(60)]

NUM_LANES, SLOTS = 4, 3
STEP_S = 1.5


def lanes_of(directory: Path, **kwargs: Any) -> AbstractAsyncContextManager[Scene]:
    """Four lanes with three slots each."""
    timers = LaneTimers(step_s=STEP_S, reset_s=STEP_S)
    kwargs = {"mean_length": 40} | kwargs
    return scene(directory, kwargs=kwargs, num_envs=NUM_LANES * SLOTS, lanes=NUM_LANES, timers=timers)


async def one_lane_lost(it: Scene, cause: str, within_s: float = 15.0) -> float:
    """Wait for the one loss there should be; its lane comes back, and the others never stopped."""
    seconds = await it.driver.until(lambda: it.driver.losses, within_s, f"{cause} is noticed")
    back = await it.driver.all_lanes_move()
    assert [loss.cause for loss in it.driver.losses] == [cause]
    print(f"{cause}: noticed after {seconds * 1000:.0f} ms, every lane moves {back * 1000:.0f} ms later")
    report = await it.audited()
    assert report.lost_in_flight <= SLOTS
    return seconds


async def test_A1_a_step_that_raises_costs_its_slot(tmp_path: Path) -> None:
    """The slot is made anew under its next incarnation; no lane is lost, and there is one event per raise."""
    async with lanes_of(tmp_path, rates={"raise_step": 0.01}) as it:
        await it.driver.until(lambda: it.driver.rebuilt.total() >= 10)
        report = await it.audited()
        assert not it.driver.losses
        assert report.lost_in_flight == 0
        assert it.fleet.stats.faults["slot_rebuilt"] == it.driver.rebuilt.total()
        assert report.instances == NUM_LANES * SLOTS + it.driver.rebuilt.total()
        print(f"{dict(it.driver.rebuilt)}; {report}")


async def test_A4_a_segfault_costs_its_lane(tmp_path: Path) -> None:
    """The death is seen at once, with its signal as the cause and the native stack in the text."""
    async with lanes_of(tmp_path) as it:
        (it.server.flags / "segv").touch()
        assert await one_lane_lost(it, "crash(SIGSEGV)") < 5
        assert "Segmentation fault" in it.driver.losses[0].text


async def test_A5_a_killed_lane_loses_at_most_what_was_in_flight(tmp_path: Path) -> None:
    """SIGKILL from outside: executed = stored + lost, with at most one step a slot lost."""
    async with lanes_of(tmp_path) as it:
        os.kill(it.server.lane_pids()[1], signal.SIGKILL)
        assert await one_lane_lost(it, "crash(SIGKILL)") < 5


@pytest.mark.parametrize(("fault", "where"), [("hang_python", "_hang_python"), ("hang_gil", "_hang_gil")])
async def test_A6_A7_a_hanging_lane_is_killed_after_its_deadline(tmp_path: Path, fault: str, where: str) -> None:
    """In Python or in C with the GIL held: killed within deadline + 2 s, and its stack is in the text."""
    async with lanes_of(tmp_path) as it:
        (it.server.flags / fault).touch()
        seconds = await one_lane_lost(it, "hang")
        assert STEP_S / 2 < seconds < STEP_S + 5
        assert where in it.driver.losses[0].text


async def test_A8_grandchildren_go_with_their_lane(tmp_path: Path) -> None:
    """What an environment started is gone when its lane is killed, and when the server ends."""
    async with lanes_of(tmp_path) as it:
        for _ in range(2):
            (it.server.flags / "grandchild").touch()
            await until(lambda: not list(it.server.flags.iterdir()))
        sleepers = [pid for pid, name in it.server.descendants().items() if name == "sleep"]
        assert len(sleepers) == 2
        for pid in it.server.lane_pids():
            os.kill(pid, signal.SIGKILL)
        await until(lambda: not set(sleepers) & set(it.server.descendants()), what="the grandchildren are gone")
        await it.driver.until(lambda: len(it.driver.losses) == NUM_LANES)
        await it.driver.all_lanes_move()
        (it.server.flags / "grandchild").touch()
        await until(lambda: not list(it.server.flags.iterdir()))
        await it.audited()


async def test_A9_a_flood_of_output_blocks_nobody(tmp_path: Path) -> None:
    """100 MB on stdout and stderr: no lane is lost, the server keeps the tail and no more."""
    async with lanes_of(tmp_path) as it:
        before = _resident_bytes(it.server.pid)
        for _ in range(6):
            (it.server.flags / "flood").touch()
            await until(lambda: not list(it.server.flags.iterdir()), 20, "the flood has begun")
            await it.driver.all_lanes_move()
        await asyncio.sleep(0.2)
        grown = _resident_bytes(it.server.pid) - before
        assert grown < 64 << 20
        assert not it.driver.losses
        await it.audited()
        print(f"the server grew by {grown / 2**20:.1f} MiB")


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
