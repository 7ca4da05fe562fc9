"""The replay against a naive one, under stories of every kind."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.buffers.replay import Replay, ReplayConfig, Sample
from tests.unit.buffers.stories import Story, Twin, a_story, spec_for


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


@settings(deadline=None, max_examples=150)
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
