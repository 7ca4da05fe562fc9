"""One lane of a collector: one request at a time, pairs that belong together, keys that are used once."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from asyncrl.client.fleet_lane import Arrival
from asyncrl.collector.counts import CollectorConfig, CollectorState, CollectorStats
from asyncrl.collector.joining import ActRequest
from asyncrl.collector.lane_driver import LaneDriver, Phase
from asyncrl.errors import LaneLost, LocalProtocolError
from asyncrl.keyed_noise import row_keys, uniform
from asyncrl.policy import Acted
from asyncrl.records import Unroll
from asyncrl.wire.step_rows import StepRows
from tests.unit.client.fleet_rig import Rig
from tests.unit.collector.collecting import RUN_SEED, Collecting, collecting


def test_one_request_at_a_time() -> None:
    """Whatever happens to the lanes: no lane has two requests out, and none while it waits for actions."""

    async def main(rig: Rig) -> None:
        collecting = Collecting(rig, lag=None)
        drivers, seen = collecting.collector._drivers, set()

        async def watch() -> None:
            for turn in range(400):
                await asyncio.sleep(0.0002)
                collecting.take()
                if turn % 100 == 50:
                    rig.servers[0].lose_lanes("hang")
                for driver in drivers:
                    seen.add(driver.phase)
                    stepping = driver.phase is Phase.STEPPING and driver.lane.up
                    assert driver.lane.in_flight <= (stepping or driver.phase is Phase.OUT)

        await collecting.during(watch())
        assert {Phase.OUT, Phase.STEPPING} <= seen

    collecting(main)


def test_every_row_pairs_observation_action_and_reply() -> None:
    """The toy counts: row k of a lane shows count k, its action follows from the key of act k, its reward from that."""

    async def main(rig: Rig) -> None:
        collecting = Collecting(rig)
        await collecting.during(collecting.learn(3))
        for unroll in collecting.unrolls:
            for t in range(7):
                act = unroll.round * 7 + t
                drawn = uniform(RUN_SEED, row_keys(unroll.fleet_slots, np.full(2, act)), 1)[:, 0]
                assert unroll.obs[0][t].tolist() == [[slot, 0, act] for slot in unroll.fleet_slots]
                np.testing.assert_array_equal(unroll.action[0][t], (drawn * 1000).astype(int))
                np.testing.assert_array_equal(unroll.reward[t], unroll.action[0][t])
                assert (unroll.log_prob[t] == act + 0.5).all()
                assert unroll.version[t] == unroll.round

    collecting(main)


def test_keys_never_repeat() -> None:
    """Also where actions were on their way to a lane that was lost."""

    async def main(rig: Rig) -> None:
        collecting = Collecting(rig, lag=None)

        async def break_often() -> None:
            for _ in range(6):
                await collecting.learn(3)
                rig.servers[0].lose_lanes("hang")

        await collecting.during(break_often())
        keys = collecting.policy.keys
        assert len(set(keys)) == len(keys)

    collecting(main)


def test_the_carry_is_kept_and_starts_anew_with_first() -> None:
    """The policy counts acts in the carry, and begins at 1 where `first` is set: unrolls begin with what it was."""

    async def main(rig: Rig) -> None:
        collecting = Collecting(rig)
        await collecting.during(collecting.learn(3))
        for unroll in collecting.unrolls:
            # Episodes have five steps, and acts of a lane are counted from 0: before act n of an episode it is n.
            before = unroll.round * 7
            expected = 0 if before == 0 else (before - 1) % 5 + 1
            assert (unroll.carry[0] == expected).all(), unroll.round

    collecting(main)


def test_rows_that_answer_nothing_are_refused() -> None:
    """Somebody else steps the lane while it waits at the gate: that is an error, not a row."""

    async def main(rig: Rig) -> None:
        collecting = Collecting(rig)

        async def interfere() -> None:
            await collecting.learn(1, train=False)
            rig.fleet.lanes[0].step([np.zeros(2, np.int64)])
            await asyncio.sleep(1)

        with pytest.raises(ExceptionGroup) as caught:
            await collecting.during(interfere())
        assert caught.group_contains(LocalProtocolError, match="answer no step")

    collecting(main)


class Desk:
    """An owner whose answers the test gives."""

    def __init__(self) -> None:
        self.stats = CollectorStats(0)
        self.requests: list[tuple[ActRequest, asyncio.Future[Acted]]] = []
        self.lost: list[tuple[Unroll | None, bool]] = []

    def submit(self, request: ActRequest) -> asyncio.Future[Acted]:
        answer: asyncio.Future[Acted] = asyncio.get_running_loop().create_future()
        self.requests.append((request, answer))
        return answer

    def lane_at_gate(self, driver: LaneDriver) -> None:
        driver.begin(0)

    def unroll_complete(self, driver: LaneDriver, unroll: Unroll | None) -> None: ...

    def lane_lost(self, driver: LaneDriver, unroll: Unroll | None, in_round: bool) -> None:
        self.lost.append((unroll, in_round))

    def episodes_ended(self, driver: LaneDriver, rows: StepRows) -> None: ...

    def fail(self, error: BaseException) -> None:
        raise error


def test_answers_to_a_lost_lane_are_for_nobody() -> None:
    """Lost between the forward and its delivery: nothing is sent; keys and carry that it may still read stay as is."""

    async def main(rig: Rig) -> None:
        desk, state = Desk(), CollectorState.fresh(4, [np.ones((4, 2))])
        rows = (await rig.recv()).rows
        lane = rig.fleet.lanes[0]
        driver = LaneDriver(lane, CollectorConfig(num_steps=3), state, desk)
        names = (lane.incarnation, lane.episode, lane.t)
        driver.arrived(Arrival(lane, rows, None, *names))
        ((asked, answer),) = desk.requests
        keys = np.array(asked.keys).tolist()
        zeros = np.zeros(2)
        answer.set_result(Acted([zeros.astype(np.int64)], zeros, zeros, 0, [np.full((2, 2), 5.0)]))
        driver.arrived(Arrival(lane, None, LaneLost("LANE_LOST", "gone"), *names))
        await asyncio.sleep(0.1)
        assert desk.lost == [(None, True)]
        assert lane.in_flight == 0
        assert driver.phase is Phase.OUT
        assert desk.stats.lost_steps == 0
        driver.arrived(Arrival(lane, rows, None, *names))
        again, _ = desk.requests[1]
        assert np.array(asked.keys).tolist() == keys
        assert np.array(again.keys).tolist() == [key + 1 for key in keys]
        assert again.carry[0].tolist() == [[1.0, 1.0]] * 2
        assert not np.shares_memory(again.carry[0], asked.carry[0])

    collecting(main)


def test_act_steps_survive_another_division_into_lanes() -> None:
    """A state is by fleet slot: two lanes of it read what one lane of all slots had."""

    async def main(rig: Rig) -> None:
        state = CollectorState(np.array([5, 6, 7, 8]), [np.arange(8.0).reshape(4, 2)])
        drivers = [
            LaneDriver(lane, CollectorConfig(num_steps=3), state, Collecting(rig).collector) for lane in rig.fleet.lanes
        ]
        assert [driver.act_steps.tolist() for driver in drivers] == [[5, 6], [7, 8]]
        assert [driver.carry[0].tolist() for driver in drivers] == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
        drivers[0].carry[0][:] = -1
        assert state.carry[0][0].tolist() == [0, 1]

    collecting(main, seeds=1)
