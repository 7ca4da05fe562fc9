"""asyncrl.gym_spaces against Gymnasium's own batching of the same spaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import Space, spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.gym_spaces import ActionError, ValueLayout, space_of
from asyncrl.wire.spaces import SpaceSpec
from asyncrl.wire.tensors import Array
from envserver.gym_spec import buffers_for, reader, space_spec, unbatcher

AnySpace = Space[Any]

_INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"]


@st.composite
def boxes(draw: Callable[..., Any]) -> AnySpace:
    dtype = np.dtype(draw(st.sampled_from(["float16", "float32", "float64", "uint8", "int32", "int64", "bool"])))
    shape = tuple(draw(st.lists(st.integers(1, 3), max_size=3)))
    if dtype.kind == "f" and draw(st.booleans()):
        return spaces.Box(-np.inf, np.inf, shape, dtype.type)
    low = np.full(shape, draw(st.integers(0, 1 if dtype.kind == "b" else 5)), dtype)
    extra = draw(st.integers(0, 50)) if dtype.kind != "b" else 0
    high = np.ones(shape, dtype) if dtype.kind == "b" else np.asarray(low + dtype.type(extra), dtype)
    return spaces.Box(low, high, shape, dtype.type)


def _discrete(n: int, start: int, dtype: str) -> AnySpace:
    return spaces.Discrete(n, start=abs(start) if dtype.startswith("u") else start, dtype=np.dtype(dtype).type)


def _multi(nvec: list[int], start: int, dtype: str) -> AnySpace:
    origin = np.full(len(nvec), abs(start) if dtype.startswith("u") else start)
    return spaces.MultiDiscrete(nvec, dtype=np.dtype(dtype).type, start=origin)


LEAVES: st.SearchStrategy[AnySpace] = st.one_of(
    boxes(),
    st.builds(_discrete, st.integers(1, 20), st.integers(-3, 3), st.sampled_from(_INTEGERS)),
    st.builds(
        _multi, st.lists(st.integers(1, 9), min_size=1, max_size=3), st.integers(-3, 3), st.sampled_from(_INTEGERS)
    ),
    st.builds(spaces.MultiBinary, st.integers(1, 5)),
    st.builds(lambda a, b: spaces.MultiBinary((a, b)), st.integers(1, 3), st.integers(1, 3)),
    st.builds(lambda n, m: spaces.Text(n + m, min_length=n, charset="abäß€"), st.integers(0, 3), st.integers(1, 5)),
)
SPACES: st.SearchStrategy[AnySpace] = st.recursive(
    LEAVES,
    lambda children: st.one_of(
        st.builds(
            spaces.Dict, st.dictionaries(st.text("abcxyz", min_size=1, max_size=3), children, min_size=1, max_size=3)
        ),
        st.builds(spaces.Tuple, st.lists(children, min_size=1, max_size=3)),
    ),
    max_leaves=5,
)


def over_the_wire(space: AnySpace) -> SpaceSpec:
    """What a client has of a served space."""
    return SpaceSpec.from_proto(space_spec(space).to_proto())


def leaves_of(space: AnySpace, values: list[Any]) -> list[Array]:
    """What a server sends of these values, one per slot."""
    spec = space_spec(space)
    buffers, read = buffers_for(spec, len(values)), reader(space)
    for row, value in enumerate(values):
        for buffer, array in zip(buffers, read(value), strict=True):
            buffer[row] = array
    return buffers


def assert_same(ours: Any, theirs: Any) -> None:
    """Equal in structure, dtype and value."""
    if isinstance(theirs, dict):
        assert isinstance(ours, dict)
        assert list(ours) == list(theirs)
        for key in theirs:
            assert_same(ours[key], theirs[key])
    elif isinstance(theirs, tuple):
        assert isinstance(ours, tuple)
        assert len(ours) == len(theirs)
        for mine, other in zip(ours, theirs, strict=True):
            assert_same(mine, other)
    elif isinstance(theirs, np.ndarray):
        assert isinstance(ours, np.ndarray)
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    else:
        assert ours == theirs


@given(SPACES)
@settings(max_examples=150)
def test_a_space_survives_the_wire(space: AnySpace) -> None:
    """The client's space equals the served one, and so do both batched forms."""
    ours = space_of(over_the_wire(space))
    assert ours == space
    assert batch_space(ours, 3) == batch_space(space, 3)


@given(SPACES, st.integers(1, 4), st.integers(0, 2**31))
@settings(max_examples=150)
def test_batches_are_laid_out_as_gymnasium_does(space: AnySpace, num: int, seed: int) -> None:
    """Leaf arrays become what concatenate makes of the same observations, and each row its own value."""
    space.seed(seed)
    values = [space.sample() for _ in range(num)]
    layout = ValueLayout(over_the_wire(space))
    leaves = leaves_of(space, values)
    empty: Any = create_empty_array(space, num)
    assert_same(layout.batch(leaves), concatenate(space, values, empty))
    for row, value in enumerate(values):
        assert_same(layout.row(leaves, row), value)


@given(SPACES, st.integers(1, 4), st.integers(0, 2**31))
@settings(max_examples=150)
def test_actions_are_taken_in_the_forms_that_gymnasium_iterates(space: AnySpace, num: int, seed: int) -> None:
    """A sample of the batched space reaches the environments as iterate would hand it to them."""
    batched = batch_space(space, num)
    batched.seed(seed)
    actions = batched.sample()
    leaves = ValueLayout(over_the_wire(space)).leaves_of(actions, num)
    for mine, theirs in zip(unbatcher(space)(leaves), iterate(batched, actions), strict=True):
        assert_same(mine, theirs)


@pytest.mark.parametrize(
    ("space", "actions", "wanted"),
    [
        (spaces.Discrete(4), [0, 3], np.array([0, 3])),
        (spaces.Discrete(4), (np.int32(1), np.int32(2)), np.array([1, 2])),
        (spaces.Discrete(4), np.array([1, 2], np.uint8), np.array([1, 2])),
        (spaces.Discrete(200, dtype=np.uint8), [7, 199], np.array([7, 199], np.uint8)),
        (spaces.Box(-1, 1, (2,)), [[0.5, 1], [0, 1]], np.array([[0.5, 1], [0, 1]], np.float32)),
        (spaces.Box(-1, 1, (1,)), np.array([[0.25], [1]], np.float64), np.array([[0.25], [1]], np.float32)),
        (spaces.MultiBinary(2), [[True, False], [1, 1]], np.array([[1, 0], [1, 1]], np.int8)),
    ],
)
def test_harmless_casts_are_made(space: AnySpace, actions: Any, wanted: Array) -> None:
    """Lists, tuples and other dtypes of the same kind are taken as SyncVectorEnv takes them."""
    (leaf,) = ValueLayout(over_the_wire(space)).leaves_of(actions, 2)
    assert_same(leaf, wanted)


@pytest.mark.parametrize(
    ("space", "actions", "text"),
    [
        (spaces.Discrete(4), [0, 1, 2], r"the action has shape \[3\]; 2 slots .* need \[2\]"),
        (spaces.Discrete(4), 1, r"the action has shape \[\]"),
        (spaces.Discrete(4), [[0], [1]], r"shape \[2, 1\]"),
        (spaces.Discrete(4), [0.0, 1.0], "dtype float64, which does not convert to int64"),
        (spaces.Discrete(4), ["a", "b"], "dtype <U1"),
        (spaces.Discrete(4), [None, None], "dtype object"),
        (spaces.Discrete(4, dtype=np.uint8), [-1, 0], "values that uint8 cannot hold"),
        (spaces.Discrete(4, dtype=np.int8), [0, 300], "values that int8 cannot hold"),
        (spaces.Box(-1, 1, (2,)), [[0.0, 1.0], [0.0]], "no array of float32"),
        (
            spaces.Dict(a=spaces.Discrete(2), b=spaces.Discrete(2)),
            {"a": [0, 1]},
            r"a dict of arrays with the keys \['a', 'b'\]",
        ),
        (spaces.Dict(a=spaces.Discrete(2)), {"a": [0.5, 1]}, "action 'a' has dtype float64"),
        (spaces.Tuple([spaces.Discrete(2)] * 2), ([0, 1],), "a tuple of 2 batched values is wanted, not a tuple of 1"),
        (spaces.Tuple([spaces.Discrete(2)] * 2), 3, "not a int"),
        (spaces.Text(3), "ab", "a sequence of 2 strings is wanted, not a str of 2"),
        (spaces.Text(3), ("ab", "abcd"), "of row 1: 4 characters where 3 are allowed"),
    ],
)
def test_misfits_are_refused_by_name(space: AnySpace, actions: Any, text: str) -> None:
    """Whatever cannot be an action raises ActionError, which is a ValueError too, and says what is wanted."""
    with pytest.raises(ActionError, match=text) as caught:
        ValueLayout(over_the_wire(space)).leaves_of(actions, 2)
    assert isinstance(caught.value, ValueError)


def test_unbounded_boxes_may_leave_their_bounds_out() -> None:
    """A foreign server that sends no bounds means everything the dtype can hold."""
    message = space_spec(spaces.Box(-np.inf, np.inf, (2,), np.float32)).to_proto()
    message.nodes[0].low, message.nodes[0].high = b"", b""
    assert space_of(SpaceSpec.from_proto(message)) == spaces.Box(-np.inf, np.inf, (2,), np.float32)
    whole = space_spec(spaces.Box(0, 255, (2,), np.uint8)).to_proto()
    whole.nodes[0].low, whole.nodes[0].high = b"", b""
    assert space_of(SpaceSpec.from_proto(whole)) == spaces.Box(0, 255, (2,), np.uint8)


def test_rows_own_their_memory() -> None:
    """A final observation that a user keeps does not change with the batch it came from."""
    layout = ValueLayout(over_the_wire(spaces.Box(-1, 1, (2,))))
    leaves = layout.zeros(2)
    kept = layout.row(leaves, 0)
    leaves[0][0] = 7
    np.testing.assert_array_equal(kept, [0, 0])
