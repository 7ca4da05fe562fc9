"""Sequential halving as a list."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.search.halving import considered_visits

PUBLISHED = {
    (1, 5): [0, 1, 2, 3, 4],
    (2, 8): [0, 0, 1, 1, 2, 2, 3, 3],
    (3, 10): [0, 0, 0, 1, 1, 2, 2, 3, 3, 4],
    (4, 16): [0] * 4 + [1] * 4 + [2, 2, 3, 3, 4, 4, 5, 5],
    (8, 24): [0] * 8 + [1] * 4 + [2] * 4 + [3, 3, 4, 4, 5, 5, 6, 6],
    (16, 50): [0] * 16 + [1] * 8 + [2] * 4 + [3] * 4 + [4] * 4 + [v for v in range(5, 12) for _ in range(2)],
}


@pytest.mark.parametrize(("num_considered", "num_simulations"), PUBLISHED)
def test_the_published_lists(num_considered: int, num_simulations: int) -> None:
    """Known lists of several sizes, powers of two and not."""
    expected = PUBLISHED[num_considered, num_simulations]
    assert list(considered_visits(num_considered, num_simulations)) == expected


@given(st.integers(1, 40), st.integers(0, 200))
def test_a_list_can_be_followed(num_considered: int, num_simulations: int) -> None:
    """There is always an action with as many visits as the list asks for, and at most so many are ever tried."""
    plan = considered_visits(num_considered, num_simulations)
    assert len(plan) == num_simulations
    visits = [0] * num_considered
    for wanted in plan:
        visits[visits.index(wanted)] += 1
    assert sum(visits) == num_simulations
