"""Four env servers in namespaces of their own, token and TLS, one client: what breaks one leaves the others alone."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from asyncrl.client.connecting import connect
from asyncrl.client.credentials import Access
from asyncrl.client.fleet import Fleet
from asyncrl.client.fleet_config import FleetEvent
from asyncrl.client.timing import LaneTimers
from tests.chaos.driving import Driver
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
from tests.rig.netns import needs_namespaces
from tests.rig.processes import EnvServerProcess

pytestmark = [pytest.mark.chaos, pytest.mark.net_root, pytest.mark.timeout(120), needs_namespaces]

TIMERS = LaneTimers(ping_every_s=0.3, pong_within_s=2.0, step_s=15)


@dataclass
class Site:
    """Four machines, what runs on them, and who uses them."""

    machines: Machines
    fleet: Fleet
    driver: Driver
    events: list[tuple[float, FleetEvent]]

    @property
    def servers(self) -> list[EnvServerProcess]:
        return self.machines.servers

    def lanes_at(self, number: int) -> list[int]:
        address = self.servers[number].address
        return [lane.index for lane in self.fleet.lanes if lane.address == address]

    def lanes_elsewhere(self, number: int) -> list[int]:
        return [lane.index for lane in self.fleet.lanes if lane.index not in self.lanes_at(number)]

    async def others_keep_their_rate(self, others: list[int], before: float) -> float:
        """The share of their rate that these lanes keep now."""
        return await lanes_keep_their_rate(self.driver.rate, others, before)

    async def recovered(self, lanes: list[int], within_s: float = 20.0) -> float:
        """Seconds until each of these lanes has brought a transition again."""
        before = Counter(self.driver.rows_of)
        return await self.driver.until(
            lambda: all(self.driver.rows_of[lane] > before[lane] for lane in lanes), within_s
        )

    async def told(self, kind: str, since: float, count: int, within_s: float = 15.0) -> float:
        """Seconds from `since` until the client had told of so many events of a kind."""

        def times() -> list[float]:
            return [at for at, event in self.events if event.kind == kind and at >= since]

        await self.driver.until(lambda: len(times()) >= count, within_s, f"{count} × {kind}")
        return times()[count - 1] - since


@asynccontextmanager
async def site(directory: Path) -> AsyncIterator[Site]:
    events: list[tuple[float, FleetEvent]] = []
    async with (
        four_servers(directory) as machines,
        connect(
            machines.addresses,
            access=Access(token_file=machines.token_file, tls_ca=machines.tls_ca),
            on_event=lambda event: events.append((time.monotonic(), event)),
            env="ledger",
            num_envs=NUM_ENVS,
            lanes=NUM_LANES,
            seed=4,
            resumable=True,
            timers=TIMERS,
        ) as fleet,
        Driver(fleet) as driver,
    ):
        await driver.transitions(100)
        yield Site(machines, fleet, driver, events)


async def test_a_killed_lane_a_frozen_server_and_a_killed_one(tmp_path: Path) -> None:
    """One after the other, while the rest keeps 95 % of its rate; capacity returns, and the books balance."""
    async with site(tmp_path) as it:
        every = list(range(NUM_LANES))

        others = it.lanes_elsewhere(0)
        before, began = await it.driver.rate(others, WINDOW_S), time.monotonic()
        os.kill(it.servers[0].lane_pids()[0], signal.SIGKILL)
        noticed = await it.told("lane_lost", began, 1)
        back = await it.recovered(every)
        kept = await it.others_keep_their_rate(others, before)
        print(f"\nSIGKILL of a lane: noticed {noticed:.3f} s, back after {back:.3f} s more; others kept {kept:.0%}")

        others, frozen = it.lanes_elsewhere(1), it.lanes_at(1)
        before, began = await it.driver.rate(others, WINDOW_S), time.monotonic()
        it.servers[1].pause(with_lanes=True)
        kept = await it.others_keep_their_rate(others, before)
        await asyncio.sleep(max(0.0, 4.0 - (time.monotonic() - began)))
        frozen_s, continued = time.monotonic() - began, time.monotonic()
        it.servers[1].resume()
        back = await it.recovered(frozen)
        resumed = await it.told("stream_resumed", continued, LANES_EACH)
        print(f"SIGSTOP for {frozen_s:.1f} s: resumed {resumed:.3f} s and rows {back:.3f} s after SIGCONT;", end=" ")
        print(f"others kept {kept:.0%}")
        assert len(it.driver.losses) == 1

        others = it.lanes_elsewhere(2)
        before, began = await it.driver.rate(others, WINDOW_S), time.monotonic()
        await it.servers[2].kill()
        kept = await it.others_keep_their_rate(others, before)
        await it.servers[2].start()
        ready = time.monotonic()
        noticed = began + await it.told("lane_lost", began, LANES_EACH) - ready
        back = await it.recovered(every)
        print(f"SIGKILL of a server: {noticed:.3f} s after it is ready again its old lanes are given up,", end=" ")
        print(f"all are back {back:.3f} s later; others kept {kept:.0%}")

        report = await it.driver.finish(it.servers[0].journal)
        assert len(it.driver.losses) == 1 + LANES_EACH
        assert report.lost_in_flight <= SLOTS * len(it.driver.losses)
        print(report)


async def test_C2_a_cut_cable_is_silence_and_heals(tmp_path: Path) -> None:
    """No FIN, no RST: packets vanish. The client finds out by itself, resumes when the cable is back, loses nothing."""
    async with site(tmp_path) as it:
        others, silent = it.lanes_elsewhere(3), it.lanes_at(3)
        before = await it.driver.rate(others, WINDOW_S)
        it.machines.namespaces[3].cut()
        kept = await it.others_keep_their_rate(others, before)
        await asyncio.sleep(2.5)
        healed = time.monotonic()
        it.machines.namespaces[3].heal()
        back = await it.recovered(silent, 30)
        resumed = await it.told("stream_resumed", healed, LANES_EACH, 30)
        report = await it.driver.finish(it.servers[0].journal)
        assert not it.driver.losses
        assert report.lost_in_flight == 0
        print(
            f"\ncut: resumed {resumed:.3f} s after healing, rows after {back:.3f} s; others kept {kept:.0%}; {report}"
        )
