"""One lane of a collector: one request at a time, pairs that belong together, keys that are used once."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from asyncrl.collector.counts import CollectorState
from asyncrl.collector.lane_driver import LaneDriver, Phase
from asyncrl.errors import LocalProtocolError
from asyncrl.keyed_noise import row_keys, uniform
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


def test_act_steps_survive_another_division_into_lanes() -> None:
    """A state is by fleet slot: two lanes of it read what one lane of all slots had."""

    async def main(rig: Rig) -> None:
        state = CollectorState(np.array([5, 6, 7, 8]), [np.arange(8.0).reshape(4, 2)])
        drivers = [LaneDriver(lane, 3, state, Collecting(rig).collector) for lane in rig.fleet.lanes]
        assert [driver.act_steps.tolist() for driver in drivers] == [[5, 6], [7, 8]]
        assert [driver.carry[0].tolist() for driver in drivers] == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
        drivers[0].carry[0][:] = -1
        assert state.carry[0][0].tolist() == [0, 1]

    collecting(main, seeds=1)
