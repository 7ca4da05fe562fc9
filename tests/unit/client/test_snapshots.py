"""Snapshots of lanes, asked for over a real server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncrl
from asyncrl.client.fleet import Fleet
from asyncrl.client.fleet_lane import Arrival
from asyncrl.client.snapshots import MAX_WAVES, Earlier, LaneSnapshots, Rollout, SimulateEntry
from asyncrl.errors import EnvFault, LaneLost, LocalProtocolError, ServerRefused
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.flags import FIRST, NO_TRANSITION
from asyncrl.wire.tensors import Array
from tests.rpc.serving import serving

pytestmark = pytest.mark.rpc


@pytest.fixture(scope="module")
def count(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that counts the steps of `slow`."""
    return tmp_path_factory.mktemp("counts") / "count"


@pytest.fixture(scope="module")
def address(count: Path) -> Iterator[str]:
    slow = json.dumps({"count": str(count), "sleep_s": 0.02})
    walk = "tests.rpc.snapshot_env:make"
    with serving(f"walk={walk}", f"slow={walk}{slow}", "CartPole-v1") as at:
        yield at


@asynccontextmanager
async def opened(address: str, env: str = "walk", options: Any = None, **settings: Any) -> AsyncIterator[Fleet]:
    """A fleet of one lane with two slots that have been reset, whose first rows have been received."""
    wishes = {"num_envs": 2, "lanes": 1, "seed": 3, "snapshots": True, **settings}
    async with asyncrl.connect(address, env=env, **wishes) as fleet:
        if not settings.get("simulation"):
            await rows_of(fleet)
            if options is not None:
                fleet.lanes[0].reset(options=options)
                await rows_of(fleet)
        yield fleet


async def rows_of(fleet: Fleet) -> Arrival:
    async with asyncio.timeout(30):
        arrival = await fleet.recv()
    assert arrival.rows is not None
    return arrival


def act(*actions: int) -> list[Array]:
    return [np.array(actions, np.int64)]


def look(parent: int | bytes | Earlier, *actions: int, **fields: Any) -> SimulateEntry:
    return SimulateEntry(parent, act(*actions), **{"rng": pb.FROZEN, **fields})


async def held_by(lane: LaneSnapshots) -> int:
    """Bytes in the lane's store, once all that was sent before has been executed."""
    await lane.release([])
    return lane.store_bytes


async def test_look_ahead_and_step(address: str) -> None:
    """Snapshot, a wave with children, their children, release: what was seen is what the slot then does."""
    async with opened(address) as fleet:
        lane, snapshots = fleet.lanes[0], fleet.lanes[0].snapshots
        assert (snapshots.support, snapshots.exports) == ("probed", True)
        roots = await snapshots.snapshot([0, 1])
        children = [snapshots.new_id() for _ in range(3)]
        wave = [look(roots[0], action, keep_as=child) for action, child in enumerate(children)]
        first = await snapshots.simulate([*wave, look(Earlier(2), 1), look(roots[1], 2, 2)])
        second = await snapshots.simulate([look(child, 1) for child in children])
        assert first.ok.all()
        assert second.obs[0][2].tobytes() == first.obs[0][3].tobytes()
        lane.step(act(2, 2))
        rows = (await rows_of(fleet)).rows
        assert rows is not None
        assert rows.obs[0][0].tobytes() == first.obs[0][2].tobytes()
        assert rows.rewards.tolist() == [first.rewards[2, 0], first.rewards[4, 0]]
        assert snapshots.store_bytes == second.store_bytes > 0
        assert await snapshots.release([*roots, *children, 999]) == 5
        assert snapshots.store_bytes == 0


async def test_restore_brings_an_arrival(address: str) -> None:
    """The first row of a new episode; a slot that has moved meanwhile stays where it is, and says so."""
    async with opened(address) as fleet:
        lane, snapshots = fleet.lanes[0], fleet.lanes[0].snapshots
        (root,) = await snapshots.snapshot([0])
        lane.step(act(2, 0))
        await rows_of(fleet)
        await snapshots.restore(1, root)
        arrival = await rows_of(fleet)
        rows = arrival.rows
        assert rows is not None
        assert rows.flags.tolist() == [NO_TRANSITION, FIRST | NO_TRANSITION]
        lane.step(act(0, 2))
        assert (await rows_of(fleet)).episode.tolist() == [0, 1]
        lane.step(act(0, 0))
        with pytest.raises(ServerRefused) as refused:
            await snapshots.restore(0, root)
        assert refused.value.code == "STALE"
        await rows_of(fleet)
        with pytest.raises(ServerRefused) as refused:
            await snapshots.restore(0, 12345)
        assert refused.value.code == "SNAPSHOT_GONE"
        lane.step(act(0, 0))
        await rows_of(fleet)
        assert fleet.stats.faults.total() == 0


async def test_requests_wait_for_their_turn(address: str) -> None:
    """Many waves at once: all are answered, never more of them under way than there may be."""
    async with opened(address) as fleet:
        lane = fleet.lanes[0]
        (root,) = await lane.snapshots.snapshot([0])
        highest = 0

        async def wave(number: int) -> float:
            nonlocal highest
            found = await lane.snapshots.simulate([look(root, *[2] * number)])
            highest = max(highest, lane.in_flight)
            return float(found.obs[0][0, 1])

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(wave(number)) for number in range(20)]
            lane.step(act(0, 0))
        assert [task.result() for task in tasks] == list(range(20))
        assert highest <= MAX_WAVES + 1
        await rows_of(fleet)


async def test_a_cancelled_wave_leaves_no_snapshot(address: str, count: Path) -> None:
    """It stops long before its end at the server too, and what it had kept is given back; the lane goes on."""
    async with opened(address, "slow", {"counted": True}) as fleet:
        lane = fleet.lanes[0].snapshots
        (root,) = await lane.snapshot([0])
        before = await held_by(lane)
        begun = len(count.read_bytes()) if count.exists() else 0
        wave = [look(root, 1, keep_as=lane.new_id()) for _ in range(1000)]
        async with asyncio.TaskGroup() as group:
            task = group.create_task(lane.simulate(wave))
            while not count.exists() or len(count.read_bytes()) < begun + 3:
                await asyncio.sleep(0.01)
            task.cancel()
        assert await held_by(lane) == before
        assert len(count.read_bytes()) < begun + 500
        assert (await lane.simulate([look(root, 1)])).ok.all()


async def test_a_deadline_gives_what_was_done(address: str) -> None:
    """The first entries have outcomes and children, the last ones the status DEADLINE; the lane lives on."""
    async with opened(address, "slow", {"counted": True}) as fleet:
        lane = fleet.lanes[0].snapshots
        (root,) = await lane.snapshot([0])
        wave = [look(root, 1, keep_as=lane.new_id()) for _ in range(1000)]
        found = await lane.simulate(wave, deadline_s=0.5)
        codes = [status.code for status in found.status]
        done = codes.count("OK")
        assert 0 < done < 1000
        assert codes == ["OK"] * done + ["DEADLINE"] * (1000 - done)
        again = await lane.simulate([look(wave[done - 1].keep_as or 0), look(wave[done].keep_as or 0)])
        assert [status.code for status in again.status] == ["OK", "SNAPSHOT_GONE"]


async def test_a_lane_that_dies_takes_its_snapshots_with_it(address: str) -> None:
    """The wave fails with LaneLost, typed and at once; what the new lane is asked for by old ids is gone, and ids of
    the new lane are none of the old one's."""
    async with opened(address, options={"lethal": True}) as fleet:
        lane = fleet.lanes[0].snapshots
        (root,) = await lane.snapshot([0])
        async with asyncio.TaskGroup() as group:
            waves = [group.create_task(_caught(lane, [look(root, 1), look(root, 2)])) for _ in range(4)]
        for error in (task.result() for task in waves):
            assert isinstance(error, LaneLost)
        arrival = await fleet.recv()
        assert arrival.lost is not None
        assert "SIGKILL" in arrival.lost.cause
        await rows_of(fleet)
        assert (await lane.simulate([look(root, 1)])).status[0].code == "SNAPSHOT_GONE"
        assert await lane.snapshot([0]) > [root]


async def _caught(lane: LaneSnapshots, wave: list[SimulateEntry]) -> BaseException | None:
    try:
        await lane.simulate(wave)
    except LaneLost as error:
        return error
    return None


async def test_a_slot_without_a_state_fails_the_whole_request(address: str) -> None:
    """None of the others is held then; the error is what happened to the slot."""
    async with opened(address) as fleet:
        lane = fleet.lanes[0].snapshots
        with pytest.raises(ServerRefused) as refused:
            await lane.snapshot([0, 7])
        assert refused.value.code == "BAD_REQUEST"
        assert await held_by(lane) == 0


async def test_a_slot_that_broke_takes_its_snapshots_with_it(address: str) -> None:
    """A rebuilt slot is another incarnation, into which nothing of the old one is restored."""
    async with opened(address, options={"fragile": True}) as fleet:
        lane = fleet.lanes[0]
        roots = await lane.snapshots.snapshot([0, 1])
        assert (await lane.snapshots.simulate([look(roots[0], 2)])).status[0].code == "ENV_FAULT"
        lane.step(act(2, 1))
        rows = (await rows_of(fleet)).rows
        assert rows is not None
        assert [rebuilt.row for rebuilt in rows.rebuilt] == [0]
        found = await lane.snapshots.simulate([look(root, 1) for root in roots])
        assert [status.code for status in found.status] == ["SNAPSHOT_GONE", "OK"]
        await lane.snapshots.restore(0, roots[1])
        await rows_of(fleet)


async def test_forgotten_ids_are_released_with_the_next_request(address: str) -> None:
    """Without waiting, also where there was no place for a request."""
    async with opened(address) as fleet:
        lane = fleet.lanes[0].snapshots
        ids = await lane.snapshot([0, 1])
        lane.forget(ids[:1])
        assert (await lane.simulate([look(each) for each in ids])).ok.tolist() == [False, True]
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(lane.simulate([look(ids[1], 1)]))
            fleet.lanes[0].step(act(0, 0))
            fleet.lanes[0].step(act(0, 0))
            await asyncio.sleep(0)
            lane.forget(ids[1:])
        await rows_of(fleet)
        await rows_of(fleet)
        assert await held_by(lane) == 0


async def test_states_travel_to_simulation_lanes(address: str) -> None:
    """A lane without slots takes them in entries or holds them; its outcomes are those of the lane they come from."""
    async with opened(address) as fleet, opened(address, simulation=True, num_envs=2) as simulation:
        lane = fleet.lanes[0].snapshots
        roots = await lane.snapshot([0, 1])
        states = await lane.export(roots)
        wanted = await lane.simulate([look(root, 2, 1) for root in roots])
        assert len(simulation.lanes) == 2
        for other in simulation.lanes:
            assert other.num_slots == 0
            imported = await other.snapshots.import_(states)
            carried = await other.snapshots.simulate([look(state, 2, 1) for state in states])
            held = await other.snapshots.simulate([look(each, 2, 1) for each in imported])
            assert carried.obs[0].tobytes() == held.obs[0].tobytes() == wanted.obs[0].tobytes()
            with pytest.raises(ServerRefused):
                await other.snapshots.import_([states[0], states[1][:-1] + b"!"])
            await other.snapshots.release(imported)
            assert await held_by(other.snapshots) == 0
        with pytest.raises(ServerRefused) as refused:
            await lane.export([*roots, 999])
        assert refused.value.code == "SNAPSHOT_GONE"


async def test_lanes_without_snapshots_say_so(address: str) -> None:
    """One that was not opened for them refuses, and lives on; so does one whose environment has none."""
    async with opened(address, snapshots=False) as fleet:
        lane = fleet.lanes[0]
        assert lane.snapshots.support == "none"
        for call in (lane.snapshots.snapshot([0]), lane.snapshots.simulate([]), lane.snapshots.release([1])):
            with pytest.raises(ServerRefused) as refused:
                await call
            assert refused.value.code == "UNSUPPORTED"
        lane.step(act(0, 0))
        await rows_of(fleet)


async def test_rollouts_over_the_wire(address: str) -> None:
    """Leaves that are judged by the simulator itself: no second request."""
    async with opened(address, "CartPole-v1") as fleet:
        lane = fleet.lanes[0].snapshots
        (root,) = await lane.snapshot([0])
        found = await lane.simulate([look(root, action, rollout=Rollout(500, 1.0, 7)) for action in (0, 1)])
        assert found.rollout_ended.all()
        assert found.rollout_return.tolist() == found.rollout_steps.tolist()


async def test_what_does_not_fit_is_refused_here(address: str) -> None:
    """Before anything is sent; a lane that is not up has nobody to ask."""
    async with opened(address) as fleet:
        lane = fleet.lanes[0].snapshots
        (root,) = await lane.snapshot([0])
        with pytest.raises(LocalProtocolError):
            await lane.simulate([SimulateEntry(root, [np.zeros(1, np.float32)])])
        with pytest.raises(LocalProtocolError, match="bytes"):
            await lane.simulate([look(bytes(1 << 20), 1) for _ in range(65)])
        with pytest.raises(LocalProtocolError, match="states of"):
            await lane.import_([bytes(1 << 22)] * 17)
        assert (await lane.simulate([look(root, 1)])).ok.all()
    with pytest.raises(LaneLost):
        await lane.snapshot([0])
    assert (lane.support, lane.exports) == ("none", False)


def test_errors_have_the_names_of_errors() -> None:
    """What entries call by other names."""
    from asyncrl.client.snapshots import _check
    from asyncrl.wire.snapshot_bodies import Status

    for code, wanted in (("QUOTA", "SNAPSHOT_QUOTA"), ("BAD_STATE", "BAD_REQUEST"), ("SNAPSHOT_GONE", "SNAPSHOT_GONE")):
        with pytest.raises(ServerRefused) as refused:
            _check([Status(), Status(code, "why")])
        assert refused.value.code == wanted
    with pytest.raises(EnvFault):
        _check([Status("ENV_FAULT", "why")])
