"""A fleet against env servers in memory, on virtual time: arrivals, ends, starts that fail."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from asyncrl.client.fleet_config import FleetEvent
from asyncrl.client.timing import LaneTimers
from asyncrl.errors import ConfigError, ConnectionFailed, LocalProtocolError, ServerRefused, SpecMismatch
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.envelope import error_body
from asyncrl.wire.flags import CUT, FIRST, NO_TRANSITION
from tests.rig.sim_loop import run_sim
from tests.unit.client.fleet_rig import Rig, sim
from tests.unit.client.toy_server import SPEC, ToyServer

RESET = FIRST | NO_TRANSITION


def test_close_leaves_nothing() -> None:
    """BYE on every lane, no task left, the servers keep nothing; `recv` then says so and iteration ends."""
    made: list[Rig] = []

    async def main(rig: Rig) -> None:
        made.append(rig)
        await rig.drive(20)
        await rig.fleet.close()
        assert rig.servers[0].byes == 2
        async for _ in rig.fleet:
            pass
        with pytest.raises(LocalProtocolError, match="closed"):
            await rig.fleet.recv()

    sim(main, lanes=2)


def test_iteration_gives_every_arrival() -> None:
    """`async for` is recv in a loop."""

    async def main(rig: Rig) -> None:
        seen = 0
        async for arrival in rig.fleet:
            seen += 1
            if seen == 10:
                break
            rig.step(arrival.lane)
        assert rig.fleet.recv_nowait() is None
        assert rig.fleet.stats.arrivals == 10

    sim(main)


def test_a_loss_is_one_arrival_and_one_event() -> None:
    """rows, then `lost`, then the replacement's rows with CUT|FIRST|NO_TRANSITION: the episode was running."""

    async def main(rig: Rig) -> None:
        await rig.drive(3)
        rig.servers[0].lose_lanes("crash(SIGSEGV)")
        await rig.drive(3)
        kinds = ["lost" if arrival.lost else "rows" for arrival in rig.arrivals]
        assert kinds.count("lost") == 1
        lost = kinds.index("lost")
        cause, after = rig.arrivals[lost].lost, rig.arrivals[lost + 1].rows
        assert cause is not None
        assert after is not None
        assert cause.cause == "crash(SIGSEGV)"
        assert set(after.flags.tolist()) == {CUT | RESET}
        assert rig.faults() == [("lane_lost", "crash(SIGSEGV)")]
        assert rig.fleet.stats.faults == {"lane_lost": 1}
        assert rig.fleet.stats.reopened == 1

    sim(main)


def test_a_fenced_fleet_stops() -> None:
    """A newer learner took over: `recv` raises FENCED once what had arrived is read, and no lane is opened again."""

    async def main(rig: Rig) -> None:
        await rig.recv()
        dials = rig.servers[0].dials
        rig.servers[0].push(pb.ERROR, error_body("FENCED", "learner_epoch 2 has taken over"))
        with pytest.raises(ServerRefused) as caught:
            await rig.drain()
        assert caught.value.code == "FENCED"
        await asyncio.sleep(60.0)
        assert rig.servers[0].dials == dials
        with pytest.raises(ServerRefused):
            rig.fleet.recv_nowait()

    sim(main, lanes=2)


def test_one_fenced_lane_stops_them_all() -> None:
    """The others would be fenced too: they leave by BYE."""

    async def main(rig: Rig) -> None:
        (toy,) = rig.servers
        await rig.drive(4)
        fenced = next(iter(toy.lanes.values()))
        fenced.send(fenced.protocol.control(pb.ERROR, error_body("FENCED", "learner_epoch 2 has taken over")))
        await asyncio.sleep(3.0)
        assert toy.byes == 3
        with pytest.raises(ServerRefused, match="FENCED"):
            await rig.drain()

    sim(main, lanes=4)


def test_servers_that_disagree_are_refused_at_the_start() -> None:
    """Two environments under one name: a typed error that says what differs."""

    async def whole() -> None:
        other = replace(SPEC, build="gymnasium 9")
        async with ToyServer(address="a:1") as one, ToyServer(address="b:1", spec=other) as two:
            with pytest.raises(SpecMismatch, match="its build is"):
                async with Rig([one, two], lanes=2).fleet:
                    pass

    run_sim(whole, 0)


@pytest.mark.parametrize(
    ("server", "settings", "error", "text"),
    [
        ({"up": False}, {}, ConnectionFailed, "nobody there"),
        ({"alias": "pong"}, {}, ServerRefused, "does not serve 'toy', but pong"),
        ({"capacity": 3}, {}, ServerRefused, "3 of 3 free"),
        ({"major": 9}, {}, ServerRefused, "upgrade the client"),
        ({"draining": True}, {}, ServerRefused, "0 of 64 free"),
        ({"refuse_open": error_body("BAD_KWARGS", "no such key")}, {}, ServerRefused, "no such key"),
        ({}, {"lanes": 9}, ConfigError, "lanes is 9"),
    ],
)
def test_a_start_that_fails_is_typed_and_leaves_nothing(
    server: dict[str, Any], settings: dict[str, Any], error: type[Exception], text: str
) -> None:
    """Each way to fail at the start, with what to do about it."""

    async def whole() -> None:
        async with ToyServer(**server) as toy:
            before = asyncio.all_tasks()
            with pytest.raises(error, match=text):
                async with Rig([toy], **settings).fleet:
                    pass
            await asyncio.sleep(2.0)
            assert asyncio.all_tasks() == before
            assert not toy.lanes

    run_sim(whole, 0)


def test_one_server_down_fails_the_start_unless_partial_is_allowed() -> None:
    """The error names the server; `allow_partial` starts on the rest."""

    async def whole() -> None:
        async with ToyServer(address="a:1", up=False) as down, ToyServer(address="b:1") as good:
            with pytest.raises(ConnectionFailed, match="a:1: nobody there"):
                async with Rig([down, good]).fleet:
                    pass
            rig = Rig([down, good], allow_partial=True)
            async with rig.fleet:
                await rig.drive(3)
                assert rig.fleet.lanes[0].address == "b:1"

    run_sim(whole, 0)


def test_a_bad_action_is_raised_to_its_caller() -> None:
    """`recv` raises the refusal; the lane is well and takes a better one."""

    async def main(rig: Rig) -> None:
        arrival = await rig.recv()
        arrival.lane.step([np.full(4, 5000, np.int64)])
        with pytest.raises(ServerRefused, match="outside") as caught:
            await rig.recv()
        assert caught.value.code == "BAD_ACTION"
        rig.step(arrival.lane)
        assert (await rig.recv()).rows is not None
        assert rig.faults() == [("request_refused", "BAD_ACTION")]

    sim(main)


def test_an_observer_that_raises_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """`on_event` is the caller's code on the path of every lane."""

    async def main(rig: Rig) -> None:
        def broken(event: FleetEvent) -> None:
            raise ValueError("observer")

        rig.fleet.on_event = broken
        await rig.drive(3)
        rig.servers[0].lose_lanes("hang")
        await rig.drive(3)
        assert rig.fleet.stats.faults == {"lane_lost": 1}

    with caplog.at_level(logging.ERROR):
        sim(main, seeds=1)
    assert "on_event failed" in caplog.text


def test_one_receiver_at_a_time() -> None:
    """Two would each see half of the arrivals."""

    async def main(rig: Rig) -> None:
        await rig.recv()
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(rig.fleet.recv())
            await asyncio.sleep(0.1)
            with pytest.raises(LocalProtocolError, match="one receiver"):
                await rig.fleet.recv()
            waiting.cancel()
        rig.step(rig.fleet.lanes[0])
        assert (await rig.recv()).rows is not None  # a cancelled recv loses nothing

    sim(main)


def test_timers_of_the_config_reach_the_lanes() -> None:
    """A step deadline of 3 s instead of 30."""

    async def main(rig: Rig) -> None:
        arrival = await rig.recv()
        rig.servers[0].hold_replies = True
        rig.step(arrival.lane)
        start = asyncio.get_running_loop().time()
        lost = (await rig.recv()).lost
        assert lost is not None
        assert lost.cause == "deadline"
        assert asyncio.get_running_loop().time() - start < 5.0

    sim(main, timers=LaneTimers(step_s=3.0, grace_s=1.0), give_up_s=1e9)
