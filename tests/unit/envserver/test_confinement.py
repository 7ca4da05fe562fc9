"""What a lane gives up before any environment's code runs."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from envserver.launching import NurseryLauncher
from tests.unit.envserver.watching import gone, status
from tests.unit.envserver.wild_env import (
    ESCAPED,
    GRANDCHILD,
    LaneDriver,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


async def test_a_lane_is_confined(launcher: NurseryLauncher) -> None:
    """A session of its own, no new privileges, no core files, and deaf to the signals that make a server drain."""
    lane = LaneDriver(await launcher.start())
    await lane.open("CartPole-v1")
    pid = lane.handle.pid
    assert os.getsid(pid) == os.getpgid(pid) == pid
    assert status(pid)["NoNewPrivs"] == "1"
    resource = pytest.importorskip("resource")
    assert resource.prlimit(pid, resource.RLIMIT_CORE) == (0, 0)
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(pid, number)
        assert launcher.nursery_pid is not None
        os.kill(launcher.nursery_pid, number)
    assert (await lane.step(0)).rewards.tolist() == [1.0]


async def test_programs_of_an_environment_obey_sigterm(launcher: NurseryLauncher) -> None:
    """The lane ignores it, but what it starts by exec or fork can be terminated as usual."""
    lane = LaneDriver(await launcher.start())
    await lane.open("wild")
    for way in (GRANDCHILD, ESCAPED):
        pid = int((await lane.step(way)).obs[0][0, 0])
        os.kill(pid, signal.SIGTERM)
        await gone(pid)
