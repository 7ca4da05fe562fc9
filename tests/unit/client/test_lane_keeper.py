"""How a lost lane comes back: where, when, with which seeds."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from asyncrl.client.timing import LaneTimers
from asyncrl.errors import ConnectionFailed, RemoteProtocolError, SpecMismatch
from asyncrl.wire import handshake
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.envelope import error_body
from asyncrl.wire.spaces import Node, SpaceSpec
from asyncrl.wire.spec import LaneSpec
from tests.unit.client.fleet_rig import Rig, seeds_of, sim
from tests.unit.client.toy_server import SPEC


def test_slots_and_seeds_are_the_fleets() -> None:
    """Slot i is row i - start of its lane, and starts with seed + i in incarnation 0."""

    async def main(rig: Rig) -> None:
        await rig.drive(4)
        asked = {int(slot): seed for toy in rig.servers for lane in toy.all_lanes for slot, seed in seeds_of(lane)}
        assert asked == {slot: 100 + slot for slot in range(10)}
        for arrival in rig.arrivals:
            assert arrival.rows is not None
            assert arrival.rows.obs[0][:, 0].tolist() == arrival.lane.fleet_slots.tolist()
        assert sorted(slot for lane in rig.fleet.lanes for slot in lane.fleet_slots.tolist()) == list(range(10))

    sim(main, servers=[{"address": "a:1"}, {"address": "b:1"}], num_envs=10, lanes=4)


def test_incarnations_go_on_from_a_checkpoint() -> None:
    """A resumed run tells its counters, and no environment starts with a seed it had before."""

    async def main(rig: Rig) -> None:
        arrival = await rig.recv()
        assert arrival.incarnation.tolist() == [0, 3, 0, 1]
        assert seeds_of(rig.servers[0].all_lanes[0]) == [
            (0, 100),
            (1, handshake.rebuilt_seed(100, 1, 3)),
            (2, 102),
            (3, handshake.rebuilt_seed(100, 3, 1)),
        ]

    sim(main, incarnations=[0, 3, 0, 1])


def test_a_lost_lane_moves_to_a_server_with_room() -> None:
    """Its own server is gone: the other one takes it, at once."""

    async def main(rig: Rig) -> None:
        await rig.drive(6)
        start = asyncio.get_running_loop().time()
        rig.servers[0].die()
        lost = 0
        while lost < 1 or not all(lane.up for lane in rig.fleet.lanes):
            arrival = await rig.recv()
            lost += arrival.lost is not None
            rig.step(arrival.lane)
        assert asyncio.get_running_loop().time() - start < 1.0
        assert {lane.address for lane in rig.fleet.lanes} == {"b:1"}

    sim(main, servers=[{"address": "a:1"}, {"address": "b:1"}], lanes=2)


def test_a_lost_lane_waits_for_its_server() -> None:
    """Nobody else has room: it is back within 2.5 s of the server, and the server was not stormed meanwhile."""

    async def main(rig: Rig) -> None:
        (toy,) = rig.servers
        await rig.drive(6)
        toy.die()
        await asyncio.sleep(30.0)
        assert not any(lane.up for lane in rig.fleet.lanes)
        assert toy.describes < 40  # for eight lanes
        toy.restart("boot-2")
        start = asyncio.get_running_loop().time()
        while not all(lane.up for lane in rig.fleet.lanes):
            await rig.recv()
        assert asyncio.get_running_loop().time() - start < 2.5

    sim(main, num_envs=8, lanes=8)


def test_a_lane_that_was_given_up_is_given_back() -> None:
    """Its server is frozen, loses the BYE with the stream and keeps the lane to be resumed; nobody else has room."""

    async def main(rig: Rig) -> None:
        (toy,) = rig.servers
        await rig.drive(3)
        (frozen,) = toy.streams
        frozen.hole()
        while (await rig.recv()).lost is None:
            pass
        frozen.snap()
        await rig.drive(3)
        assert asyncio.get_running_loop().time() < 10.0
        assert toy.byes == 1
        assert len(toy.all_lanes) == 2

    sim(main, servers=[{"capacity": 4}], resumable=True, timers=LaneTimers(step_s=1.0))


def test_a_lane_of_an_earlier_process_is_not_given_back() -> None:
    """Its server has been started again, and is full of somebody else's lanes: ours died with the process before."""

    async def main(rig: Rig) -> None:
        (toy,) = rig.servers
        await rig.drive(3)
        toy.die()
        toy.capacity = 2
        toy.restart("boot-2")
        while (await rig.recv()).lost is None:
            pass
        dials = toy.dials
        await asyncio.sleep(20.0)
        assert toy.dials == dials
        toy.capacity = 4
        await rig.drive(3)

    sim(main, servers=[{"capacity": 4}], resumable=True)


def test_another_spec_never_contributes_a_row() -> None:
    """A server that comes back with another environment under the alias is left alone; the fleet goes on without."""

    async def main(rig: Rig) -> None:
        changed, good = rig.servers
        await rig.drive(6)
        changed.die()
        changed.spec = replace(SPEC, max_episode_steps=17)
        changed.restart("boot-2")
        good.capacity = 2  # no room for the lost lane
        await asyncio.sleep(100.0)
        assert len(changed.all_lanes) < 8  # benched between the attempts
        assert all(not lane.executed for lane in changed.all_lanes[1:])
        changed.die()
        changed.spec = SPEC
        changed.restart("boot-3")
        while not all(lane.up for lane in rig.fleet.lanes):
            await rig.recv()

    sim(main, servers=[{"address": "a:1"}, {"address": "b:1"}], lanes=2, give_up_s=1e6)


def test_a_lane_that_its_server_has_given_up_is_opened_anew_at_once() -> None:
    """The resume comes too late: that is no fault of the server, which is not left alone for it."""

    async def main(rig: Rig) -> None:
        (server,) = rig.servers
        await rig.drive(6)
        server.lanes.clear()
        server.snap_all()
        start = asyncio.get_running_loop().time()
        while (arrival := await rig.recv()).lost is None:
            pass
        assert arrival.lost.cause == "lane_unknown"
        await rig.drive(2)
        assert asyncio.get_running_loop().time() - start < 2.0

    sim(main, resumable=True)


class Confused(LaneSpec):
    """Says that it is the other."""

    def hash(self) -> bytes:
        return SPEC.hash()


def test_a_hash_is_not_believed_alone() -> None:
    """A server whose hash is that of another environment: its rows would be of other shapes than the fleet's."""
    confused = Confused("toy", SpaceSpec((Node(pb.BOX, dtype=np.dtype("<f4"), shape=(6,)),)), SPEC.action)

    async def main(rig: Rig) -> None:
        await rig.drive(20)

    with pytest.raises(SpecMismatch, match="serves another 'toy'"):
        sim(main, servers=[{"address": "a:1"}, {"address": "b:1", "spec": confused}], lanes=2)


def test_a_server_that_describes_rubbish_costs_its_lanes_alone() -> None:
    """The fleet goes on with the lanes of the others, and comes back when the server does."""

    async def main(rig: Rig) -> None:
        strange, _good = rig.servers
        await rig.drive(10)
        describe = strange.describe

        async def rubbish(_request: pb.DescribeRequest) -> pb.DescribeReply:
            raise RemoteProtocolError("a:1: the answer to Describe is no DescribeReply")

        strange.describe = rubbish  # type: ignore[method-assign]
        await asyncio.sleep(1.0)  # what it said before is old by then
        strange.lose_lanes("crash")
        await rig.drive(20)
        assert [lane.up for lane in rig.fleet.lanes] == [False, True]
        strange.describe = describe  # type: ignore[method-assign]
        while not all(lane.up for lane in rig.fleet.lanes):
            await rig.recv()

    sim(main, servers=[{"address": "a:1", "capacity": 2}, {"address": "b:1", "capacity": 2}], lanes=2)


def test_no_lane_for_long_ends_the_wait() -> None:
    """Nothing hangs for ever: after `give_up_s` without any lane `recv` raises the reason."""

    async def main(rig: Rig) -> None:
        await rig.drive(3)
        rig.servers[0].die()
        start = asyncio.get_running_loop().time()
        with pytest.raises(ConnectionFailed, match="nobody there"):
            await rig.drain()
        assert 20.0 < asyncio.get_running_loop().time() - start < 30.0

    sim(main, give_up_s=20.0)


def test_retry_after_is_honoured() -> None:
    """A lane in quarantine is not offered again before its time."""

    async def main(rig: Rig) -> None:
        (toy,) = rig.servers
        await rig.drive(3)
        body = error_body("QUARANTINED", "it crashed too often", retryable=True, retry_after_ms=20_000)
        toy.refuse_open = body
        toy.lose_lanes("crash(SIGABRT)")
        await asyncio.sleep(15.0)
        assert len(toy.all_lanes) == 2
        toy.refuse_open = None
        while not rig.fleet.lanes[0].up:
            await rig.recv()
        assert asyncio.get_running_loop().time() < 25.0

    sim(main)


def test_lanes_that_die_at_once_are_not_made_in_a_loop() -> None:
    """Opened, dead, opened, dead: the pauses grow, whatever the server's own patience."""

    async def main(rig: Rig) -> None:
        (toy,) = rig.servers
        toy.mangle = lambda kind, body: body if kind == pb.OPENED else b"garbage"
        await asyncio.sleep(60.0)
        assert 10 < len(toy.all_lanes) < 60
        toy.mangle = None
        while not rig.fleet.recv_nowait():
            await asyncio.sleep(0.1)

    sim(main)


def test_a_lane_that_was_well_comes_back_at_once() -> None:
    """A crash every ten seconds: after each the first attempt comes without a pause, after the tenth too."""

    async def main(rig: Rig) -> None:
        loop = asyncio.get_running_loop()
        await rig.drive(1)
        for _ in range(10):
            await asyncio.sleep(10.0)
            rig.servers[0].lose_lanes("crash(SIGABRT)")
            start = loop.time()
            while (await rig.recv()).lost is None:
                pass
            await rig.drive(1)
            assert loop.time() - start < 0.04  # the shortest pause is 0.05

    sim(main)
