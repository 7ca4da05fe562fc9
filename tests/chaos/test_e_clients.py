"""Rows E and G: several clients on one server, clients from the past, and strangers."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from pathlib import Path
from typing import Any

import pytest

from asyncrl.client.connecting import connect
from asyncrl.errors import ServerRefused
from tests.chaos.driving import Driver, scene
from tests.rig import ledger_rules as rules
from tests.rig.census import census
from tests.rig.processes import EnvServerProcess
from tests.rig.proxy import FaultProxy

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(60)]

WISH: dict[str, Any] = {"env": "ledger", "num_envs": 4, "lanes": 2, "seed": 6}


async def test_E9_another_run_waits_for_room_and_then_gets_it(tmp_path: Path) -> None:
    """While one run has all slots another is told BUSY at once; when the first leaves, the second gets them."""
    async with census(), EnvServerProcess(tmp_path, num_envs=4) as server:
        async with connect(server.address, **WISH, run_id="one") as first, Driver(first) as driver:
            await driver.transitions(100)
            with pytest.raises(ServerRefused, match=r"BUSY|CAPACITY"):
                async with asyncio.timeout(5), connect(server.address, **WISH, run_id="two"):
                    pytest.fail("there was no room")
            await driver.all_lanes_move()
            assert not driver.losses
            await driver.finish(server.journal)
        async with connect(server.address, **WISH, run_id="two") as second, Driver(second) as driver:
            await driver.transitions(100)


async def test_E9_members_of_one_run_share_a_server(tmp_path: Path) -> None:
    """Equal epochs with other members have their lanes side by side."""
    async with (
        census(),
        EnvServerProcess(tmp_path, num_envs=8) as server,
        connect(server.address, **WISH, run_id="one", member="rank0") as first,
        connect(server.address, **WISH, run_id="one", member="rank1") as second,
        Driver(first) as one,
        Driver(second) as two,
    ):
        await one.transitions(200)
        await two.transitions(200)
        assert not one.losses + two.losses


async def test_E9_a_higher_epoch_takes_over(tmp_path: Path) -> None:
    """The older learner of the same run is told FENCED and stops; the newer one has its slots at once."""
    wish = WISH | {"run_id": "one"}
    async with (
        census(),
        EnvServerProcess(tmp_path, num_envs=4) as server,
        connect(server.address, **wish, learner_epoch=1) as old,
        Driver(old) as past,
    ):
        await past.transitions(100)
        async with connect(server.address, **wish, learner_epoch=2) as new, Driver(new) as present:
            with pytest.raises(ServerRefused, match="FENCED"):
                await past.until(lambda: False, 10)
            await present.transitions(100)
            with pytest.raises(ServerRefused, match="FENCED"):
                async with connect(server.address, **wish, learner_epoch=1):
                    pytest.fail("the past came back")
            await present.all_lanes_move()


async def test_E10_a_learner_that_wakes_up_late_moves_nothing(tmp_path: Path) -> None:
    """Frozen out of the network while its successor takes over: when it is back, not one of its steps is executed."""
    async with census(), EnvServerProcess(tmp_path, num_envs=4) as server:
        upstream = ("127.0.0.1", int(server.address.rpartition(":")[2]))
        async with FaultProxy(upstream) as proxy:
            wish = WISH | {"run_id": "one", "resumable": True}
            async with connect(proxy.address, **wish, learner_epoch=1) as old, Driver(old, 2) as zombie:
                await zombie.transitions(100)
                proxy.hole()
                async with connect(server.address, **wish, learner_epoch=2) as new, Driver(new) as present:
                    zombies = {int(nonce) for nonce in zombie.ledger.rows()["nonce"]}
                    before = _steps_of(zombies, server)
                    await present.transitions(100)
                    proxy.hole(False)
                    with pytest.raises(ServerRefused, match="FENCED"):
                        await zombie.until(lambda: False, 20)
                    await present.transitions(100)
                    assert _steps_of(zombies, server) == before
                    assert not present.losses


def _steps_of(nonces: set[int], server: EnvServerProcess) -> int:
    return sum(int(nonce) in nonces for nonce in rules.read_journal(server.journal)["nonce"])


def strangers() -> list[bytes]:
    """What a scan, a browser, a TLS client and noise send first."""
    rng = random.Random(0)
    return [
        b"",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(200),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + rng.randbytes(200),
        b"PRI * HTTP/2.0\r\n\r\nSM",
        *(rng.randbytes(rng.randrange(1, 400)) for _ in range(20)),
    ]


async def test_G3_strangers_do_not_disturb(tmp_path: Path) -> None:
    """100 connections that speak something else: closed, a few lines of log at most, and the lanes keep their pace."""
    async with scene(tmp_path) as it:
        lanes = [0, 1, 2]
        quiet = await it.driver.rate(lanes, 1.0)
        log_before = len(it.server.log())
        host, _, port = it.server.address.rpartition(":")
        sockets = []
        for number in range(100):
            stranger = socket.create_connection((host, int(port)))
            stranger.setblocking(False)
            with contextlib.suppress(OSError):
                stranger.send(strangers()[number % 25])
            sockets.append(stranger)
        noisy = await it.driver.rate(lanes, 1.0)
        for stranger in sockets:
            stranger.close()
        await it.driver.all_lanes_move()
        assert not it.driver.losses
        assert it.server.log()[log_before:].count("\n") < 20
        await it.audited()
        print(f"{quiet:.0f} transitions/s, {noisy:.0f}/s among {len(sockets)} strangers")
