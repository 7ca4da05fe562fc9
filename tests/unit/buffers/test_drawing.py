"""Frequencies, weights and bookkeeping of draws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.buffers.drawing import LEAST_PRIORITY, Drawing
from asyncrl.errors import LocalProtocolError
from asyncrl.records import Array

DRAWS = 100_000
FOUR = np.arange(4)


def chi_squared(counts: Array, expected: Array) -> float:
    """In standard deviations from its mean."""
    freedom = len(counts) - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom))


def counted(drawing: Drawing, filled: list[int], batch: int) -> Array:
    rng = np.random.default_rng(11)
    rows = [drawing.draw(batch, rng, 0.0, np.array(filled))[0] for _ in range(DRAWS // batch)]
    return np.bincount(np.concatenate(rows), minlength=len(drawing.drawable))


@pytest.mark.parametrize("batch", [32, 1000])
def test_uniform_draws_are_uniform(batch: int) -> None:
    """χ² of 100,000 draws from slots that are full, hardly filled and empty, with gaps."""
    drawing = Drawing(4 * 50, 50, None)
    rows = np.array([*range(0, 50, 2), *range(50, 57), *range(150, 190)])
    drawing.add(rows, None)
    counts = counted(drawing, [50, 8, 0, 44], batch)
    assert set(counts.nonzero()[0]) == set(rows)
    assert abs(chi_squared(counts[rows], np.full(len(rows), DRAWS / len(rows)))) < 4


class Counting:
    """A generator that counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0
        self._rng = np.random.default_rng(1)

    def integers(self, high: int, size: int) -> Array:
        self.asked += 1
        return self._rng.integers(high, size=size)


def test_one_try_is_enough_where_nearly_all_can_be_drawn() -> None:
    """A few more are tried than are wanted: rows that a stack wants and nobody draws are one in some hundred."""
    drawing, rng = Drawing(1000, 1000, None), Counting()
    drawing.add(np.delete(np.arange(1000), [3, 500]), None)
    for _ in range(100):
        drawing.draw(64, rng, 0.0, np.array([1000]))  # type: ignore[arg-type]
    assert rng.asked == 100


@pytest.mark.parametrize("batch", [8, 32])
def test_draws_are_in_proportion(batch: int) -> None:
    """χ² of 100,000 draws at priority^α, whichever the size of the batch."""
    drawing = Drawing(60, 60, 0.6)
    rows, priorities = np.arange(0, 60, 3), np.arange(1.0, 21.0)
    drawing.add(rows, priorities)
    counts = counted(drawing, [60], batch)
    assert set(counts.nonzero()[0]) == set(rows)
    expected = priorities**0.6 / (priorities**0.6).sum() * DRAWS
    # Strata make the counts more even than independent draws would.
    assert chi_squared(counts[rows], expected) < 4


def test_probabilities_and_weights_are_the_golden_ones() -> None:
    """Priorities 1 to 4 with α = .6 and β = .4, from the definition."""
    drawing = Drawing(4, 4, 0.6)
    drawing.add(FOUR, np.array([1.0, 2.0, 3.0, 4.0]))
    counts = counted(drawing, [4], 1000)
    np.testing.assert_allclose(counts / DRAWS, [0.14823, 0.224674, 0.286555, 0.340542], atol=1e-3)
    rows, weights = drawing.draw(1000, np.random.default_rng(1), 0.4, np.array([4]))
    assert weights.dtype == np.float32
    np.testing.assert_allclose(weights, np.array([1.0, 0.846745, 0.768229, 0.716978])[rows], rtol=1e-5)
    # Whether the least likely row is in the batch changes no weight.
    rows, weights = drawing.draw(1, np.random.default_rng(8), 0.4, np.array([4]))
    np.testing.assert_allclose(weights, np.array([1.0, 0.846745, 0.768229, 0.716978])[rows], rtol=1e-5)
    assert (drawing.draw(9, np.random.default_rng(8), 0.0, np.array([4]))[1] == 1.0).all()


def test_new_rows_have_the_greatest_priority_so_far() -> None:
    """1 at first; then the greatest that was ever given, even after it has gone."""
    drawing = Drawing(4, 4, 1.0)
    drawing.add(np.array([0]), None)
    drawing.prioritise(np.array([0]), np.array([0.5]))
    drawing.add(np.array([1]), None)
    drawing.prioritise(np.array([1]), np.array([8.0]))
    drawing.prioritise(np.array([1]), np.array([2.0]))
    drawing.add(np.array([2]), None)
    assert drawing.state()["priorities"].tolist() == [0.5, 2.0, 8.0, 0.0]


def test_a_priority_of_zero_is_still_drawn_at_times() -> None:
    """Otherwise nobody would ever find out that it has become wrong."""
    drawing = Drawing(4, 4, 0.5)
    drawing.add(FOUR, np.zeros(4))
    assert drawing.state()["priorities"].tolist() == [LEAST_PRIORITY**0.5] * 4


@given(st.lists(st.tuples(st.booleans(), st.sets(st.integers(0, 29)))), st.booleans())
def test_what_is_removed_is_not_drawn(changes: list[tuple[bool, set[int]]], prioritised: bool) -> None:
    """Any additions and removals, of rows that are not there too: a set has the same rows, and only they are drawn."""
    drawing = Drawing(30, 10, 0.6 if prioritised else None)
    twin: set[int] = set()
    rng = np.random.default_rng(0)
    for adding, rows in changes:
        new = rows - twin
        if adding:
            drawing.add(np.array(sorted(new), np.int64), None)
            twin |= new
        else:
            drawing.remove(np.array(sorted(rows), np.int64))
            twin -= rows
        assert drawing.count == len(twin)
        assert set(drawing.drawable.nonzero()[0]) == twin
        if twin:
            assert set(drawing.draw(20, rng, 0.5, np.full(3, 10))[0]) <= twin
        else:
            with pytest.raises(LocalProtocolError, match="nothing can be drawn"):
                drawing.draw(1, rng, 0.0, np.full(3, 10))


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -1.0])
def test_priorities_that_are_none_are_refused(wrong: float) -> None:
    """They would make every sum above them useless; nothing is changed."""
    drawing = Drawing(4, 4, 0.6)
    drawing.add(FOUR, None)
    with pytest.raises(LocalProtocolError, match="finite"):
        drawing.prioritise(FOUR[:2], np.array([5.0, wrong]))
    assert drawing.state()["priorities"].tolist() == [1.0] * 4


def test_uniform_draws_know_no_priorities() -> None:
    """Whoever gives some has mistaken one replay for another."""
    drawing = Drawing(4, 4, None)
    drawing.add(FOUR, None)
    with pytest.raises(LocalProtocolError, match="uniformly"):
        drawing.prioritise(FOUR, np.ones(4))
