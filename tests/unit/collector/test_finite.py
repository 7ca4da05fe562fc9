"""NaN and infinity in random legal histories: what is left of them in the unrolls."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.collector.finite import NonFiniteRows, Sieve
from asyncrl.wire.flags import FIRST, NO_TRANSITION, SOFT
from asyncrl.wire.step_rows import StepRows
from tests.unit.collector.test_unroll import MODES, History, histories, unrolls_of

SLOTS = np.arange(3) + 40


@st.composite
def spoilt(draw: st.DrawFn, mode: str) -> History:
    """Some observations, last observations and rewards are not finite. Those that are finite are 100 or more."""
    history = draw(histories(mode))
    odds = draw(st.floats(0.02, 0.6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    for reply in history.replies:
        for array in (reply.obs[0], *reply.final_obs[:1]):
            array[rng.random(array.shape) < odds / 2] = rng.choice([np.nan, np.inf, -np.inf])
        reply.rewards += 100.0
        reply.rewards[rng.random(reply.rewards.shape) < odds / 2] = np.nan
    return history


def sieved(history: History) -> tuple[History, Sieve]:
    """As the collector passes it on."""
    sieve = Sieve(np.arange(history.num_slots), "cut")
    first, *rest = copy.deepcopy(history.replies)
    return History(history.num_slots, [sieve.opened(first), *(sieve.passed(reply) for reply in rest)]), sieve


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=150)
@given(data=st.data(), num_steps=st.integers(1, 5))
def test_valid_rows_are_finite(mode: str, data: st.DataObject, num_steps: int) -> None:
    """Nothing that a learner looks at is NaN, infinite, or one of the zeros that stand for them."""
    history, _ = sieved(data.draw(spoilt(mode)))
    for unroll, _ in unrolls_of(history, num_steps):
        goes_on = unroll.valid & ~unroll.ended
        seen = [unroll.obs[0][unroll.valid], unroll.end_obs[0], unroll.last_obs[0][goes_on[-1]]]
        seen += [unroll.obs[0][1:][goes_on[:-1]], unroll.reward[unroll.valid]]
        for array in seen:
            assert np.isfinite(array).all()
            assert (array >= 100).all()
        assert unroll.valid[1:][goes_on[:-1]].all()
        assert np.isfinite(unroll.obs[0]).all()
        assert np.isfinite(unroll.last_obs[0]).all()


def expected_rows(history: History) -> list[float]:
    """The rewards of the rows that need not be left out."""
    kept = []
    for before, after in zip(history.replies, history.replies[1:], strict=False):
        for b in range(history.num_slots):
            flags = int(after.flags[b])
            following = after.obs[0][b]
            if flags & FIRST and not flags & SOFT and b in after.final_rows.tolist():
                following = after.final_obs[0][after.final_rows.tolist().index(b)]
            needed = [*before.obs[0][b], after.rewards[b], *following]
            if not flags & NO_TRANSITION and np.isfinite(needed).all():
                kept.append(float(after.rewards[b]))
    return sorted(kept)


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=150)
@given(data=st.data(), num_steps=st.integers(1, 5))
def test_no_more_is_left_out_than_must_be(mode: str, data: st.DataObject, num_steps: int) -> None:
    """A row is there if what it was acted on, its reward and what it led to are finite; the others are counted."""
    source = data.draw(spoilt(mode))
    history, sieve = sieved(source)
    stored = [reward for unroll, _ in unrolls_of(history, num_steps) for reward in unroll.reward[unroll.valid].tolist()]
    assert sorted(stored) == expected_rows(source)
    # The reply to the first reset is none to an action.
    sent = sum(int(np.count_nonzero((reply.flags & NO_TRANSITION) == 0)) for reply in source.replies)
    opening = int(np.count_nonzero((history.replies[0].flags & NO_TRANSITION) == 0))
    assert sieve.num_cut == sent - opening - len(stored)


def reply(obs: list[float], flags: int = 0) -> StepRows:
    return StepRows([np.array(obs)[:, None]], np.ones(len(obs)), np.full(len(obs), flags, np.uint8))


def test_a_recurrent_policy_begins_anew_after_zeros() -> None:
    """Two void rows for one NaN: the one that led to it, and the one acted on it, whose reply says FIRST."""
    sieve = Sieve(SLOTS, "cut")
    sieve.opened(reply([1, 2, 3], FIRST | NO_TRANSITION))
    found = [sieve.passed(rows).flags.tolist() for rows in (reply([1, np.nan, 3]), reply([1, 2, 3]), reply([1, 2, 3]))]
    assert found == [[0, NO_TRANSITION, 0], [0, FIRST | NO_TRANSITION, 0], [0, 0, 0]]
    assert sieve.num_cut == 2


def test_what_is_left_out_leaves_no_memory() -> None:
    """Acting remembers every row, a learner those with a transition alone: both agree on what came before each of these
    since the last FIRST, here in the sum of it."""
    rng = np.random.default_rng(1)
    sieve, memories = Sieve(SLOTS, "cut"), np.zeros((2, 3))  # of acting, and of the learner
    rows = sieve.opened(reply([1, 2, 3], FIRST | NO_TRANSITION))
    for _ in range(300):
        following = reply(rng.integers(1, 100, 3).astype(float).tolist())
        following.obs[0][rng.random((3, 1)) < 0.1] = np.nan
        following.rewards[rng.random(3) < 0.1] = np.nan
        following = sieve.passed(following)
        valid, first = (following.flags & NO_TRANSITION) == 0, (rows.flags & FIRST) != 0
        memories[0] = np.where(first, 0, memories[0]) + rows.obs[0][:, 0]
        memories[1] = np.where(first & valid, 0, memories[1]) + np.where(valid, rows.obs[0][:, 0], 0)
        np.testing.assert_array_equal(*memories[:, valid])
        rows = following
    assert 50 < sieve.num_cut < 500


def test_a_lane_that_is_replaced_owes_nothing() -> None:
    """What its predecessor showed last does not void the first row of the new one."""
    sieve = Sieve(SLOTS, "cut")
    sieve.opened(reply([np.nan] * 3, FIRST | NO_TRANSITION))
    sieve.opened(reply([1, 2, 3], FIRST | NO_TRANSITION))
    assert sieve.passed(reply([1, 2, 3])).flags.tolist() == [0, 0, 0]


def test_raise_names_slot_and_leaf() -> None:
    """Of observations, and of rewards."""
    sieve = Sieve(SLOTS, "raise")
    with pytest.raises(NonFiniteRows, match=r"environment 41 gave an observation \(leaf 1\).*--nonfinite cut"):
        sieve.passed(StepRows([np.zeros((3, 2)), np.array([0, np.inf, 0])], np.zeros(3), np.zeros(3, np.uint8)))
    with pytest.raises(NonFiniteRows, match="environment 42 gave a reward"):
        sieve.passed(StepRows([np.zeros((3, 2))], np.array([0, 0, np.nan]), np.zeros(3, np.uint8)))


def test_finite_rows_are_untouched() -> None:
    """The same object; leaves of integers are not even looked at."""
    rows = StepRows([np.zeros((3, 2)), np.zeros((3, 2), np.uint8)], np.zeros(3), np.zeros(3, np.uint8))
    assert Sieve(SLOTS, "raise").passed(rows) is rows
