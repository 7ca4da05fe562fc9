"""The sum tree against a plain list."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncrl.buffers import sum_tree
from asyncrl.buffers.sum_tree import FAN_OUT, TOP, SumTree
from asyncrl.errors import LocalProtocolError

SIZES = st.sampled_from([1, 2, 5, FAN_OUT - 1, FAN_OUT, FAN_OUT + 1, 100, FAN_OUT**2, FAN_OUT**2 + 1, 1000])


@pytest.fixture(autouse=True, params=[FAN_OUT, TOP])
def top(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trees of a thousand have several levels, too, where the topmost one is narrow."""
    monkeypatch.setattr(sum_tree, "TOP", request.param)


VALUES = st.one_of(st.just(0.0), st.floats(1e-6, 1e6))


def filled(values: list[float]) -> SumTree:
    tree = SumTree(len(values))
    tree.fill(np.array(values))
    return tree


def covering(values: list[float], place: float) -> int:
    """The index whose number covers the place, numbers laid end to end."""
    for index, end in enumerate(itertools.accumulate(values)):
        if place < end:
            return index
    return max(index for index, value in enumerate(values) if value)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(SIZES, st.data())
def test_the_tree_is_a_list(size: int, data: st.DataObject) -> None:
    """Any sets of any batches: values, total and least positive one are those of the list, and so is what is found."""
    twin = [0.0] * size
    tree = SumTree(size)
    pairs = st.tuples(st.integers(0, size - 1), VALUES)
    for batch in data.draw(st.lists(st.lists(pairs, max_size=40), max_size=6)):
        tree.set(np.array([index for index, _ in batch], np.int64), np.array([value for _, value in batch]))
        for index, value in batch:
            twin[index] = value
        assert tree.values().tolist() == twin
        assert math.isclose(tree.total, math.fsum(twin), rel_tol=1e-12, abs_tol=1e-300)
        assert tree.least == min((value for value in twin if value), default=math.inf)
    if tree.total:
        # In the middle of each number, where rounding decides nothing.
        middles = [end - value / 2 for value, end in zip(twin, itertools.accumulate(twin), strict=True) if value]
        wide = [place for place in middles if twin[covering(twin, place)] > 1e-9 * tree.total]
        assert tree.find(np.array(wide)).tolist() == [covering(twin, place) for place in wide]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(VALUES, min_size=1, max_size=600).filter(any))
def test_zeros_are_never_found(values: list[float]) -> None:
    """Not at the ends of any number, not at the total, not beyond it."""
    tree = filled(values)
    ends = np.cumsum(values)
    places = np.concatenate([[0.0], ends, np.nextafter(ends, 0.0), np.nextafter(ends, np.inf), [2 * ends[-1]]])
    assert (tree[tree.find(places)] > 0.0).all()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(VALUES, min_size=1, max_size=600))
def test_a_tree_that_grew_is_the_tree_that_was_filled(values: list[float]) -> None:
    """Bit for bit, whatever the order and the batches: what a restored replay rests on."""
    rng = np.random.default_rng(len(values))
    grown = SumTree(len(values))
    order = rng.permutation(len(values))
    for batch in np.array_split(order, min(len(values), 7)):
        grown.set(batch, np.array(values)[batch])
    at_once = filled(values)
    assert grown.total == at_once.total
    assert grown.least == at_once.least
    places = rng.random(50) * grown.total
    if grown.total:
        np.testing.assert_array_equal(grown.find(places), at_once.find(places))


def test_golden_places() -> None:
    """A single number; two apart, of which each covers its part; and nothing to find."""
    assert filled([0.0, 0.0, 0.0, 2.0]).find(np.array([0.0, 0.1, 1.999])).tolist() == [3, 3, 3]
    tree = SumTree(30)
    tree.set(np.array([2, 23]), np.array([1.0, 3.0]))
    assert tree.total == 4.0
    assert tree.find(np.array([0.0, 0.1, 0.999, 1.0, 1.1, 3.999])).tolist() == [2, 2, 2, 23, 23, 23]
    with pytest.raises(LocalProtocolError):
        SumTree(30).find(np.array([0.0]))


def test_sums_do_not_drift() -> None:
    """After a million changes over twelve orders of magnitude the total is right to the last digits."""
    rng = np.random.default_rng(1)
    tree = SumTree(3000)
    for _ in range(1000):
        tree.set(rng.integers(0, 3000, 1000), 10.0 ** rng.uniform(-6, 6, 1000))
    assert math.isclose(tree.total, math.fsum(tree.values()), rel_tol=1e-13)


def test_draws_are_stratified() -> None:
    """Of equal numbers as many as there are draws, each is drawn once."""
    tree = filled([0.5] * 40)
    assert tree.draw(40, np.random.default_rng(3)).tolist() == list(range(40))
