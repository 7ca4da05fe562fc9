"""One `RemoteVectorEnv` over four env servers in namespaces of their own: what breaks one leaves the others alone."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

import asyncrl
from asyncrl.client import io_loop
from tests.chaos.net.four_servers import (
    LANES_EACH,
    NUM_ENVS,
    NUM_LANES,
    SLOTS,
    WINDOW_S,
    Machines,
    four_servers,
    lanes_keep_their_rate,
)
from tests.chaos.vector_driving import VectorDriver
from tests.rig.netns import needs_namespaces

pytestmark = [pytest.mark.chaos, pytest.mark.net_root, pytest.mark.timeout(120), needs_namespaces]

SEED = 4
STEP_TIMEOUT_S = 3.0  # a step takes a tenth of a second, and this machine is shared


@dataclass
class Site:
    """Four machines, one environment over them, and who plays on it. Lanes stay where they are: there is no room
    for them elsewhere."""

    machines: Machines
    driver: VectorDriver
    address_of: list[str]  # by lane

    def lanes_at(self, number: int) -> list[int]:
        address = self.machines.servers[number].address
        return [lane for lane in range(NUM_LANES) if self.address_of[lane] == address]

    def lanes_elsewhere(self, number: int) -> list[int]:
        return sorted(set(range(NUM_LANES)) - set(self.lanes_at(number)))

    async def others_keep_their_rate(self, number: int, before: float) -> float:
        return await lanes_keep_their_rate(self.driver.rate, self.lanes_elsewhere(number), before)

    async def baseline(self, number: int) -> float:
        """Transitions per second of the lanes that will not be harmed."""
        return await self.driver.rate(self.lanes_elsewhere(number), WINDOW_S)

    async def lost(self, since: float, lanes: list[int]) -> float:
        """Seconds from `since` until these lanes, and no others, had shown lost rows."""
        await self.driver.until(lambda: len(self.driver.lost_since(since)) >= len(lanes), 20.0, f"losses of {lanes}")
        seen = self.driver.lost_since(since)
        assert sorted(lane for _, lane in seen) == lanes
        return max(at for at, _ in seen) - since

    async def returned(self, since: float, lanes: list[int]) -> float:
        """Seconds from `since` until each of these lanes has brought the first rows of a replacement, and has moved."""
        await self.driver.until(lambda: len(self.driver.back_since(since)) >= len(lanes), 30.0, f"return of {lanes}")
        seen = self.driver.back_since(since)
        assert sorted(lane for _, lane in seen) == lanes
        await self.driver.all_lanes_move()
        return max(at for at, _ in seen) - since


@asynccontextmanager
async def site(directory: Path) -> AsyncIterator[Site]:
    io_loop.shared_loop()  # it stays for the life of the process: before the census
    async with four_servers(directory) as machines:
        envs = await asyncio.to_thread(
            asyncrl.RemoteVectorEnv,
            "ledger",
            NUM_ENVS,
            machines.addresses,
            lanes=NUM_LANES,
            seed=SEED,
            step_timeout_s=STEP_TIMEOUT_S,
            token_file=machines.token_file,
            tls_ca=machines.tls_ca,
        )
        async with VectorDriver(envs, SEED) as driver:
            await driver.transitions(100)
            yield Site(machines, driver, [lane.address for lane in envs.fleet.lanes])


@pytest.mark.slow  # its rates want a machine of their own
async def test_one_vector_environment_outlives_a_lane_a_frozen_server_and_a_killed_one(tmp_path: Path) -> None:
    """By send and recv: the rest keeps 95 % of its rate, lost rows say so, capacity returns, the books balance."""
    async with site(tmp_path) as it:
        servers, driver = it.machines.servers, it.driver

        before, began = await it.baseline(0), time.monotonic()
        os.kill(servers[0].lane_pids()[0], signal.SIGKILL)
        await driver.until(lambda: driver.lost_since(began), 20.0, "the loss of a lane")
        (_, victim), *_ = driver.lost_since(began)
        assert victim in it.lanes_at(0)
        noticed = await it.lost(began, [victim])
        back = await it.returned(began, [victim])
        kept = await it.others_keep_their_rate(0, before)
        print(f"\nSIGKILL of a lane: lost rows after {noticed:.3f} s, back after {back:.3f} s; others kept {kept:.0%}")

        before, began = await it.baseline(1), time.monotonic()
        servers[1].pause(with_lanes=True)
        kept = await it.others_keep_their_rate(1, before)
        noticed = await it.lost(began, it.lanes_at(1))
        kept_later = await it.others_keep_their_rate(1, before)
        assert not driver.back_since(began)
        frozen_s, continued = time.monotonic() - began, time.monotonic()
        servers[1].resume()
        back = await it.returned(continued, it.lanes_at(1))
        print(f"SIGSTOP of a server for {frozen_s:.1f} s: lost rows after {noticed:.3f} s,", end=" ")
        print(f"back {back:.3f} s after SIGCONT; others kept {kept:.0%}, then {kept_later:.0%}")

        before, began = await it.baseline(2), time.monotonic()
        await servers[2].kill()
        noticed = await it.lost(began, it.lanes_at(2))
        kept = await it.others_keep_their_rate(2, before)
        assert not driver.back_since(began)
        await servers[2].start()
        ready = time.monotonic()
        back = await it.returned(ready, it.lanes_at(2))
        print(f"SIGKILL of a server: lost rows after {noticed:.3f} s,", end=" ")
        print(f"all are back {back:.3f} s after it is ready again; others kept {kept:.0%}")

        report = await driver.finish(servers[0].journal)
        assert len(driver.lost_at) == len(driver.back_at) == 1 + 2 * LANES_EACH
        # One row with the news, one in which the replacement arrives.
        assert driver.lost_rows == 2 * SLOTS * len(driver.lost_at)
        assert report.lost_in_flight <= SLOTS * len(driver.lost_at)
        print(report)
