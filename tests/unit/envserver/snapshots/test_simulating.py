"""Waves, entry by entry."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.flags import TERMINATED
from asyncrl.wire.snapshot_bodies import Earlier, Rollout, SimulateEntry
from envserver.snapshots import simulating
from envserver.snapshots.rules import SnapshotRules
from tests.unit.envserver.snapshots.toys import DeskLane, LongWalkEnv, digest, look, option

KINDS = {
    "fields": option("walk"),
    "own state": option("own_state"),
    "deepcopy": option("copy_only"),
    "nested": option("nested"),
    "CartPole": "CartPole-v1",
    "Taxi": "Taxi-v4",
    "Pong": "pong=ALE/Pong-v5",
}


@pytest.mark.parametrize("kind", KINDS)
def test_simulating_changes_no_live_slot(kind: str) -> None:
    """Entries, children, rollouts and failures leave every live slot as it was, and its future too."""
    lane, twin = DeskLane(KINDS[kind]), DeskLane(KINDS[kind])
    actions = np.array(lane.random_actions(12)).reshape(6, 2).tolist()
    for pair in actions[:3]:
        lane.step(*pair)
        twin.step(*pair)
    lane.snapshot([1, 2])
    before = digest(lane)
    for number in range(4):
        some = lane.random_actions(5, number)
        lane.simulate(
            look(1, lane, *some, keep_as=10 + number, rollout=Rollout(20, 0.9, number)),
            look(2, lane, *some[:1], rng=pb.RESAMPLE, seed=number),
            look(99, lane, some[0]),
            look(1, lane),
        )
    assert digest(lane) == before
    for pair in actions[3:]:
        ours, theirs = lane.step(*pair), twin.step(*pair)
        assert ours.obs[0].tobytes() == theirs.obs[0].tobytes()
        assert ours.rewards.tolist() == theirs.rewards.tolist()
        assert ours.flags.tolist() == theirs.flags.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_a_frozen_entry_is_what_the_live_slot_goes_on_to_do(kind: str) -> None:
    """Step by step through children, all at once, and with the luck that the slot itself then has."""
    lane = DeskLane(KINDS[kind])
    actions = lane.random_actions(8, 3)
    lane.snapshot([1])
    one_by_one = [
        look(1 if number == 0 else Earlier(number - 1), lane, action, keep_as=10 + number)
        for number, action in enumerate(actions)
    ]
    wave = lane.simulate(*one_by_one, look(1, lane, *actions), look(13, lane))
    assert wave.ok.all()
    for number, action in enumerate(actions):
        rows = lane.step(action, action)
        assert rows.rewards[0] == wave.rewards[number, 0] == wave.rewards[8, number]
        assert rows.obs[0][0].tobytes() == wave.obs[0][number].tobytes()
        if number == 3:
            assert wave.obs[0][9].tobytes() == wave.obs[0][3].tobytes(), "no actions: the snapshot's own observation"
    assert rows.obs[0][0].tobytes() == wave.obs[0][8].tobytes()


def test_entries_fail_one_by_one() -> None:
    """Each with its own code and a text; the ones between them succeed, and failures leave no snapshot."""
    lane = DeskLane(option("breaking"), fragile=True)
    for _ in range(4):
        lane.step(1, 1)
    lane.snapshot([1])
    beyond = SimulateEntry(1, [np.array([7])], keep_as=21)
    wave = [
        (look(1, lane, 0, keep_as=10), "OK"),
        (look(77, lane, 0, keep_as=11), "SNAPSHOT_GONE"),
        (beyond, "BAD_ACTION"),
        (look(1, lane, 2, keep_as=12), "ENV_FAULT"),
        (look(Earlier(3), lane, 0, keep_as=13), "PARENT_FAILED"),
        (look(Earlier(0), lane, 0, keep_as=14), "OK"),
        (look(Earlier(6), lane, 0), "PARENT_FAILED"),
        (look(b"no state", lane, 0), "BAD_STATE"),
        (look(1, lane, 0, keep_as=15, rollout=Rollout(500, 1.0, 0)), "ENV_FAULT"),
        (look(14, lane, 0, keep_as=10), "OK"),
    ]
    found = lane.simulate(*(entry for entry, _ in wave))
    assert [status.code for status in found.status] == [code for _, code in wave]
    assert all(status.detail for status in found.status if not status.ok)
    fault = found.status[3].detail
    assert "fell over" in fault
    assert "/home/me" not in fault
    assert [key in lane.desk.store for key in range(10, 16)] == [True, False, False, False, True, False]
    assert lane.simulate(look(10, lane)).obs[0].tobytes() == found.obs[0][0].tobytes(), "an id keeps its first snapshot"


def test_a_state_that_is_not_told_fails_its_entry() -> None:
    """An exception out of a capture is a fault of that entry, which leaves no child; the others have theirs."""
    lane = DeskLane(option("shy"))
    lane.snapshot([1])
    assert lane.desk._codec.name == "own state"
    late = look(1, lane, *[1] * 25, keep_as=2)
    found = lane.simulate(look(1, lane, 1, keep_as=3), late, look(3, lane, 1, keep_as=4))
    assert [status.code for status in found.status] == ["OK", "ENV_FAULT", "OK"]
    assert "not in the middle" in found.status[1].detail
    assert [key in lane.desk.store for key in (2, 3, 4)] == [False, True, True]


def test_a_scratch_environment_that_cannot_be_made_again_fails_its_entries() -> None:
    """Until it can: the lane lives on."""
    lane = DeskLane(option("breaking"), fragile=True)
    for _ in range(4):
        lane.step(1, 1)
    lane.snapshot([1])
    simulator: Any = lane.desk._simulator
    make = simulator._make_env

    def fails() -> Any:
        raise OSError("no more windows")

    simulator._make_env = fails
    codes = [status.code for status in lane.simulate(look(1, lane, 2), look(1, lane, 0)).status]
    assert codes == ["ENV_FAULT", "ENV_FAULT"]
    simulator._make_env = make
    assert lane.simulate(look(1, lane, 0)).ok.all()


def test_an_ended_episode_leaves_no_child() -> None:
    """Its steps are fewer than asked, the last one says how it ended, and nothing can go on from it."""
    lane = DeskLane(option("coin"), num_slots=1)
    lane.snapshot([1])
    found = lane.simulate(
        look(1, lane, 0, 0, 0, keep_as=2, rollout=Rollout(9)), look(Earlier(0), lane, 0), look(1, lane)
    )
    assert [status.code for status in found.status] == ["OK", "PARENT_FAILED", "OK"]
    assert found.steps.tolist() == [1, 0, 0]
    assert found.flags[0].tolist() == [TERMINATED]
    assert found.terminated.tolist() == [True, False, False]
    assert (found.rollout_steps[0], found.rollout_ended[0]) == (0, True)
    assert 2 not in lane.desk.store


@pytest.mark.parametrize("rng", [pb.RESAMPLE, pb.OPEN_LOOP, pb.FROZEN])
def test_the_coin_is_tossed_anew_or_is_known(rng: Any) -> None:
    """Resampled, a fair coin is fair whatever the snapshot's luck, and a seed always tosses alike; frozen, every look
    sees the very toss that will come, which averages E max(±1, 0.1) = 0.55 over snapshots for whoever believes it."""
    lane = DeskLane(option("coin"), num_slots=64)
    lane.snapshot(range(1, 65))
    wave = [look(1 + row, lane, 1, rng=rng, seed=1000 * row + toss) for row in range(64) for toss in range(16)]
    seen = lane.simulate(*wave).rewards[:, 0].reshape(64, 16)
    assert np.array_equal(seen, lane.simulate(*wave).rewards[:, 0].reshape(64, 16))
    future = lane.step(*[1] * 64).rewards
    clairvoyant = np.maximum(seen.mean(axis=1), 0.1).mean()
    if rng == pb.FROZEN:
        assert np.array_equal(seen, np.repeat(future, 16).reshape(64, 16))
        assert 0.4 < clairvoyant < 0.7
    else:
        assert abs(seen.mean()) < 4 / np.sqrt(seen.size)
        assert abs(np.corrcoef(seen.mean(axis=1), future)[0, 1]) < 0.45
        assert clairvoyant < 0.25


def test_the_quota_refuses_before_anything_is_computed() -> None:
    """Entries that keep nothing still run; releasing makes room again."""
    lane = DeskLane(option("walk"), rules=SnapshotRules(max_count=2))
    lane.snapshot([1])
    found = lane.simulate(look(1, lane, 0, keep_as=2), look(1, lane, 1, keep_as=3), look(1, lane, 2))
    assert [status.code for status in found.status] == ["OK", "QUOTA", "OK"]
    assert found.steps.tolist() == [1, 0, 1]
    lane.release(2)
    assert lane.simulate(look(1, lane, 1, keep_as=3)).ok.all()
    small = DeskLane(option("walk"), rules=SnapshotRules(max_bytes=10_000))
    small.snapshot([1])
    codes = [status.code for status in small.simulate(*(look(1, small, 0, keep_as=k) for k in range(2, 30))).status]
    assert codes == sorted(codes), "OK, and from then on QUOTA"
    assert codes[-1] == "QUOTA"
    assert small.desk.store.held_bytes <= 10_000


def test_a_deadline_keeps_what_was_done() -> None:
    """Entries that were reached have their outcome and their child; a rollout that was stopped has neither."""
    lane = DeskLane(option("walk"))
    lane.snapshot([1])
    looks = iter(["", "", "DEADLINE", "DEADLINE"])
    found = lane.simulate(*(look(1, lane, 0, keep_as=2 + each) for each in range(4)), interrupted=lambda: next(looks))
    assert [status.code for status in found.status] == ["OK", "OK", "DEADLINE", "DEADLINE"]
    assert [key in lane.desk.store for key in range(2, 6)] == [True, True, False, False]
    looks = iter(["", "", "CANCELLED", "CANCELLED"])
    entries = [look(1, lane, 0, keep_as=20 + each, rollout=Rollout(40, 1.0, 1)) for each in range(2)]
    found = lane.simulate(*entries, interrupted=lambda: next(looks))
    assert [status.code for status in found.status] == ["CANCELLED", "CANCELLED"]
    assert 20 not in lane.desk.store


@pytest.mark.parametrize("during", ["actions", "rollout", "replay"])
def test_a_long_entry_is_stopped_on_its_way(during: str) -> None:
    """At a deadline not even the rest of one entry is computed; what comes before and after it is as it should be."""
    rules = SnapshotRules("replay") if during == "replay" else None
    lane = DeskLane(option("long_walk"), rules=rules)
    if during == "replay":
        for _ in range(300):
            lane.step(1, 1)
    lane.snapshot([1])
    steps = 0
    step = LongWalkEnv.step

    def counted(env: LongWalkEnv, action: Any) -> Any:
        nonlocal steps
        steps += 1
        return step(env, action)

    long = {
        "actions": look(1, lane, *[1] * 300, keep_as=2),
        "rollout": look(1, lane, 1, keep_as=2, rollout=Rollout(300, 1.0, 1)),
        "replay": look(1, lane, 1, keep_as=2),
    }[during]
    looks = iter([""] * 6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LongWalkEnv, "step", counted)
        found = lane.simulate(long, long, interrupted=lambda: next(looks, "DEADLINE"))
    assert [status.code for status in found.status] == ["DEADLINE", "DEADLINE"]
    assert 0 < steps < 100
    assert 2 not in lane.desk.store
    wanted, again = (lane.simulate(look(1, lane, 1, 1)) for _ in range(2))
    assert wanted.status[0].ok
    assert wanted.rewards.tolist() == again.rewards.tolist()


def test_rollouts_are_discounted_and_end() -> None:
    """The tail's return equals the sum over the very steps it took, which go on from the child."""
    lane = DeskLane("CartPole-v1")
    lane.snapshot([1])
    found = lane.simulate(
        look(1, lane, 0, keep_as=2, rollout=Rollout(10_000, 0.9, 5)),
        look(2, lane, rollout=Rollout(10_000, 0.9, 5)),
        look(1, lane, 0, rollout=Rollout(3, 0.5, 5)),
        look(1, lane, 0, rollout=Rollout(10_000, 0.9, 6)),
    )
    steps = int(found.rollout_steps[0])
    assert 5 < steps < 200
    assert found.rollout_return[0] == pytest.approx(sum(0.9**i for i in range(steps)))
    assert found.rollout_ended.tolist() == [True, True, False, True]
    assert (found.rollout_return[1], found.rollout_steps[1]) == (found.rollout_return[0], steps)
    assert (found.rollout_return[2], found.rollout_steps[2]) == (1.75, 3)
    assert found.rollout_steps[3] != steps
    assert lane.simulate(look(2, lane)).obs[0].tobytes() == found.obs[0][0].tobytes(), (
        "a rollout leaves the child alone"
    )


def test_masks_and_players_come_with_the_outcome() -> None:
    """Of the position after the last step; without actions those of the snapshot; rollouts keep to the mask."""
    lane = DeskLane(option("turns"))
    lane.step(1, 1)
    lane.snapshot([1])
    found = lane.simulate(look(1, lane), look(1, lane, 2), look(1, lane, 2, 0, rollout=Rollout(50, 1.0, 3)))
    assert found.mask is not None
    assert found.to_play is not None
    assert found.mask.astype(int).tolist() == [[1, 0, 1, 1], [1, 1, 0, 1], [1, 1, 1, 0]]
    assert found.to_play.tolist() == [1, 0, 1]
    for seed in range(20):
        tail = lane.simulate(look(1, lane, rollout=Rollout(50, 1.0, seed)))
        assert (tail.rollout_return[0], tail.rollout_steps[0]) == (1.0, 5), "three moves of mine, two of yours"


def test_masks_and_players_that_are_not_said_are_those_of_a_live_slot() -> None:
    """A mask holds for one step, a player until another one is named; in rollouts too, whose sign is the player's."""
    lane = DeskLane(option("mute"))
    lane.snapshot([1])
    for count in range(1, 4):
        found = lane.simulate(look(1, lane), look(1, lane, *[0] * count))
        rows = lane.step(0, 0)
        assert rows.mask is not None
        assert rows.to_play is not None
        assert found.mask is not None
        assert found.to_play is not None
        assert found.mask[1].tolist() == rows.mask[0].tolist() == [True] * 4
        assert found.to_play.tolist() == [1, rows.to_play[0]]
    for seed in range(20):
        whole, first = lane.simulate(
            look(1, lane, rollout=Rollout(50, 1.0, seed)), look(1, lane, rollout=Rollout(1, 1.0, seed))
        ).rollout_return
        assert first == 0.0
        assert whole > 0.0


def test_a_written_observation_changes_nothing() -> None:
    """The environment writes into the array that it gave; children and snapshots keep what was seen then."""
    lane = DeskLane(option("walk"))
    lane.snapshot([1])
    first = lane.simulate(look(1, lane, 1, keep_as=2), look(2, lane, 1, keep_as=3), look(3, lane, 1, keep_as=4))
    again = lane.simulate(look(2, lane), look(3, lane), look(4, lane))
    assert first.obs[0].tobytes() == again.obs[0].tobytes()
    assert len({row.tobytes() for row in first.obs[0]}) == 3


def test_samples_keep_to_the_mask() -> None:
    """Of Discrete and MultiDiscrete spaces; a mask that allows nothing is no mask."""
    from gymnasium import spaces

    discrete, multi = spaces.Discrete(5, start=2), spaces.MultiDiscrete([2, 3])
    mask = np.array([0, 1, 0, 1, 0], np.bool_)
    assert {int(simulating.sample(discrete, mask)) for _ in range(50)} == {3, 5}
    assert {tuple(simulating.sample(multi, mask).tolist()) for _ in range(20)} == {(1, 1)}
    assert {int(simulating.sample(discrete, np.zeros(5, np.bool_))) for _ in range(99)} == {2, 3, 4, 5, 6}
    assert {int(simulating.sample(discrete, None)) for _ in range(99)} == {2, 3, 4, 5, 6}


def test_waves_of_a_model_free_toy_are_repeatable() -> None:
    """The same wave twice gives the same bytes: what is retried is not done twice over."""
    lane = DeskLane(option("walk"))
    lane.snapshot([1])
    wave = [look(1, lane, each % 3, keep_as=10 + each, rng=pb.RESAMPLE, seed=each) for each in range(6)]
    first, second = lane.simulate(*wave), lane.simulate(*wave)
    assert first.obs[0].tobytes() == second.obs[0].tobytes()
    assert first.rewards.tobytes() == second.rewards.tobytes()
    assert first.store_bytes == second.store_bytes


@pytest.mark.parametrize("steps", range(6))
def test_newest_frames_are_those_of_the_steps(steps: int) -> None:
    """Of a stack of four; all of it where nothing older is left, and nothing where no step was taken."""
    lane = DeskLane(KINDS["Pong"])
    for action in lane.random_actions(9):
        lane.step(action, action)
    lane.snapshot([1])
    actions = lane.random_actions(steps, 3)
    (whole,), (newest,) = lane.sent(look(1, lane, *actions), look(1, lane, *actions, newest_frames=True))
    assert len(whole) == 4 * 84 * 84
    assert newest == whole[84 * 84 * max(4 - steps, 0) :]


def test_one_illegal_action_fails_its_own_entry() -> None:
    """Though all actions of a wave are looked at together."""
    lane = DeskLane(option("walk"))
    lane.snapshot([1])
    wave = [look(1, lane, 2), SimulateEntry(1, [np.array([0, 3])]), look(1, lane), look(1, lane, 0)]
    codes = [status.code for status in lane.simulate(*wave).status]
    assert codes == ["OK", "BAD_ACTION", "OK", "OK"]
    assert lane.simulate().status == []


def test_the_scratch_environment_is_closed_with_its_lane() -> None:
    """Once: what a simulator holds outside of the process is given back."""
    lane, closed = DeskLane(option("walk")), list[str]()
    scratch = lane.desk._simulator._env
    assert scratch is not None
    scratch.close = lambda: closed.append("scratch")  # type: ignore[method-assign]
    lane.desk.close()
    lane.desk.close()
    assert closed == ["scratch"]


def test_rollouts_take_any_seed_of_the_wire() -> None:
    """Also those beyond 32 bits, which are seeds of their own."""
    lane = DeskLane(option("walk"))
    lane.snapshot([1])
    seeds = [7, 7 + (1 << 32), (1 << 64) - 1, 7]
    found = lane.simulate(*(look(1, lane, rollout=Rollout(20, 1.0, seed)) for seed in seeds)).rollout_return.tolist()
    assert found[0] == found[3]
    assert len(set(found)) == 3
