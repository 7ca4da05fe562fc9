"""Between a search's numbering of actions and the environment's."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from asyncrl.search.lane_actions import every_action, first_action, num_actions, wire_actions
from tests.unit.learner.spaces_served import served

OBS = spaces.Box(-1, 1, (2,), np.float32)


def test_actions_are_counted_from_zero() -> None:
    """A search's 0, 1, 2 are the environment's 5, 6, 7, in the dtype that it declares; no step is an empty array."""
    spec = served(OBS, spaces.Discrete(3, start=5))
    assert (num_actions(spec), first_action(spec)) == (3, 5)
    [found] = wire_actions([np.array([0, 2, 1])], spec)
    assert found.tolist() == [5, 7, 6]
    assert found.dtype == spec.action.leaves[0].dtype
    [none] = wire_actions((), spec)
    assert (none.shape, none.dtype) == ((0,), found.dtype)
    mask = every_action(spec)
    assert mask is not None
    assert mask.tolist() == [True] * 3


def test_other_actions_cannot_be_enumerated() -> None:
    """Leaf by leaf as they are, in the dtypes of the wire."""
    spec = served(OBS, spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, (2,), np.float32)]))
    assert num_actions(spec) == 0
    assert every_action(spec) is None
    kind, push = wire_actions([np.array([1, 0]), np.array([[0.5, 1.0], [0.0, -1.0]])], spec)
    assert kind.tolist() == [1, 0]
    assert push.dtype == np.float32
    assert push.tolist() == [[0.5, 1.0], [0.0, -1.0]]
