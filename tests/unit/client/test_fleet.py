"""A fleet against env servers in memory, on virtual time: losses, replacements, identities, ends."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from asyncrl.client.fleet import Fleet
from asyncrl.client.fleet_config import FleetConfig, FleetEvent
from asyncrl.client.fleet_lane import Arrival, FleetLane
from asyncrl.client.timing import LaneTimers
from asyncrl.errors import ConfigError, ConnectionFailed, LocalProtocolError, ServerRefused, SpecMismatch
from asyncrl.wire import handshake
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.envelope import error_body
from asyncrl.wire.flags import CUT, FIRST, NO_TRANSITION, RowTracker
from asyncrl.wire.step_rows import Rebuilt, StepRows
from tests.rig.sim_loop import run_sim
from tests.unit.client.toy_server import EPISODE, SPEC, ToyServer

RESET = FIRST | NO_TRANSITION


class Rig:
    """Servers, a fleet on them, and everything that it said."""

    def __init__(self, servers: list[ToyServer], **settings: Any) -> None:
        self.servers = servers
        self.events: list[FleetEvent] = []
        self.arrivals: list[Arrival] = []
        config = FleetConfig(**{"env": "toy", "num_envs": 4, "seed": 100, "lanes": 1, **settings})
        self.fleet = Fleet(servers, config, rng=random.Random(7), on_event=self.events.append)
        self.trackers: dict[FleetLane, RowTracker] = {}
        self.actions = 0

    async def recv(self) -> Arrival:
        """The next arrival, checked by a tracker of our own that knows nothing of losses."""
        arrival = await self.fleet.recv()
        self.arrivals.append(arrival)
        if arrival.rows is not None:
            tracker = self.trackers.setdefault(arrival.lane, RowTracker(arrival.lane.num_slots))
            moved = (arrival.rows.flags & NO_TRANSITION) == 0
            assert np.array_equal(arrival.episode[moved], tracker.episode[moved])
            assert np.array_equal(arrival.t[moved], tracker.t[moved])
            tracker.advance(arrival.rows.flags)
        return arrival

    def step(self, lane: FleetLane) -> bool:
        self.actions += 1
        return lane.step([np.full(lane.num_slots, self.actions % 1000, np.int64)])

    async def drive(self, replies: int) -> None:
        """Answer so many arrivals with rows."""
        while replies:
            arrival = await self.recv()
            if arrival.rows is not None:
                self.step(arrival.lane)
                replies -= 1

    async def drain(self) -> None:
        """Receive until the fleet has nothing more to give, which raises."""
        while True:
            await self.recv()

    def faults(self) -> list[tuple[str, str]]:
        return [
            (event.kind, event.cause)
            for event in self.events
            if event.kind not in ("lane_opened", "draining", "building", "server_log")
        ]


Main = Callable[[Rig], Coroutine[Any, Any, None]]


def sim(main: Main, servers: list[dict[str, Any]] | None = None, seeds: int = 3, **settings: Any) -> None:
    """Open a fleet, run `main`, close; under several schedules. Nothing may be left."""

    async def whole() -> None:
        async with AsyncExitStack() as stack:
            toys = [await stack.enter_async_context(ToyServer(**each)) for each in servers or [{}]]
            before = asyncio.all_tasks()
            rig = Rig(toys, **settings)
            async with rig.fleet:
                await main(rig)
            await asyncio.sleep(2.0)
            left = {task for task in asyncio.all_tasks() - before if not task.get_name().startswith("ToyServer")}
            assert not left
            assert all(not toy.lanes for toy in toys)

    for seed in range(seeds):
        run_sim(whole, seed)


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


def seeds_of(lane: Any) -> list[tuple[int, int | None]]:
    (reset,) = lane.resets
    return list(zip(lane.request.fleet_slots, reset.seeds or [None] * lane.num_slots, strict=True))


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


def test_an_episode_that_had_ended_is_not_cut() -> None:
    """With next-step autoreset a loss right after an end: FIRST|NO_TRANSITION alone."""

    def end_here(rows: StepRows) -> None:
        rows.flags[:2] = 1  # TERMINATED: true last observation, the next row resets

    async def main(rig: Rig) -> None:
        first = await rig.recv()
        rig.servers[0].rebuild.append(end_here)
        rig.step(first.lane)
        await rig.recv()
        rig.servers[0].lose_lanes("hang")
        assert (await rig.recv()).lost is not None
        after = (await rig.recv()).rows
        assert after is not None
        assert after.flags.tolist() == [RESET, RESET, CUT | RESET, CUT | RESET]

    sim(main)


def test_incarnations_count_every_new_environment() -> None:
    """+1 for the slot that the server rebuilt, +1 for every slot of a lost lane; seeds follow the documented hash."""

    def rebuild_slot_2(rows: StepRows) -> None:
        rows.flags[2] = CUT | RESET
        rows.rebuilt.append(Rebuilt(2, 1, "ENV_FAULT", "it raised"))

    async def main(rig: Rig) -> None:
        arrival = await rig.recv()
        lane = arrival.lane
        rig.servers[0].rebuild.append(rebuild_slot_2)
        rig.step(lane)
        arrival = await rig.recv()
        assert lane.incarnation.tolist() == arrival.incarnation.tolist() == [0, 0, 1, 0]
        rig.servers[0].lose_lanes("crash(SIGKILL)")
        lost = await rig.recv()
        assert lost.incarnation.tolist() == [0, 0, 1, 0]
        arrival = await rig.recv()
        assert lane.incarnation.tolist() == arrival.incarnation.tolist() == [1, 1, 2, 1]
        assert arrival.rows is not None
        assert arrival.rows.obs[0][:, 1].tolist() == [1, 1, 2, 1]
        _, replaced = rig.servers[0].all_lanes
        assert [seed for _, seed in seeds_of(replaced)] == [
            handshake.rebuilt_seed(100, slot, incarnation) for slot, incarnation in enumerate([1, 1, 2, 1])
        ]
        assert rig.faults() == [("slot_rebuilt", "ENV_FAULT"), ("lane_lost", "crash(SIGKILL)")]

    sim(main)


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


def test_rows_stay_legal_across_lanes() -> None:
    """Under hundreds of losses of every kind: order of rows per slot is legal, identities never repeat."""
    rng = random.Random(3)

    async def main(rig: Rig) -> None:
        seen: set[tuple[int, int, int, int]] = set()
        for _ in range(120):
            await rig.drive(rng.randrange(1, 12))
            toy = rng.choice(rig.servers)
            if rng.random() < 0.5:
                toy.lose_lanes("crash(SIGKILL)")
            elif rng.random() < 0.5:
                toy.die()
                await asyncio.sleep(rng.random())
                toy.restart(f"boot-{rng.random()}")
            else:
                toy.snap_all()
        await asyncio.sleep(20.0)  # whoever is detached comes back
        while (unread := rig.fleet.recv_nowait()) is not None:
            rig.arrivals.append(unread)
        for arrival in rig.arrivals:
            if arrival.rows is None:
                continue
            for row in np.flatnonzero((arrival.rows.flags & NO_TRANSITION) == 0).tolist():
                identity = (
                    int(arrival.lane.fleet_slots[row]),
                    int(arrival.incarnation[row]),
                    int(arrival.episode[row]),
                    int(arrival.t[row]),
                )
                assert identity not in seen
                seen.add(identity)
        losses = [arrival for arrival in rig.arrivals if arrival.lost]
        assert len(losses) == rig.fleet.stats.faults["lane_lost"] > 20
        assert rig.fleet.stats.faults["stream_resumed"] > 5

    servers = [{"address": "a:1", "capacity": 12}, {"address": "b:1", "capacity": 12}]
    sim(main, servers=servers, num_envs=12, lanes=4, resumable=True, seeds=2)


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


def test_actions_for_a_lost_lane_are_dropped_and_counted() -> None:
    """Between the loss and its arrival the caller cannot know: `step` says False and raises nothing."""

    async def main(rig: Rig) -> None:
        arrival = await rig.recv()
        rig.servers[0].up = False
        rig.servers[0].lose_lanes("hang")
        await asyncio.sleep(0.01)
        assert rig.step(arrival.lane) is False
        assert arrival.lane.reset() is False
        assert rig.fleet.stats.dropped_actions == 2
        assert (await rig.recv()).lost is not None
        rig.servers[0].up = True

    sim(main)


def test_requests_without_a_reply_are_counted() -> None:
    """What was in flight when its lane was lost."""

    async def main(rig: Rig) -> None:
        arrival = await rig.recv()
        rig.servers[0].hold_replies = True
        rig.step(arrival.lane)
        rig.step(arrival.lane)
        await asyncio.sleep(0.01)
        rig.servers[0].hold_replies = False
        rig.servers[0].lose_lanes("hang")
        assert (await rig.recv()).lost is not None
        assert rig.fleet.stats.lost_in_flight == 2

    sim(main)


def test_a_draining_server_is_left_without_loss() -> None:
    """Every reply that was due arrives, then `lost` with the cause drained, then rows from elsewhere."""

    async def main(rig: Rig) -> None:
        arrival = await rig.recv()
        lane, (old, new) = arrival.lane, rig.servers
        old.hold_replies = True
        rig.step(lane)
        rig.step(lane)
        await asyncio.sleep(0.01)
        old.draining = True
        old.push(pb.EVENT, pb.Event(kind=pb.DRAINING, deadline_ms=10_000).SerializeToString())
        await asyncio.sleep(0.5)
        assert rig.step(lane) is False
        old.all_lanes[0].answer_all()
        kinds = []
        for _ in range(4):
            arrival = await rig.recv()
            kinds.append(arrival.lost.cause if arrival.lost else "rows")
        assert kinds == ["rows", "rows", "drained", "rows"]
        assert (lane.address, old.byes, rig.fleet.stats.lost_in_flight) == ("b:1", 1, 0)
        assert rig.faults() == [("lane_lost", "drained")]
        assert len(new.all_lanes) == 1

    sim(main, servers=[{"address": "a:1"}, {"address": "b:1", "capacity": 4, "cores": 1}], num_envs=4)


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


def test_the_caller_may_do_the_first_reset() -> None:
    """auto_reset=False: no rows until `reset`; a replacement is reset by the fleet, because its rows must follow."""

    async def main(rig: Rig) -> None:
        await asyncio.sleep(5.0)
        assert rig.fleet.recv_nowait() is None
        (lane,) = rig.fleet.lanes
        lane.reset(seeds=[5, 6, None, 8], options={"gravity": 3})
        assert (await rig.recv()).rows is not None
        (request,) = rig.servers[0].all_lanes[0].resets
        assert (request.seeds, request.options) == ([5, 6, None, 8], {"gravity": 3})
        rig.servers[0].lose_lanes("hang")
        assert (await rig.recv()).lost is not None
        assert (await rig.recv()).rows is not None

    sim(main, auto_reset=False)


def test_rendering_gives_images_by_row() -> None:
    """And a lane that is down says so."""

    async def main(rig: Rig) -> None:
        arrival = await rig.recv()
        images = await arrival.lane.render([0])
        assert {row: image.tolist() for row, image in images.items()} == {0: [[[1, 2, 3]]]}

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


def test_episodes_run_through() -> None:
    """The toy ends every EPISODE steps: identities count episodes and steps without gaps."""

    async def main(rig: Rig) -> None:
        await rig.drive(23)
        identities = [(int(a.episode[0]), int(a.t[0])) for a in rig.arrivals[1:]]
        assert identities == [(n // EPISODE, n % EPISODE) for n in range(len(identities))]

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
