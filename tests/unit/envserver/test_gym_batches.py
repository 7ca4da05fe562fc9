"""Batches of vector environments taken apart and put together; Gymnasium's batched spaces are the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import Space, spaces
from gymnasium.vector.utils import batch_space, iterate

from envserver.gym_batches import action_batch, has_text, info_columns, read_batch
from envserver.gym_spec import BadValue, RowWriter, buffers_for, space_spec
from tests.unit.envserver import zoo

SPACES: list[Space[Any]] = [
    spaces.Box(-1, 1, (2, 3), np.float32),
    spaces.Discrete(5, start=3),
    spaces.MultiDiscrete([2, 3]),
    zoo.MixedEnv.observation_space,
    zoo.MixedEnv.action_space,
]
NOTHING = frozenset[str]()


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_batches_are_read_and_built_as_gymnasium_batches(space: Space[Any]) -> None:
    """Leaf arrays of a batch equal those written value by value, and the way back is in the batched space."""
    batched = batch_space(space, 4)
    batched.seed(2)
    value = batched.sample()
    expected = buffers_for(space_spec(space), 4)
    writer = RowWriter(space, expected)
    for row, one in enumerate(iterate(batched, value)):
        writer.write(row, one)
    for ours, theirs in zip(read_batch(space, value, 4), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert ours.dtype == theirs.dtype
    assert batched.contains(action_batch(space, expected))


def test_wrong_batches_name_their_leaf() -> None:
    """A vector environment that returns something else is found out before it is sent."""
    with pytest.raises(BadValue, match=r"the observation has shape \[3, 2\] where the space says \[4, 2\]"):
        read_batch(spaces.Box(-1, 1, (2,)), np.zeros((3, 2)), 4)
    value = {"a": np.zeros(2, int), "b": np.zeros((2, 5))}
    with pytest.raises(BadValue, match=r"leaf 'b' has shape \[2, 5\]"):
        read_batch(spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Box(-1, 1, (3,))}), value, 2)
    with pytest.raises(TypeError):
        read_batch(spaces.Discrete(2), np.zeros(3), 3)


def test_actions_may_be_written_into() -> None:
    """Arrays off the wire are read-only."""
    leaf = np.frombuffer(bytes(16), np.int64)
    action_batch(spaces.Discrete(2), [leaf])[:] = 1
    assert leaf.sum() == 0


def test_strings_have_no_batch() -> None:
    """Wherever in the space they are."""
    assert has_text(spaces.Dict({"a": spaces.Tuple((spaces.Text(3),))}))
    assert not has_text(zoo.MixedEnv.observation_space)


def test_infos_keep_to_presence_cap_and_kind() -> None:
    """Masks select rows; objects, wrong lengths and what goes over the cap are counted."""
    infos: dict[str, Any] = {
        "all": np.arange(3),
        "some": np.array([1.0, 0.0, 2.0]),
        "_some": np.array([True, False, True]),
        "nested": {"x": np.ones((3, 2), bool)},
        "_nested": np.ones(3, bool),
        "objects": np.array([None, "a", 1], object),
        "short": np.zeros(2),
        "scalar": 5,
        "big": np.zeros((3, 5000), np.uint8),
        "skipped": np.zeros(3),
    }
    columns, dropped = info_columns(infos, 3, frozenset({"skipped"}))
    found = {column.key: (column.rows.tolist(), column.data.tolist()) for column in columns}
    assert found == {
        "all": ([0, 1, 2], [0, 1, 2]),
        "some": ([0, 2], [1.0, 2.0]),
        "nested/x": ([0, 1, 2], [[True, True]] * 3),
    }
    assert dropped == 4
    assert info_columns({}, 3, NOTHING) == ([], 0)
