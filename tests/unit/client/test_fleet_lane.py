"""A fleet lane across its losses: identities, flags, requests, drain."""

from __future__ import annotations

import asyncio
import random

import numpy as np
import pytest

from asyncrl.client.fleet_lane import FleetLane
from asyncrl.errors import LaneLost
from asyncrl.wire import handshake
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.flags import CUT, FIRST, NO_TRANSITION
from asyncrl.wire.step_rows import Rebuilt, StepRows
from tests.unit.client.fleet_rig import Rig, seeds_of, sim
from tests.unit.client.toy_server import EPISODE

RESET = FIRST | NO_TRANSITION


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


@pytest.mark.parametrize("kind", ["render", "release", "forget"])
def test_any_last_reply_lets_the_lane_move_off(kind: str) -> None:
    """A server drains while something other than a step is under way: the lane is left once that is answered."""

    async def main(rig: Rig) -> None:
        lane = (await rig.recv()).lane
        old = rig.servers[0]
        old.hold_replies = True
        async with asyncio.TaskGroup() as group:
            if kind == "forget":
                lane.snapshots.forget([1])
            else:
                group.create_task(lane.render() if kind == "render" else _release(lane, 1))
            await asyncio.sleep(0.01)
            old.draining = True
            old.push(pb.EVENT, pb.Event(kind=pb.DRAINING, deadline_ms=10_000).SerializeToString())
            await asyncio.sleep(0.5)
            assert old.byes == 0
            old.all_lanes[0].answer_all()
        lost = (await rig.recv()).lost
        assert lost is not None
        assert lost.cause == "drained"
        assert (await rig.recv()).rows is not None
        assert (lane.address, old.byes, rig.fleet.stats.lost_in_flight) == ("b:1", 1, 0)

    sim(main, servers=[{"address": "a:1"}, {"address": "b:1", "capacity": 4, "cores": 1}], num_envs=4)


async def _release(lane: FleetLane, *ids: int) -> None:
    await lane.snapshots.release(ids)


@pytest.mark.parametrize("quota", [2, 3, 4])
def test_a_place_is_left_for_a_step(quota: int) -> None:
    """However many requests wait for their turn, and however few the server allows: a step goes out at once."""

    async def main(rig: Rig) -> None:
        lane = (await rig.recv()).lane
        rig.servers[0].hold_replies = True
        async with asyncio.TaskGroup() as group:
            for number in range(6):
                group.create_task(_release(lane, number))
            await asyncio.sleep(0.01)
            lane.snapshots.forget([10])
            lane.snapshots.forget([11])
            assert lane.can_step
            assert rig.step(lane) is True
            rig.servers[0].hold_replies = False
            rig.servers[0].all_lanes[0].answer_all()
            await rig.recv()
        toy = rig.servers[0].all_lanes[0]
        assert sorted(each for ids in toy.released for each in ids) == [0, 1, 2, 3, 4, 5, 10, 11]

    sim(main, servers=[{"max_in_flight": quota}])


def test_what_is_forgotten_gathers_until_there_are_places() -> None:
    """One request for all of it, as soon as a reply has come; nobody has to ask for anything else."""

    async def main(rig: Rig) -> None:
        lane = (await rig.recv()).lane
        rig.servers[0].hold_replies = True
        for number in range(5):
            lane.snapshots.forget([number])
        await asyncio.sleep(0.01)
        rig.servers[0].hold_replies = False
        rig.servers[0].all_lanes[0].answer_all()
        await asyncio.sleep(0.01)
        assert rig.servers[0].all_lanes[0].released == [[0], [1, 2, 3, 4]]

    sim(main, servers=[{"max_in_flight": 2}])


def test_simulation_lanes_keep_no_place_for_steps() -> None:
    """Nobody steps them: all that the server allows is for looking ahead."""

    async def main(rig: Rig) -> None:
        (lane,) = rig.fleet.lanes
        rig.servers[0].hold_replies = True
        async with asyncio.TaskGroup() as group:
            for number in range(2):
                group.create_task(_release(lane, number))
            await asyncio.sleep(0.01)
            assert lane.in_flight == 2
            rig.servers[0].all_lanes[0].answer_all()

    sim(main, servers=[{"max_in_flight": 2}], num_envs=1, simulation=True, snapshots=True)


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
    """Of any size: the limit on rows is not theirs."""

    async def main(rig: Rig) -> None:
        arrival = await rig.recv()
        images = await arrival.lane.render([0])
        assert {row: image.tolist() for row, image in images.items()} == {0: [[[1, 2, 3]]]}
        (large,) = (await arrival.lane.render([1])).values()
        assert large.shape == (2000, 2000, 3)

    sim(main)


def test_episodes_run_through() -> None:
    """The toy ends every EPISODE steps: identities count episodes and steps without gaps."""

    async def main(rig: Rig) -> None:
        await rig.drive(23)
        identities = [(int(a.episode[0]), int(a.t[0])) for a in rig.arrivals[1:]]
        assert identities == [(n // EPISODE, n % EPISODE) for n in range(len(identities))]

    sim(main)


def test_an_action_for_the_lost_lane_never_reaches_its_replacement() -> None:
    """The caller works off a queue: what it sends before it has received the loss is meant for what is gone."""

    async def main(rig: Rig) -> None:
        arrival = await rig.recv()
        rig.servers[0].lose_lanes("hang")
        await asyncio.sleep(1.0)  # lost, replaced, and its first rows are in the queue
        lane = arrival.lane
        assert (lane.up, lane.can_step, rig.step(lane)) == (True, False, False)
        assert (await rig.recv()).lost is not None
        assert (await rig.recv()).rows is not None
        assert rig.step(lane) is True
        await rig.recv()
        assert [len(each.executed) for each in rig.servers[0].all_lanes] == [0, 1]

    sim(main)


def test_events_of_the_server_are_told() -> None:
    """News and faults, each once; a slot that was rebuilt is told by its row, not by its event."""

    async def main(rig: Rig) -> None:
        await rig.recv()
        for kind in (pb.LOG, pb.SLOT_QUARANTINED, pb.SLOT_REBUILT, pb.BUILDING):
            rig.servers[0].push(pb.EVENT, pb.Event(kind=kind, text="text", row=2, step=3, total=4).SerializeToString())
        await asyncio.sleep(0.1)
        told = [(event.kind, event.row, event.step, event.total) for event in rig.events if event.text == "text"]
        assert told == [("server_log", None, 0, 0), ("slot_quarantined", 2, 0, 0), ("building", None, 3, 4)]
        assert rig.fleet.stats.faults == {"slot_quarantined": 1}

    sim(main)


def test_a_step_to_a_lane_that_is_ending_is_dropped() -> None:
    """Between the news that a lane is lost and the arrival that says so, a step gives False, and raises nothing."""

    async def main(rig: Rig) -> None:
        lane = (await rig.recv()).lane
        rig.servers[0].lose_lanes("hang")
        answers = []
        while not rig.faults():
            answers.append(rig.step(lane) if lane.in_flight < 3 else None)
            await asyncio.sleep(0 if len(answers) % 20 else 0.0001)
        assert rig.fleet.stats.dropped_actions == answers.count(False)
        dropped.append(answers.count(False))
        assert (await rig.recv()).lost is not None

    dropped: list[int] = []
    sim(main, seeds=20)
    assert sum(dropped) > 0  # some schedule came upon that moment


def test_a_lane_says_who_it_is() -> None:
    """For people who print it."""

    async def main(rig: Rig) -> None:
        lane = (await rig.recv()).lane
        assert repr(lane) == "<FleetLane 0 slots 0..3 at toy:1>"
        rig.servers[0].up = False
        rig.servers[0].lose_lanes("hang")
        await rig.recv()
        assert repr(lane).endswith("(down)>")
        with pytest.raises(LaneLost, match="not up"):
            await lane.render()

    sim(main)
