"""The replay against a naive one, under stories of every kind."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.buffers.drawing import LEAST_PRIORITY
from asyncrl.buffers.replay import Replay, ReplayConfig, Sample
from asyncrl.errors import LocalProtocolError
from tests.unit.buffers.stories import DEPTH, FRAME, POISON, Happened, Seen, Story, Twin, a_story, spec_for


def everything(replay: Replay) -> dict[int, tuple[Sample, int]]:
    """By action, which names the transition: a batch of all that can be drawn, and the place in it."""
    rows = replay.drawable_rows()
    assert len(rows) == len(replay)
    found = replay.at(rows, np.ones(len(rows), np.float32))
    numbers = found.action[0].tolist()
    assert len(set(numbers)) == len(numbers)
    return {number: (found, place) for place, number in enumerate(numbers)}


def check(replay: Replay, twin: Twin) -> None:
    held = everything(replay)
    assert sorted(held) == sorted(twin.transitions)
    for number, wanted in twin.transitions.items():
        found, i = held[number]
        assert found.mask is not None
        assert found.next_mask is not None
        np.testing.assert_array_equal(found.obs[0][i], wanted.seen.stack)
        np.testing.assert_array_equal(found.obs[1][i], wanted.seen.vector)
        np.testing.assert_array_equal(found.mask[i], wanted.seen.mask)
        assert found.reward[i] == np.float32(wanted.reward)
        assert found.discount[i] == np.float32(wanted.discount)
        after = wanted.after or wanted.seen
        np.testing.assert_array_equal(found.next_obs[0][i], after.stack)
        np.testing.assert_array_equal(found.next_obs[1][i], after.vector)
        np.testing.assert_array_equal(found.next_mask[i], after.mask)


def told(story: Story, cuts: list[int], config: ReplayConfig, stacked: bool) -> Replay:
    replay = Replay(spec_for(stacked), config)
    for unroll in story.unrolls(cuts):
        assert replay.insert(unroll) == unroll.num_valid
    return replay


@settings(max_examples=150)
@given(
    seed=st.integers(0, 10_000),
    num_rows=st.integers(1, 60),
    length=st.integers(12, 40),
    n_step=st.sampled_from([1, 2, 3, 5]),
    stacked=st.booleans(),
    chance=st.sampled_from([0.02, 0.2, 0.6]),
    data=st.data(),
)
def test_the_replay_is_a_list_of_transitions(
    seed: int, num_rows: int, length: int, n_step: int, stacked: bool, chance: float, data: st.DataObject
) -> None:
    """What can be drawn is what a list of whole transitions holds, for any story in any pieces."""
    longest = (length - 3) // 7 if stacked else length // 3
    cuts = [0]
    while cuts[-1] < num_rows:
        cuts.append(cuts[-1] + data.draw(st.integers(1, max(longest, 1))))
    story = a_story(seed, num_rows, [2, 0], chance)
    replay = told(story, [cut for cut in cuts if cut < num_rows], ReplayConfig(3 * length, 3, n_step, 0.9), stacked)
    twin = Twin(n_step, 0.9)
    twin.tell(story, num_rows, length, stacked)
    check(replay, twin)


@pytest.mark.parametrize("pieces", [[], [1, 2, 3], list(range(50))])
def test_unroll_boundaries_leave_no_trace(pieces: list[int]) -> None:
    """However the story is told, what is held stands in the same rows under the same generations."""
    story = a_story(5, 50, [0, 1])
    config = ReplayConfig(600, 2, 3, 0.9)
    whole, parted = told(story, [25], config, True), told(story, pieces, config, True)
    held, again = everything(whole), everything(parted)
    assert sorted(held) == sorted(again)
    rows = whole.drawable_rows()
    np.testing.assert_array_equal(rows, parted.drawable_rows())
    ones = np.ones(len(rows), np.float32)
    np.testing.assert_array_equal(whole.at(rows, ones).generations, parted.at(rows, ones).generations)


def test_poison_is_never_drawn() -> None:
    """Neither void rows nor anything that was never written: no NaN, and no byte that no frame has."""
    story = a_story(9, 300, [0, 1, 2], 0.3)
    replay = told(story, list(range(0, 300, 4)), ReplayConfig(600, 3, 3), True)
    rng = np.random.default_rng(0)
    for _ in range(20):
        drawn = replay.sample(64, rng)
        for stack, vector in (drawn.obs, drawn.next_obs):
            assert stack.max() < POISON
            assert np.isfinite(vector).all()
        assert np.isfinite(drawn.reward).all()
        assert drawn.mask is not None
        assert drawn.mask.any(axis=1).all()


# ---------------------------------------------------------------------------------------------------- windows, by hand


def corridor(num_rows: int, ends: dict[int, str], rewards: tuple[float, ...] = (1.0,)) -> Story:
    """One slot for each reward. A row's observation is its number, ends are followed by a void row."""
    slots = []
    for reward in rewards:
        rows, episode, t = [], 0, 0
        for number in range(num_rows):
            if ends.get(number - 1, "") not in ("", "soft"):
                rows.append(Happened(number, None))
                episode, t = episode + 1, 0
                continue
            name = (0, episode, t)
            rows.append(Happened(number, seen_as(number), seen_as(number + 1), reward, ends.get(number, ""), name))
            episode, t = (episode + 1, 0) if number in ends else (episode, t + 1)
        slots.append(rows)
    return Story(slots, list(range(len(rewards))))


def seen_as(number: int) -> Seen:
    """A ramp: frame k of the stack is number + k."""
    stack = (np.arange(DEPTH)[:, None, None] + np.full(FRAME, number)).astype(np.uint8)
    return Seen(stack, np.full(3, number, np.float32), np.ones(4, np.bool_))


@pytest.mark.parametrize(("end", "last"), [("terminated", 0.0), ("soft", 0.0), ("truncated", 1.0), ("cut", 1.0)])
@pytest.mark.parametrize("n_step", [1, 3, 5])
def test_windows_around_an_end(n_step: int, end: str, last: float) -> None:
    """r = 1 and an end at row 5: each row's sum, discount and next observation, written out."""
    replay = told(corridor(12, {5: end}), [2, 6, 9], ReplayConfig(200, 1, n_step, 0.5), True)
    held = everything(replay)
    for number in range(6):
        k = min(n_step, 6 - number)
        found, i = held[number]
        assert found.reward[i] == sum(0.5**j for j in range(k))
        ends_here = number + n_step >= 6
        assert found.discount[i] == 0.5**k * (last if ends_here else 1.0)
        expected = number if ends_here and not last else number + k
        assert found.next_obs[1][i, 0] == expected
        assert found.next_obs[0][i, :, 0, 0].tolist() == [expected, expected + 1, expected + 2]


@pytest.mark.parametrize("n_step", [1, 3])
def test_slots_never_mix(n_step: int) -> None:
    """Rewards of 1 and 100 side by side: no sum has parts of both."""
    replay = told(
        corridor(40, {9: "truncated", 20: "terminated"}, (1.0, 100.0)), [3, 7], ReplayConfig(200, 2, n_step, 1.0), True
    )
    rows = replay.drawable_rows()
    rewards = replay.at(rows, np.ones(len(rows), np.float32)).reward
    one, hundred = rewards[rows < 100], rewards[rows >= 100]
    assert set(one) <= set(range(1, n_step + 1))
    np.testing.assert_array_equal(one * 100, hundred)


def test_an_observation_after_autoreset_is_nobodys_next() -> None:
    """Same-step autoreset: the episode's last observation is 99, the next one begins with 0."""
    story = corridor(4, {1: "truncated"})
    story.slots[0][1].after = seen_as(99)
    story.slots[0][2] = Happened(2, seen_as(0), seen_as(1), 1.0, "", (0, 1, 0))
    story.slots[0][3] = Happened(3, seen_as(1), seen_as(2), 1.0, "", (0, 1, 1))
    held = everything(told(story, [2], ReplayConfig(100, 1), True))
    found, i = held[1]
    assert found.next_obs[1][i, 0] == 99
    assert found.next_obs[0][i, -1, 0, 0] == 99 + DEPTH - 1
    assert found.discount[i] == np.float32(0.99)


def test_holes_and_new_incarnations_begin_anew() -> None:
    """Unrolls that are missing, and a slot that was built anew without a word: no window leads across."""
    story = corridor(20, {})
    unrolls = list(story.unrolls([5, 10, 15]))
    unrolls[3].incarnation += 1
    replay = Replay(spec_for(True), ReplayConfig(100, 1, 3, 1.0))
    for unroll in (unrolls[0], unrolls[2], unrolls[3]):  # rows 5 to 9 were lost
        replay.insert(unroll)
    held = everything(replay)
    assert sorted(held) == [*range(5), *range(10, 17)]
    after = {number: int(found.next_obs[1][i, 0]) for number, (found, i) in held.items()}
    assert [after[number] for number in range(5)] == [3, 4, 5, 5, 5]
    assert [after[number] for number in range(10, 15)] == [13, 14, 15, 15, 15]
    assert {held[number][0].reward[held[number][1]] for number in (4, 14)} == {1.0}


def test_rewards_to_learn_from_are_the_callers() -> None:
    """Clipped, say; the raw ones of the unroll are left alone."""
    story = corridor(6, {5: "terminated"}, (7.0,))
    replay = Replay(spec_for(False), ReplayConfig(100, 1, 1))
    for unroll in story.unrolls([]):
        replay.insert(unroll, reward=np.sign(unroll.reward))
        assert (unroll.reward == 7.0).all()
    assert (replay.sample(20, np.random.default_rng(0)).reward == 1.0).all()


def test_too_long_an_unroll_is_refused_and_nothing_has_changed() -> None:
    """It would overwrite itself."""
    story = corridor(30, {})
    replay = Replay(spec_for(True), ReplayConfig(20, 1))
    first, second = story.unrolls([4])
    replay.insert(first)
    with pytest.raises(LocalProtocolError, match="an unroll of 27 rows"):
        replay.insert(second)
    assert sorted(everything(replay)) == [0, 1, 2]
    with pytest.raises(LocalProtocolError, match="too small"):
        Replay(spec_for(True), ReplayConfig(20, 4))
    with pytest.raises(LocalProtocolError, match="no complete transition"):
        Replay(spec_for(True), ReplayConfig(20, 1)).sample(1, np.random.default_rng(0))


# --------------------------------------------------------------------------------------------------------- priorities


def prioritised(n_step: int = 3, capacity: int = 600, num_slots: int = 2) -> ReplayConfig:
    return ReplayConfig(capacity, num_slots, n_step, 0.9, prioritised=True, alpha=0.5)


def priorities(replay: Replay) -> dict[int, float]:
    """By action; as they count, that is priority^α."""
    held = everything(replay)
    rows = replay.drawable_rows()
    of_rows = replay.state().arrays["priorities"][rows]
    return {number: float(of_rows[i]) for number, (_, i) in held.items()}


@pytest.mark.parametrize("cuts", [[], [10, 20, 30, 40], list(range(50))])
def test_priorities_of_the_acting_forward(cuts: list[int]) -> None:
    """|n-step target − Q(s, a)| of the forward that acted, for every row, wherever the unrolls begin."""
    story = a_story(21, 50, [0, 1], 0.15)
    replay = Replay(spec_for(True), prioritised())
    starts = sorted({0, *cuts, 50})
    for unroll, (start, stop) in zip(story.unrolls(cuts), pairwise(starts), strict=True):
        replay.insert(unroll, q_taken=story.q_taken(start, stop))
    twin = Twin(3, 0.9)
    twin.tell(story, 50, 300, True)
    found = priorities(replay)
    assert sorted(found) == sorted(twin.transitions)
    for number, wanted in twin.transitions.items():
        assert found[number] == pytest.approx(max(wanted.priority, LEAST_PRIORITY) ** 0.5, rel=1e-6)


def test_stale_priorities_are_void() -> None:
    """Rows that were overwritten between the draw and the update keep what they have; the others take theirs."""
    story = corridor(200, {})
    unrolls = list(story.unrolls(list(range(0, 200, 10))))
    replay = Replay(spec_for(True), prioritised(1, 100, 1))
    for unroll in unrolls[:6]:
        replay.insert(unroll)
    drawn = replay.sample(32, np.random.default_rng(0))
    rows, generations, numbers = drawn.rows, drawn.generations, drawn.action[0].copy()
    for unroll in unrolls[6:13]:
        replay.insert(unroll)
    held = everything(replay)
    alive = np.isin(numbers, list(held))
    assert 0 < alive.sum() < len(alive)
    assert replay.update_priorities(rows, generations, 4.0 + numbers) == alive.sum()
    for number, priority in priorities(replay).items():
        assert priority == (np.sqrt(4.0 + number) if number in numbers else 1.0)
    # A row that can be drawn again holds something else, under another name.
    again = ~alive & np.isin(rows, replay.drawable_rows())
    assert again.any()
    now = replay.at(rows[again], np.ones(again.sum(), np.float32))
    np.testing.assert_array_equal(now.generations, generations[again] + 1)


def test_what_was_overwritten_is_never_drawn() -> None:
    """Many times round the ring: draws are of the newest rows, and the tree holds nothing of the others."""
    story = corridor(400, {50: "truncated", 130: "terminated"})
    replay = Replay(spec_for(True), prioritised(3, 60, 1))
    rng = np.random.default_rng(2)
    seen = 0
    for unroll in story.unrolls(list(range(0, 400, 7))):
        replay.insert(unroll)
        seen += unroll.num_steps
        if len(replay):
            drawn = replay.sample(16, rng, 0.4)
            assert drawn.action[0].min() >= seen - 60
            replay.update_priorities(drawn.rows, drawn.generations, rng.random(16))
            assert (drawn.weights <= 1.0).all()
    assert np.count_nonzero(replay.state().arrays["priorities"]) == len(replay)


# ------------------------------------------------------------------------------------------------------------- saving


def same_samples(one: Replay, other: Replay, seed: int) -> None:
    rngs = [np.random.default_rng(seed), np.random.default_rng(seed)]
    for _ in range(3):
        drawn = [replay.sample(32, rng, 0.4) for replay, rng in zip((one, other), rngs, strict=True)]
        for field in dataclasses.fields(Sample):
            left, right = (getattr(sample, field.name) for sample in drawn)
            for array, expected in zip(left, right, strict=True) if isinstance(left, list) else [(left, right)]:
                np.testing.assert_array_equal(array, expected)
        assert (
            len(
                {
                    r.update_priorities(d.rows, d.generations, 1.0 + d.rows % 7)
                    for r, d in zip((one, other), drawn, strict=True)
                }
            )
            == 1
        )


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("per", [False, True])
def test_a_restored_replay_goes_on_bit_for_bit(stacked: bool, per: bool) -> None:
    """Saved in the middle of a story, loaded elsewhere, both told the rest: every draw and priority is the same."""
    story = a_story(3, 200, [0, 1], 0.1)
    unrolls = list(story.unrolls(list(range(0, 200, 6))))
    config = dataclasses.replace(prioritised(3, 160), prioritised=per)
    replay = Replay(spec_for(stacked), config)
    for unroll in unrolls[:20]:
        replay.insert(unroll)
        if per and len(replay):
            drawn = replay.sample(8, np.random.default_rng(1))
            replay.update_priorities(drawn.rows, drawn.generations, 1.0 + drawn.rows % 5)
    state = replay.state()
    if per:
        same_samples(replay, replay, 0)  # what happens after the state was taken does not belong to it
        replay = Replay(spec_for(stacked), config)
        replay.load(state)
    restored = Replay(spec_for(stacked), config)
    restored.load(state)
    assert len(restored) == len(replay)
    for unroll in unrolls[20:]:
        if per:
            same_samples(replay, restored, 5)
        assert replay.insert(unroll) == restored.insert(unroll)
    last, again = replay.state(), restored.state()
    assert last.arrays.keys() == again.arrays.keys()
    for name, array in last.arrays.items():
        np.testing.assert_array_equal(array, again.arrays[name])
    assert [last.read(block) for block in range(len(last.keys))] == [
        again.read(block) for block in range(len(again.keys))
    ]


def test_a_state_is_of_its_moment() -> None:
    """What is inserted and updated after it was taken is not in it, however late it is read."""
    story = a_story(4, 120, [0, 1], 0.1)
    unrolls = list(story.unrolls(list(range(0, 120, 6))))
    replay, twin = Replay(spec_for(True), prioritised(3, 120)), Replay(spec_for(True), prioritised(3, 120))
    for unroll in unrolls[:10]:
        replay.insert(unroll)
        twin.insert(unroll)
    state = replay.state()
    for unroll in unrolls[10:]:
        replay.insert(unroll)
        drawn = replay.sample(8, np.random.default_rng(1))
        replay.update_priorities(drawn.rows, drawn.generations, np.full(8, 9.0))
    restored = Replay(spec_for(True), prioritised(3, 120))
    restored.load(state)
    same_samples(restored, twin, 2)


@pytest.mark.parametrize(
    "change",
    [{"capacity": 200}, {"num_slots": 3}, {"n_step": 2}, {"gamma": 0.8}, {"prioritised": False}, {"alpha": 0.6}],
)
def test_a_state_of_other_settings_is_refused(change: dict[str, Any]) -> None:
    """Its rows would mean something else."""
    replay = Replay(spec_for(True), prioritised())
    with pytest.raises(ValueError, match="another capacity"):
        Replay(spec_for(True), dataclasses.replace(prioritised(), **change)).load(replay.state())
    with pytest.raises(ValueError, match="other observations"):
        Replay(spec_for(False), prioritised()).load(replay.state())
