"""The ledger over a real server: nothing lost, doubled, mixed or mispaired, also across streams that break."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from asyncrl.client.connecting import connect
from asyncrl.client.fleet import Fleet
from tests.chaos.driving import Driver
from tests.rig.census import census
from tests.rig.processes import EnvServerProcess, ledger_option
from tests.rig.proxy import FaultProxy

pytestmark = pytest.mark.chaos

NUM_BREAKS = 20


@pytest.mark.timeout(120)
@pytest.mark.parametrize("autoreset", ["same_step", pytest.param("next_step", marks=pytest.mark.slow)])
async def test_100_000_steps_are_stored_exactly_once(tmp_path: Path, autoreset: str) -> None:
    """10^5 transitions over 4 lanes: executed = stored, every header, action and reward in its place."""
    asyncio.get_running_loop().set_debug(False)  # it would take two fifths of the time
    async with census(), EnvServerProcess(tmp_path, num_envs=64) as server:
        settings: dict[str, Any] = {"env": "ledger", "num_envs": 64, "lanes": 4, "seed": 11, "autoreset": autoreset}
        async with connect(server.address, **settings) as fleet, Driver(fleet, depth=2) as driver:
            await driver.transitions(100_000, within_s=90)
            report = await driver.finish(server.journal)
        assert report.stored >= 100_000
        assert report.lost_in_flight == 0
        assert report.executed == report.stored


async def _one_more_resume(fleet: Fleet, driver: Driver, what: str) -> None:
    before = fleet.stats.faults["stream_resumed"]
    await driver.until(lambda: fleet.stats.faults["stream_resumed"] > before, 20, what)


@pytest.mark.timeout(90)
@pytest.mark.parametrize(
    "obs_bytes", [pytest.param(64, id="small", marks=pytest.mark.slow), pytest.param(28_224, id="atari-sized")]
)
async def test_C1_twenty_broken_streams_lose_nothing(tmp_path: Path, obs_bytes: int) -> None:
    """RST at seeded byte offsets, inside frames too, with resume: 0 transitions lost, 0 stored twice."""
    rng = random.Random(5)
    async with (
        census(),
        EnvServerProcess(tmp_path, num_envs=12, envs=[ledger_option(obs_bytes=obs_bytes)]) as server,
        FaultProxy(("127.0.0.1", int(server.address.rpartition(":")[2]))) as proxy,
    ):
        settings: dict[str, Any] = {"env": "ledger", "num_envs": 12, "lanes": 3, "seed": 3, "resumable": True}
        async with connect(proxy.address, **settings) as fleet, Driver(fleet, depth=2) as driver:
            await driver.transitions(500)
            for number in range(NUM_BREAKS):
                way = rng.choice((proxy.to_client, proxy.to_client, proxy.to_server))
                way.reset_after = way.passed + rng.randrange(20_000)
                await _one_more_resume(fleet, driver, f"resume {number}")
                await driver.all_lanes_move()
            report = await driver.finish(server.journal)
        assert not driver.losses
        assert report.lost_in_flight == 0
        assert report.executed == report.stored
        print(f"{report}; {fleet.stats.faults['stream_resumed']} streams resumed, {fleet.stats.duplicates} duplicates")
