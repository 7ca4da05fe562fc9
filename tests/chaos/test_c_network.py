"""Rows C: holes in the network, short and long. (C1, streams that break, is in test_promises.)"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from asyncrl.client.connecting import connect
from asyncrl.client.timing import LaneTimers
from tests.chaos.driving import Driver
from tests.rig.census import census
from tests.rig.processes import EnvServerProcess
from tests.rig.proxy import FaultProxy

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(60)]

TIMERS = LaneTimers(ping_every_s=0.3, pong_within_s=1.5, step_s=20)
WINDOW_S = 4


@pytest.mark.parametrize(
    "direction", ["both", *(pytest.param(one, marks=pytest.mark.slow) for one in ("to_server", "to_client"))]
)
@pytest.mark.parametrize("heals", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["heals", "stays"])
async def test_C2_C3_a_hole_is_noticed_and_survived(tmp_path: Path, direction: str, heals: bool) -> None:
    """Silence is noticed by pings; healed within the resume window nothing is lost, later the episodes are cut."""
    options = ["--quota", f"resume_window_s={WINDOW_S}", "--quota", "lease_s=2"]
    server = EnvServerProcess(tmp_path, num_envs=4, options=options)
    async with census(), server, FaultProxy(("127.0.0.1", int(server.address.rpartition(":")[2]))) as proxy:
        wish: dict[str, Any] = {"num_envs": 4, "lanes": 2, "seed": 2, "resumable": True}
        async with connect(proxy.address, env="ledger", timers=TIMERS, **wish) as fleet, Driver(fleet, 2) as driver:
            await driver.transitions(200)
            for name in ("to_server", "to_client"):
                getattr(proxy, name).hole = direction in (name, "both")
            await asyncio.sleep(3.0 if heals else WINDOW_S + 4)
            proxy.hole(False)
            await driver.all_lanes_move(20)
            report = await driver.finish(server.journal)
            if heals:
                assert not driver.losses
                assert report.lost_in_flight == 0
                assert report.instances == 4
                assert fleet.stats.faults["stream_resumed"] >= 2
            else:
                assert len(driver.losses) == 2
                assert report.lost_in_flight <= 2 * 4
                assert report.instances == 8
            print(f"{report}; {dict(fleet.stats.faults)}")
