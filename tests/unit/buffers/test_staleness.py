"""Staleness against a twin that looks at one row after the other."""

from __future__ import annotations

import copy
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.buffers.staleness import Staleness
from asyncrl.records import Unroll
from tests.unit.buffers.unrolls import an_unroll


@st.composite
def unrolls(draw: st.DrawFn) -> list[Unroll]:
    """With versions that grow, void rows and ends."""
    made = []
    for lane in range(draw(st.integers(1, 3))):
        unroll = an_unroll(lane)
        unroll.version = np.array(sorted(draw(st.lists(st.integers(0, 9), min_size=3, max_size=3))))
        bits = draw(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=6, max_size=6))
        unroll.valid = np.array([valid for valid, _ in bits]).reshape(3, 2)
        unroll.truncated = np.array([valid and ended for valid, ended in bits]).reshape(3, 2)
        unroll.end_rows = np.argwhere(unroll.truncated)
        unroll.end_obs = [np.arange(2.0 * len(unroll.end_rows)).reshape(-1, 2)]
        unroll.end_mask = np.arange(2.0 * len(unroll.end_rows)).reshape(-1, 2) % 3 == 0
        made.append(unroll)
    return made


@given(unrolls(), st.integers(0, 10))
def test_no_admitted_row_is_too_old(given_unrolls: list[Unroll], max_lag: int) -> None:
    """Row by row: admitted if its version is at most `max_lag` before 9, and only then."""
    before = copy.deepcopy(given_unrolls)
    admitted = {unroll.lane: unroll for unroll in Staleness(max_lag).admit(given_unrolls, 9)}
    for unroll in before:
        young = 9 - unroll.version <= max_lag
        expected = unroll.valid & young[:, None]
        assert (unroll.lane in admitted) == expected.any()
        if unroll.lane in admitted:
            np.testing.assert_array_equal(admitted[unroll.lane].valid, expected)


@given(unrolls(), st.one_of(st.none(), st.integers(0, 10)))
def test_rows_are_admitted_or_counted(given_unrolls: list[Unroll], max_lag: int | None) -> None:
    """Steps that came = steps in the histogram + steps dropped; the histogram is that of what was admitted."""
    came = sum(unroll.num_valid for unroll in given_unrolls)
    staleness = Staleness(max_lag)
    admitted = staleness.admit(given_unrolls, 9)
    counts = staleness.counts
    assert counts.lags.total() + counts.steps_dropped == came
    assert counts.lags.total() == sum(unroll.num_valid for unroll in admitted)
    assert counts.unrolls_dropped == len(given_unrolls) - len(admitted)
    for lag, steps in counts.lags.items():
        assert steps == sum(int(unroll.valid[9 - unroll.version == lag].sum()) for unroll in admitted)
    assert max_lag is None or max(counts.lags, default=0) <= max_lag
    mean = np.average(list(counts.lags), weights=list(counts.lags.values())) if counts.lags else 0.0
    assert np.isclose(counts.mean_lag, mean)


@given(unrolls(), st.integers(0, 10))
def test_what_stays_is_unchanged(given_unrolls: list[Unroll], max_lag: int) -> None:
    """Ends keep their flags and observations; those of dropped rows are gone with them."""
    before = {unroll.lane: copy.deepcopy(unroll) for unroll in given_unrolls}
    for unroll in Staleness(max_lag).admit(given_unrolls, 9):
        was = before[unroll.lane]
        old = 9 - was.version > max_lag
        np.testing.assert_array_equal(unroll.reward, was.reward)
        np.testing.assert_array_equal(unroll.truncated, was.truncated & ~old[:, None])
        stay = [index for index, (t, _) in enumerate(was.end_rows) if not old[t]]
        np.testing.assert_array_equal(unroll.end_rows, was.end_rows[stay])
        np.testing.assert_array_equal(unroll.end_obs[0], was.end_obs[0][stay])
        assert unroll.end_mask is not None
        assert was.end_mask is not None
        np.testing.assert_array_equal(unroll.end_mask, was.end_mask[stay])


def test_a_carry_needs_its_beginning() -> None:
    """One row that is too old drops an unroll with a carry whole, and only that unroll."""
    recurrent, other = an_unroll(0), an_unroll(1)
    recurrent.carry = [np.zeros((2, 4), np.float32)]
    recurrent.version = other.version = np.array([0, 5, 5])
    staleness = Staleness(3)
    assert staleness.admit([recurrent, other], 6) == [other]
    assert other.valid.tolist() == [[False] * 2, [True] * 2, [True] * 2]
    assert staleness.counts.steps_dropped == 6 + 2
    assert staleness.counts.unrolls_dropped == 1


def test_drops_are_told_each_time_they_have_doubled(caplog: pytest.LogCaptureFixture) -> None:
    """Six steps at a time: 6, 12, 24 and 48 of them, and nothing of what is fresh."""
    staleness = Staleness(3)
    for _ in range(9):
        staleness.admit([an_unroll()], 9)
        fresh = an_unroll()
        fresh.version = fresh.version + 9
        staleness.admit([fresh], 9)
    told = [int(record.getMessage().split()[0]) for record in caplog.records]
    assert told == [6, 12, 24, 48]


def test_counts_are_whole_while_they_grow() -> None:
    """Read from another thread, the histogram always holds a multiple of what one call adds."""
    staleness = Staleness(None)

    def learner() -> None:
        for version in range(500):
            staleness.admit([an_unroll()], version % 7)

    thread = threading.Thread(target=learner)
    thread.start()
    while thread.is_alive():
        assert staleness.counts.lags.total() % 6 == 0
    thread.join()
    assert staleness.counts.lags.total() == 3000
