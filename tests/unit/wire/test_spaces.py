"""Spaces over the wire, their leaves, and what a peer may not call a space."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from asyncrl.errors import RemoteProtocolError
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.envelope import parse_body
from asyncrl.wire.spaces import MAX_NODES, Leaf, Node, SpaceSpec, read_leaves
from tests.unit.wire.strategies import member_leaves, space_specs

F4, I8 = np.dtype("<f4"), np.dtype("<i8")
NESTED = SpaceSpec(
    (
        Node(pb.DICT),
        Node(pb.BOX, 0, "camera", np.dtype("<u1"), (2, 3)),
        Node(pb.TUPLE, 0, "goal"),
        Node(pb.DISCRETE, 2, "0", I8, n=4),
        Node(pb.TEXT, 2, "1", max_length=5, charset="aé"),
        Node(pb.MULTI_BINARY, 0, "keys", np.dtype("<i1"), (3,)),
    )
)


@given(space_specs())
def test_space_round_trips_through_the_wire(space: SpaceSpec) -> None:
    """A random space that went through bytes is equal, has the same hash and the same leaves."""
    back = SpaceSpec.from_proto(parse_body(pb.Space, space.to_proto().SerializeToString()))
    assert back == space
    assert hash(back) == hash(space)
    assert back.leaves == space.leaves
    assert (
        back.nbytes == space.nbytes == sum(array.nbytes for array in member_leaves(np.random.default_rng(0), back, 1))
    )
    for ours, theirs in zip(space.nodes, back.nodes, strict=True):
        assert (ours.nvec is None) == (theirs.nvec is None)


def test_leaves_are_in_preorder_with_paths() -> None:
    """A nested space written out by hand: paths, dtypes, shapes, and two leaves for a text."""
    assert [(leaf.path, str(leaf.dtype), leaf.shape, leaf.nbytes) for leaf in NESTED.leaves] == [
        ("camera", "uint8", (2, 3), 6),
        ("goal/0", "int64", (), 8),
        ("goal/1", "uint8", (10,), 10),
        ("goal/1/length", "int32", (), 4),
        ("keys", "int8", (3,), 3),
    ]
    assert NESTED.children == ((1, 2, 5), (), (3, 4), (), (), ())
    assert NESTED.path(0) == ""
    assert SpaceSpec((Node(pb.BOX, dtype=F4, shape=(2,)),)).leaves == (Leaf("", F4, (2,)),)


def test_spaces_differ_by_what_travels() -> None:
    """Bounds, starts and keys make a difference, and nothing else is equal to a space."""
    one = SpaceSpec((Node(pb.DISCRETE, dtype=I8, n=2),))
    assert one == SpaceSpec((Node(pb.DISCRETE, dtype=I8, n=2),))
    assert one != SpaceSpec((Node(pb.DISCRETE, dtype=I8, n=2, start=1),))
    assert one != SpaceSpec((Node(pb.DISCRETE, dtype=I8, n=3),))
    assert one != "a space"


def test_bf16_keeps_its_name() -> None:
    """A leaf of bfloat16 is held as 16 raw bits and goes out again as what it was."""
    message = pb.Space(nodes=[pb.Node(kind=pb.BOX, parent=-1, dtype=pb.BF16, shape=[3])])
    space = SpaceSpec.from_proto(message)
    assert space.leaves[0].dtype == np.dtype("<u2")
    assert space.to_proto() == message
    assert space != SpaceSpec((Node(pb.BOX, dtype=np.dtype("<u2"), shape=(3,)),))


def test_a_big_leaf_does_not_overflow() -> None:
    """Sizes are whole numbers without a width."""
    assert Leaf("", F4, (2**31, 2**31, 2**31)).nbytes == 4 * 2**93


def node(kind: pb.NodeKind.ValueType, parent: int = -1, key: str = "", **fields: Any) -> pb.Node:
    if kind not in (pb.DICT, pb.TUPLE, pb.TEXT):
        fields.setdefault("dtype", pb.I8)
    return pb.Node(kind=kind, parent=parent, key=key, **fields)


BOX = node(pb.BOX)
DICT, TUPLE = node(pb.DICT), node(pb.TUPLE)


def child(key: str, parent: int = 0) -> pb.Node:
    return node(pb.BOX, parent, key)


SENSELESS: dict[str, list[pb.Node]] = {
    "no node": [],
    "too many nodes": [TUPLE, *(child(str(number)) for number in range(MAX_NODES))],
    "a root with a parent": [node(pb.BOX, 0)],
    "a root with a key": [node(pb.BOX, -1, "x")],
    "two roots": [BOX, BOX],
    "a parent before the root": [DICT, child("a", -2)],
    "a child of a leaf": [BOX, child("a")],
    "a child of itself": [DICT, child("a", 1)],
    "a child of a later node": [DICT, child("a", 2), node(pb.DICT, 0, "b")],
    "out of pre-order": [DICT, node(pb.DICT, 0, "a"), child("b"), child("c", 1)],
    "unknown kind": [pb.Node(kind=pb.NodeKind.ValueType(99), parent=-1)],
    "no kind": [pb.Node(parent=-1, dtype=pb.F4)],
    "no dtype": [pb.Node(kind=pb.BOX, parent=-1)],
    "unknown dtype": [pb.Node(kind=pb.BOX, parent=-1, dtype=pb.DType.ValueType(77))],
    "keys in descending order": [DICT, child("b"), child("a")],
    "the same key twice": [DICT, child("a"), child("a")],
    "a tuple from one": [TUPLE, child("1")],
    "a tuple with a gap": [TUPLE, child("0"), child("2")],
    "a tuple with a name": [TUPLE, child("first")],
    "a tuple with 01": [TUPLE, child("0"), child("01")],
    "17 axes": [node(pb.BOX, shape=[1] * 17)],
    "100 axes": [node(pb.BOX, shape=[1] * 100)],
    "a giant": [node(pb.BOX, shape=[2**31, 2**31])],
    "a giant without rows": [node(pb.BOX, shape=[0, 2**32 - 1, 2**32 - 1, 2**32 - 1])],
    "a giant of parts": [TUPLE, *(node(pb.BOX, 0, str(number), shape=[2**24]) for number in range(3))],
    "a giant text": [node(pb.TEXT, max_length=2**31, charset="a")],
    "short bounds": [node(pb.BOX, shape=[2], low=b"\0" * 8)],
    "long bounds": [node(pb.BOX, shape=[2], high=b"\0" * 24)],
    "DISCRETE of none": [node(pb.DISCRETE, n=0)],
    "DISCRETE of less than none": [node(pb.DISCRETE, n=-1)],
    "DISCRETE with axes": [node(pb.DISCRETE, n=2, shape=[1])],
    "DISCRETE of floats": [node(pb.DISCRETE, n=2, dtype=pb.F4)],
    "MULTI_BINARY of floats": [node(pb.MULTI_BINARY, dtype=pb.F8)],
    "MULTI_DISCRETE of floats": [node(pb.MULTI_DISCRETE, nvec=b"\1" + b"\0" * 7, dtype=pb.F2)],
    "MULTI_DISCRETE without nvec": [node(pb.MULTI_DISCRETE, shape=[1])],
    "MULTI_DISCRETE of none": [node(pb.MULTI_DISCRETE, shape=[1], nvec=b"\0" * 8)],
    "short nvec": [node(pb.MULTI_DISCRETE, shape=[2], nvec=b"\1" + b"\0" * 7)],
    "short nvec_start": [node(pb.MULTI_DISCRETE, shape=[1], nvec=b"\1" + b"\0" * 7, nvec_start=b"\0")],
    "TEXT longer than itself": [node(pb.TEXT, min_length=3, max_length=2, charset="a")],
    "TEXT out of nothing": [node(pb.TEXT, max_length=2)],
}


@pytest.mark.parametrize("case", SENSELESS)
def test_spaces_that_make_no_sense_are_refused(case: str) -> None:
    """Each raises RemoteProtocolError, and nothing of the size that it claims is allocated."""
    with pytest.raises(RemoteProtocolError):
        SpaceSpec.from_proto(pb.Space(nodes=SENSELESS[case]))


SENSIBLE: dict[str, list[pb.Node]] = {
    "as many nodes as possible": [TUPLE, *(child(str(number)) for number in range(MAX_NODES - 1))],
    "empty containers": [TUPLE, node(pb.DICT, 0, "0"), node(pb.TUPLE, 0, "1"), child("2")],
    "back to the root": [DICT, node(pb.TUPLE, 0, "a"), node(pb.DICT, 1, "0"), child("x", 2), child("b")],
    "an empty key": [DICT, child(""), child("a")],
    "ten places": [TUPLE, *(child(str(number)) for number in range(11))],
    "an empty text": [node(pb.TEXT)],
    "a Box without rows": [node(pb.BOX, shape=[0, 5])],
}


@pytest.mark.parametrize("case", SENSIBLE)
def test_the_limits_themselves_are_legal(case: str) -> None:
    """What is unusual but has a meaning is read, and is written as it was."""
    message = pb.Space(nodes=SENSIBLE[case])
    assert SpaceSpec.from_proto(message).to_proto() == message


def bad_leaves(change: Callable[[list[bytes]], list[bytes]]) -> list[bytes]:
    good = [array.tobytes() for array in member_leaves(np.random.default_rng(0), NESTED, 2)]
    return change(good)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda parts: parts[:-1], "4 arrays where the spec has 5"),
        (lambda parts: [*parts, b""], "6 arrays"),
        (lambda parts: [parts[0][:-1], *parts[1:]], "obs[camera]"),
        (lambda parts: [*parts[:1], b"", *parts[2:]], "obs[goal/0]"),
    ],
)
def test_leaves_that_do_not_fit_are_refused(change: Callable[[list[bytes]], list[bytes]], says: str) -> None:
    """A wrong number of arrays and an array of a wrong length, by name."""
    with pytest.raises(RemoteProtocolError) as caught:
        read_leaves(bad_leaves(change), NESTED.leaves, 2, "obs")
    assert says in str(caught.value)


@given(space_specs())
def test_leaves_round_trip(space: SpaceSpec) -> None:
    """Arrays of a random space through bytes."""
    arrays = member_leaves(np.random.default_rng(3), space, 3)
    back = read_leaves([array.tobytes() for array in arrays], space.leaves, 3, "x")
    assert [array.tobytes() for array in back] == [array.tobytes() for array in arrays]
    assert [array.shape for array in back] == [(3, *leaf.shape) for leaf in space.leaves]


def test_a_nameless_leaf_is_called_by_its_number() -> None:
    """The error for a bare space says which array of the message it was."""
    with pytest.raises(RemoteProtocolError, match=r"obs\[0\]"):
        read_leaves([b""], (Leaf("", F4, (1,)),), 1, "obs")


def test_a_charset_sets_the_bytes_of_a_text() -> None:
    """The longest legal string fits: characters times the widest of the charset."""
    text = Node(pb.TEXT, max_length=3, charset="a漢")
    assert text.max_bytes == 9
    assert replace(text, charset="").max_bytes == 3
