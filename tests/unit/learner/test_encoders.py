"""Observation leaves as float tensors, against values put together by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from asyncrl.errors import ConfigError
from asyncrl.learner.encoders import (
    MIN_SIDE,
    FlatEncoder,
    ImageEncoder,
    has_planes,
    is_image,
    is_normalisable,
    lies_side_by_side,
    observation_nodes,
)
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.spaces import Node
from envserver.gym_spec import space_spec
from tests.unit.learner.spaces_served import FRAMES, AnySpace, rows_of, tensors


def nodes_of(space: AnySpace) -> list[Node]:
    return observation_nodes(space_spec(space))


def flat(space: AnySpace, leaves: list[Any]) -> torch.Tensor:
    encoder = FlatEncoder(nodes_of(space))
    encoded: torch.Tensor = encoder(tensors(leaves))
    assert encoded.dtype == torch.float32
    assert encoded.shape[1] == encoder.num_features
    return encoded


def test_bytes_are_divided_once() -> None:
    """A frame with a 255 in it has 1 as its largest number inside the network, uint8 until then."""
    space = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    (leaf,) = rows_of(space, 3)
    leaf[0, 0, 0, 0] = 255
    assert leaf.dtype == np.uint8
    encoded = ImageEncoder(nodes_of(space)[0])(torch.from_numpy(leaf))
    assert float(encoded.max()) == 1.0
    assert torch.allclose(encoded, torch.from_numpy(leaf / 255.0).float())
    ram = spaces.Box(0, 255, (128,), np.uint8)
    (leaf,) = rows_of(ram, 3)
    assert torch.allclose(flat(ram, [leaf]), torch.from_numpy(leaf / 255.0).float())
    board = spaces.Box(0, 1, (3, 3), np.uint8)
    (leaf,) = rows_of(board, 3)
    assert torch.equal(flat(board, [leaf]), torch.from_numpy(leaf.reshape(3, 9)).float())


def test_countable_spaces_are_one_hot() -> None:
    """Value minus start is the column of the 1; places of MULTI_DISCRETE stand side by side."""
    assert flat(spaces.Discrete(3, start=5), [np.array([5, 7])]).tolist() == [[1, 0, 0], [0, 0, 1]]
    counts = spaces.MultiDiscrete([2, 3], start=[0, -1])
    assert flat(counts, [np.array([[1, -1], [0, 1]])]).tolist() == [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]]
    coins = np.array([[1, 0, 1]], np.int8)
    assert flat(spaces.MultiBinary(3), [coins]).tolist() == [[1, 0, 1]]


def test_leaves_stand_side_by_side_in_wire_order() -> None:
    """A dict is encoded key by key in the order of its leaves, scalars are one column."""
    space = spaces.Dict(
        {"b": spaces.Discrete(2), "a": spaces.Box(-9, 9, (), np.float64), "c": spaces.Tuple([spaces.MultiBinary(1)])}
    )
    leaves = [np.array([1.5, -2.5]), np.array([1, 0]), np.array([[1], [0]], np.int8)]
    assert flat(space, leaves).tolist() == [[1.5, 0, 1, 1], [-2.5, 1, 0, 0]]


@pytest.mark.parametrize(
    ("shape", "channels", "index"),
    [
        ((4, 84, 90), 4, lambda c, y, x: (c, y, x)),
        ((84, 90, 3), 3, lambda c, y, x: (y, x, c)),
        ((84, 90), 1, lambda _c, y, x: (y, x)),
        ((4, 84, 90, 3), 12, lambda c, y, x: (c // 3, y, x, c % 3)),
    ],
    ids=["stack", "channels last", "grey", "stack of colours"],
)
def test_images_come_with_channels_first(shape: tuple[int, ...], channels: int, index: Any) -> None:
    """Pixel (channel, y, x) is where the environment's order of axes has it."""
    space = spaces.Box(0, 255, shape, np.uint8)
    (leaf,) = rows_of(space, 2)
    (node,) = nodes_of(space)
    assert is_image(node)
    encoded = ImageEncoder(node)(torch.from_numpy(leaf))
    assert encoded.shape == (2, channels, 84, 90)
    for c, y, x in ((0, 0, 0), (channels - 1, 83, 89), (channels // 2, 10, 70)):
        assert float(encoded[1, c, y, x]) == pytest.approx(leaf[1][index(c, y, x)] / 255.0)


@pytest.mark.parametrize("bf16", [False, True])
def test_order_in_memory_changes_no_value(bf16: bool) -> None:
    """Frames that came plane by plane, or with their channels side by side, end side by side and bit-equal."""
    (leaf,) = rows_of(FRAMES, 3)
    planes = torch.from_numpy(leaf)
    encoder = ImageEncoder(nodes_of(FRAMES)[0], bf16=bf16)
    found = [encoder(planes), encoder(planes.contiguous(memory_format=torch.channels_last))]
    expected = planes.to(found[0].dtype) * (1 / 255)
    for each in found:
        assert torch.equal(each, expected)
        assert lies_side_by_side(each)


def test_frames_are_told_from_other_bytes() -> None:
    """Stacks of frames alone have planes: not boards, colours at the end, or numbers."""
    assert has_planes((4, 84, 84), np.dtype(np.uint8))
    assert not has_planes((84, 84, 3), np.dtype(np.uint8))
    assert not has_planes((4, 8, 8), np.dtype(np.uint8))
    assert not has_planes((4, 84, 84), np.dtype(np.float32))
    assert not has_planes((84, 84), np.dtype(np.uint8))


def test_what_counts_as_an_image() -> None:
    """Two sides of enough pixels; small boards and matrices of numbers are vectors, and only those have a mean."""
    images: list[AnySpace] = [
        spaces.Box(0, 255, (MIN_SIDE, MIN_SIDE), np.uint8),
        spaces.Box(0.0, 1.0, (3, 64, 64), np.float32),
    ]
    vectors: list[AnySpace] = [
        spaces.Box(0, 255, (10, 10, 4), np.uint8),
        spaces.Box(0.0, 1.0, (64, 64), np.float32),
        spaces.Box(0, 255, (128,), np.uint8),
    ]
    for space, expected in [(space, True) for space in images] + [(space, False) for space in vectors]:
        (node,) = nodes_of(space)
        assert is_image(node) is expected
        assert is_normalisable(node) is not expected
    assert not is_normalisable(nodes_of(spaces.Discrete(3))[0])


def test_every_dtype_of_the_wire_is_encoded() -> None:
    """Numbers of all widths become the same float32."""
    for code in ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"):
        high = 1 if code == "b1" else 7
        node = Node(pb.BOX, dtype=np.dtype(code), shape=(2,), high=np.full(2, high, code))
        leaf = np.array([[0, 1], [1, high]], code)
        divisor = 7.0 if code == "u1" else 1.0
        assert torch.allclose(FlatEncoder([node])([torch.from_numpy(leaf)]), torch.from_numpy(leaf / divisor).float())
    bits = torch.tensor([[1.5, -2.0]]).to(torch.bfloat16).view(torch.uint16)
    node = Node(pb.BOX, dtype=np.dtype("u2"), shape=(2,), bf16=True)
    assert FlatEncoder([node])([bits]).tolist() == [[1.5, -2.0]]


def test_text_is_refused_by_name() -> None:
    """The error names the leaf and what to do."""
    space = spaces.Dict({"goal": spaces.Text(5), "x": spaces.Discrete(2)})
    with pytest.raises(ConfigError, match=r"'goal' is Text.*wrapper"):
        nodes_of(space)


def test_an_empty_observation_is_refused() -> None:
    """A space without a single number cannot be learnt from."""
    with pytest.raises(ConfigError, match="empty"):
        nodes_of(spaces.Dict({}))
