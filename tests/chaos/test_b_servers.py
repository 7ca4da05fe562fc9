"""Rows B: env servers that die, freeze, drain, come back, come back as something else, or meet themselves."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from asyncrl.client.connecting import connect
from asyncrl.client.timing import LaneTimers
from tests.chaos.driving import Driver, scene
from tests.rig.census import census, living
from tests.rig.processes import EnvServerProcess, ledger_option, until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(60)]

TIMERS = LaneTimers(ping_every_s=0.5, pong_within_s=2.0, step_s=10)


async def test_B1_a_killed_server_takes_its_lanes_along(tmp_path: Path) -> None:
    """SIGKILL: the client knows within a second or so, the lanes' processes are gone within two."""
    async with scene(tmp_path, timers=TIMERS) as it:
        below = set(it.server.descendants())
        assert len(below) >= 3
        await it.server.kill()
        noticed = await it.driver.until(lambda: len(it.driver.losses) == 3, 10)
        ended = await until(lambda: not below & living(), 5, "the lanes are gone")
        assert {loss.cause for loss in it.driver.losses} == {"server_lost"}
        report = it.driver.ledger.check(it.server.journal).raise_if_violated()
        assert report.lost_in_flight <= 6
    print(f"noticed after {noticed * 1000:.0f} ms, no lane left after {ended * 1000:.0f} ms; {report}")


async def test_B2_a_frozen_server_loses_nothing(tmp_path: Path) -> None:
    """SIGSTOP of everything for longer than the client waits for a pong: the lanes resume, no incarnation changes."""
    async with scene(tmp_path, timers=TIMERS, resumable=True) as it:
        it.server.pause(with_lanes=True)
        await asyncio.sleep(4.0)
        it.server.resume()
        await it.driver.all_lanes_move(20)
        report = await it.audited()
        assert not it.driver.losses
        assert report.lost_in_flight == 0
        assert report.instances == 6
        assert it.fleet.stats.faults["stream_resumed"] > 0
        print(f"{report}; {it.fleet.stats.faults['stream_resumed']} streams resumed")


async def test_B2_a_server_that_stood_still_blames_no_lane(tmp_path: Path) -> None:
    """SIGSTOP of the server alone, beyond its lease: that it has not heard its clients is its own fault."""
    timers = LaneTimers(ping_every_s=0.5, pong_within_s=10.0, step_s=1.0)
    async with scene(tmp_path, kwargs={"step_s": 0.3}, steps=30, timers=timers, quotas="lease_s=1") as it:
        it.server.pause(with_lanes=False)
        await asyncio.sleep(2.5)
        it.server.resume()
        await it.driver.all_lanes_move(20)
        report = await it.audited()
        assert not it.driver.losses
        assert report.lost_in_flight == 0


async def test_B6_a_server_that_drains_loses_nothing(tmp_path: Path) -> None:
    """SIGTERM: lanes move to the other server with nothing in flight, the server ends with status 0."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(census())
        servers = [
            await stack.enter_async_context(EnvServerProcess(tmp_path, num_envs=6, name=f"server{number}"))
            for number in range(2)
        ]
        addresses = [server.address for server in servers]
        fleet = await stack.enter_async_context(connect(addresses, env="ledger", num_envs=6, lanes=4, seed=9))
        driver = await stack.enter_async_context(Driver(fleet))
        await driver.transitions(300)
        moved = sum(lane.address == addresses[0] for lane in fleet.lanes)
        assert 0 < moved < 4
        began = time.monotonic()
        assert await servers[0].terminate(10) == 0
        took = time.monotonic() - began
        await driver.all_lanes_move()
        assert [loss.cause for loss in driver.losses] == ["drained"] * moved
        assert {lane.address for lane in fleet.lanes} == {addresses[1]}
        report = await driver.finish(servers[0].journal)
        assert report.lost_in_flight == 0
        print(f"{moved} lanes moved, the server ended {took * 1000:.0f} ms after SIGTERM; {report}")


async def test_B7_a_server_that_comes_back_is_used_again(tmp_path: Path) -> None:
    """Kill and restart: another boot_id, every slot in its next incarnation, rows again within seconds."""
    async with scene(tmp_path, timers=TIMERS, resumable=True) as it:
        boot = it.server.boot_id
        await it.server.kill()
        await it.server.start()
        assert it.server.boot_id != boot
        await it.driver.until(lambda: len(it.driver.losses) == 3, 15)
        back = await it.driver.all_lanes_move(15)
        assert [loss.cause for loss in it.driver.losses] == ["server_lost"] * 3
        report = await it.audited()
        assert report.instances == 12
        assert {incarnation for lane in it.fleet.lanes for incarnation in lane.incarnation.tolist()} == {1}
        print(f"every lane moves {back * 1000:.0f} ms after its loss; {report}")


@pytest.mark.parametrize("changed", [{"obs_bytes": 128}, {"mean_length": 50}], ids=["spaces", "kwargs"])
async def test_B8_a_server_with_another_environment_is_refused(tmp_path: Path, changed: dict[str, Any]) -> None:
    """It comes back with other spaces, or the same spaces and other kwargs: not one of its rows arrives."""
    async with scene(tmp_path, kwargs={"mean_length": 20}, timers=TIMERS) as it:
        await it.server.kill()
        await it.driver.until(lambda: len(it.driver.losses) == 3, 10)
        stored = it.driver.ledger.num_rows
        it.server.envs = [ledger_option(**({"mean_length": 20} | changed))]
        seen = len(it.server.log())
        await it.server.start()
        await until(lambda: it.server.log()[seen:].count(" closed: ") >= 3, 10, "the lanes were tried")
        await asyncio.sleep(0.5)
        assert it.driver.ledger.num_rows == stored
        await it.audited()


async def test_B9_a_second_server_on_the_port_fails_loudly(tmp_path: Path) -> None:
    """It ends with a status other than 0 and names the port; the first one keeps serving."""
    async with scene(tmp_path) as it:
        second = EnvServerProcess(tmp_path, num_envs=6, listen=it.server.address, name="second")
        with pytest.raises(AssertionError, match=f"cannot listen on {it.server.address}"):
            await second.start()
        await it.driver.all_lanes_move()
        assert not it.driver.losses
        await it.audited()
