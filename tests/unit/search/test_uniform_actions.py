"""Random legal actions."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from asyncrl.errors import ConfigError
from asyncrl.search.uniform_actions import draws_of


def drawn(space: spaces.Space[Any], mask: list[int] | None, count: int) -> Counter[tuple[int, ...]]:
    draw = draws_of(space)(3)
    allowed = None if mask is None else np.array(mask, np.bool_)
    actions = [draw(allowed) for _ in range(count)]
    assert all(space.contains(action) for action in actions)
    return Counter(tuple(np.ravel(action).tolist()) for action in actions)


@pytest.mark.parametrize(
    ("space", "mask", "places"),
    [
        (spaces.Discrete(3, start=5), [1, 0, 1], [[5, 7]]),
        (spaces.Discrete(3, start=5), None, [[5, 6, 7]]),
        (spaces.MultiDiscrete([3, 2]), [0, 1, 1, 1, 0], [[1, 2], [0]]),
        (spaces.MultiDiscrete([3, 2]), None, [[0, 1, 2], [0, 1]]),
        (spaces.MultiDiscrete([2, 3], start=[4, 7]), [0, 1, 1, 0, 1], [[5], [7, 9]]),
        (spaces.MultiDiscrete(np.array([[2, 2], [1, 2]])), [1, 1, 0, 1, 1, 0, 1], [[0, 1], [1], [0], [1]]),
        (spaces.MultiDiscrete([2, 3]), [0, 0, 1, 1, 0], [[0], [0, 1]]),  # nothing at all is the first choice
    ],
)
def test_legal_actions_are_equally_likely(
    space: spaces.Space[Any], mask: list[int] | None, places: list[list[int]]
) -> None:
    """Of every shape and numbering; with the dtype of the space."""
    found = drawn(space, mask, 1200)
    legal = list(product(*places))
    assert set(found) == set(legal)
    assert all(abs(count - 1200 / len(legal)) < 5 * np.sqrt(1200 / len(legal)) for count in found.values())


@pytest.mark.parametrize("space", [spaces.MultiDiscrete([3, 2]), spaces.Box(0, 1, (2,))])
def test_masks_that_are_not_of_the_space_are_refused(space: spaces.Space[Any]) -> None:
    """Of another width, or of actions that have none."""
    with pytest.raises(ConfigError, match="a mask over 4 choices"):
        drawn(space, [1, 1, 1, 1], 1)
