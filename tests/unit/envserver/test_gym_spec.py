"""Spaces there, values there and back: Gymnasium's own sampling and batching are the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import Space, spaces
from gymnasium.vector.utils import batch_space, iterate

from asyncrl.errors import UnsupportedSpace
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.requests import check_actions
from asyncrl.wire.spaces import SpaceSpec
from asyncrl.wire.spec import MAX_MASK_SIZE
from envserver.gym_spec import BadValue, RowWriter, buffers_for, mask_size, space_spec, unbatcher
from tests.unit.envserver import zoo

SPACES: list[Space[Any]] = [
    spaces.Box(-1, 1, (2, 3), np.float32),
    spaces.Box(-1, 1, (), np.float64),
    spaces.Box(0, 255, (4, 5, 3), np.uint8),
    spaces.Box(-np.inf, np.inf, (0,), np.float32),
    spaces.Discrete(5),
    spaces.Discrete(3, start=-1),
    spaces.MultiDiscrete([2, 3, 4]),
    spaces.MultiDiscrete([2, 3], start=[1, -5]),
    spaces.MultiBinary((2, 2)),
    spaces.Text(6, min_length=2, charset="abcäß"),
    spaces.Tuple((spaces.Discrete(2), spaces.Tuple((spaces.Box(0, 1, (2,)), spaces.Text(3))))),
    spaces.Dict({"z": spaces.Discrete(2), "a": spaces.Dict({"y": spaces.MultiBinary(2), "b": spaces.Box(0, 1)})}),
    zoo.MixedEnv.observation_space,
    zoo.MixedEnv.action_space,
]
BOX = spaces.Box(-1, 1, (2,), np.float32)
PAIR = spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Tuple((BOX, spaces.Text(3)))})
GOOD = (np.zeros(2, np.float32), "abc")
BAD: list[tuple[Space[Any], Any, str]] = [
    (BOX, np.zeros(3, np.float32), "the value has shape [3] where the space says [2]"),
    (BOX, np.zeros((1, 2), np.float32), "shape [1, 2]"),
    (BOX, 0.5, "shape []"),
    (BOX, None, "shape []"),
    (BOX, np.zeros(2, np.complex64), "dtype complex64"),
    (BOX, ["a", "b"], "dtype <U1"),
    (BOX, [1, [2]], "is no array"),
    (BOX, np.array([None, None]), "dtype object"),
    (spaces.Discrete(3), 1.5, "dtype float64 where the space says int64"),
    (spaces.Box(0, 255, (1,), np.uint8), [-1], "dtype int64 where the space says uint8"),
    (spaces.Box(0, 255, (1,), np.uint8), [256], "dtype int64"),
    (PAIR, {"a": 1}, "no dict with the keys ['a', 'b']"),
    (PAIR, 7, "no dict"),
    (PAIR, {"a": 1, "b": (GOOD[0],)}, "b is a tuple of 1, no tuple of 2"),
    (PAIR, {"a": 1, "b": 5}, "b is a int, no tuple of 2"),
    (PAIR, {"a": 1, "b": (np.zeros(3), "abc")}, "leaf 'b/0' has shape [3]"),
    (PAIR, {"a": 1, "b": (GOOD[0], "abcd")}, "leaf 'b/1' takes 4 bytes"),
    (PAIR, {"a": 1, "b": (GOOD[0], b"abc")}, "leaf 'b/1' is a bytes, no str"),
    (PAIR, {"a": "x", "b": GOOD}, "leaf 'a' has dtype"),
]


def equal(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, dict):
        return list(ours) == list(theirs) and all(equal(ours[key], value) for key, value in theirs.items())
    if isinstance(theirs, tuple):
        return isinstance(ours, tuple) and all(map(equal, ours, theirs))
    # Gymnasium's own batching turns arrays without axes into scalars.
    scalar = isinstance(theirs, np.ndarray) and theirs.shape == ()
    return (scalar or type(ours) is type(theirs)) and bool(np.array_equal(ours, theirs))


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_values_survive_the_buffers(space: Space[Any]) -> None:
    """What a space samples comes back equal, of the same types and in the same order of keys."""
    spec = space_spec(space)
    assert SpaceSpec.from_proto(spec.to_proto()) == spec
    space.seed(5)
    values = [space.sample() for _ in range(7)]
    buffers = buffers_for(spec, 7)
    writer = RowWriter(space, buffers)
    for row in reversed(range(7)):
        writer.write(row, values[row])
    assert check_actions(buffers, spec) is None
    assert all(map(equal, unbatcher(space)(buffers), values))


@pytest.mark.parametrize("space", [space for space in SPACES if "Text" not in str(space)], ids=str)
def test_actions_are_those_that_gymnasium_passes(space: Space[Any]) -> None:
    """Row b of the action is what `iterate` of the batched space gives, type for type."""
    batched = batch_space(space, 4)
    batched.seed(3)
    batch = batched.sample()
    expected = list(iterate(batched, batch))
    buffers = buffers_for(space_spec(space), 4)
    writer = RowWriter(space, buffers)
    for row, value in enumerate(expected):
        writer.write(row, value)
    for ours, theirs in zip(unbatcher(space)(buffers), expected, strict=True):
        assert equal(ours, theirs)
        assert type(ours) is type(theirs)


def test_an_environment_may_write_into_its_action() -> None:
    """Arrays off the wire are read-only; what `step` gets is not."""
    buffers = [np.frombuffer(np.ones((2, 2), np.float32).tobytes(), np.float32).reshape(2, 2)]
    action = unbatcher(BOX)(buffers)[1]
    action *= 5
    assert buffers[0].max() == 1


@pytest.mark.parametrize(("space", "value", "why"), BAD)
def test_a_bad_value_names_its_leaf_and_changes_nothing(space: Space[Any], value: Any, why: str) -> None:
    """Shape, dtype and structure are checked for all leaves before the first is written."""
    buffers = buffers_for(space_spec(space), 2)
    writer = RowWriter(space, buffers)
    space.seed(1)
    writer.write(0, space.sample())
    before = [buffer.copy() for buffer in buffers]
    with pytest.raises(BadValue) as refused:
        writer.write(0, value)
    assert why in str(refused.value)
    for buffer, old in zip(buffers, before, strict=True):
        np.testing.assert_array_equal(buffer, old)


def test_casts_are_those_of_gymnasium() -> None:
    """float64 for float32, integers for floats, booleans for bits, lists for arrays."""
    cases: list[tuple[Space[Any], Any]] = [
        (BOX, np.array([0.1, 0.2])),
        (BOX, [1, 0]),
        (spaces.MultiBinary(2), np.array([True, False])),
        (spaces.Box(0, 255, (2,), np.uint8), [255, 0]),
        (spaces.Discrete(3), np.int32(2)),
    ]
    for space, value in cases:
        buffers = buffers_for(space_spec(space), 1)
        RowWriter(space, buffers).write(0, value)
        np.testing.assert_allclose(buffers[0][0], value)


def test_bounds_and_starts_travel() -> None:
    """The client draws and checks actions from the spec alone."""
    (box,) = space_spec(spaces.Box(-2, np.inf, (2,))).nodes
    assert box.low is not None
    assert box.high is not None
    assert (box.low.tolist(), box.high.tolist()) == ([-2.0, -2.0], [np.inf, np.inf])
    (discrete,) = space_spec(spaces.Discrete(3, start=4)).nodes
    assert (discrete.kind, discrete.n, discrete.start) == (pb.DISCRETE, 3, 4)
    (text,) = space_spec(spaces.Text(6, min_length=2, charset="äb")).nodes
    assert (text.min_length, text.max_length, text.charset, text.max_bytes) == (2, 6, "bä", 12)
    keys = [node.key for node in space_spec(PAIR).nodes]
    assert keys == ["", "a", "b", "0", "1"]


def test_mask_widths() -> None:
    """One choice per value of a Discrete, all choices in a row for a MultiDiscrete, none elsewhere."""
    widths = [mask_size(space) for space in (spaces.Discrete(5, start=2), spaces.MultiDiscrete([2, 3]), BOX, PAIR)]
    assert widths == [5, 5, 0, 0]


def test_a_mask_that_no_lane_may_have_is_none() -> None:
    """As many choices as a spec may have on the wire are the most that are masked."""
    sizes = (MAX_MASK_SIZE, MAX_MASK_SIZE + 1)
    assert [mask_size(spaces.Discrete(n)) for n in sizes] == [MAX_MASK_SIZE, 0]
    assert [mask_size(spaces.MultiDiscrete([n - 2, 2])) for n in sizes] == [MAX_MASK_SIZE, 0]


@pytest.mark.parametrize(
    "space",
    [
        spaces.Graph(BOX, None),
        spaces.Sequence(BOX),
        spaces.OneOf([BOX, BOX]),
        spaces.Dict({"a": spaces.Sequence(BOX)}),
        spaces.Dict({"a/b": BOX}),
        spaces.Box(0, 1, (2,), np.longdouble),
    ],
    ids=lambda space: type(space).__name__,
)
def test_spaces_without_a_layout_are_refused(space: Space[Any]) -> None:
    """The text names the space or the key."""
    with pytest.raises(UnsupportedSpace, match=r"Graph|Sequence|OneOf|a/b|longdouble|float128"):
        space_spec(space)
