"""Spaces without Gymnasium: a flat pre-order list of nodes, and values as a list of leaf arrays.

`SpaceSpec` is what travels in `Spec`. A value of the space (for B slots at once) is a plain
list of arrays, one `[B, *leaf.shape]` per leaf in `SpaceSpec.leaves` order.

Invariants: nodes of a peer are in pre-order, every one has what its kind needs, and nothing is larger than an array can
be (test_spaces_that_make_no_sense_are_refused); the wire form round-trips to an equal object
(test_space_round_trips_through_the_wire).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from asyncrl.errors import RemoteProtocolError
from asyncrl.wire import tensors
from asyncrl.wire._generated import env_pb2 as pb

NodeKind = pb.NodeKind.ValueType
_CONTAINERS = (pb.DICT, pb.TUPLE)
MAX_NODES = 1024


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array of a space's value, without the slot axis."""

    path: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of one slot."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One node of a space; fields beyond `kind`, `parent`, `key` matter only to the kinds that name them."""

    kind: pb.NodeKind.ValueType
    parent: int = -1
    key: str = ""
    dtype: np.dtype[Any] = field(default_factory=lambda: np.dtype(np.float32))
    shape: tuple[int, ...] = ()
    low: tensors.Array | None = None
    high: tensors.Array | None = None
    n: int = 0
    start: int = 0
    nvec: tensors.Array | None = None
    nvec_start: tensors.Array | None = None
    min_length: int = 0
    max_length: int = 0
    charset: str = ""
    bf16: bool = False  # `dtype` is u2 then, and holds the raw bits

    @property
    def is_leaf(self) -> bool:
        return self.kind not in _CONTAINERS

    @property
    def max_bytes(self) -> int:
        """TEXT: bytes that the longest legal string can take in UTF-8."""
        return self.max_length * max((len(c.encode()) for c in self.charset), default=1)


@dataclass(frozen=True)
class SpaceSpec:
    """A space as data. Equality is by wire form."""

    nodes: tuple[Node, ...]

    @cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        """The arrays of a value, in wire order."""
        found: list[Leaf] = []
        for index, node in enumerate(self.nodes):
            if node.kind == pb.TEXT:
                found.append(Leaf(self.path(index), np.dtype("<u1"), (node.max_bytes,)))
                found.append(Leaf(self.path(index) + "/length", np.dtype("<i4"), ()))
            elif node.is_leaf:
                found.append(Leaf(self.path(index), node.dtype, node.shape))
        return tuple(found)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Indices of each node's children, in order."""
        found: list[list[int]] = [[] for _ in self.nodes]
        for index, node in enumerate(self.nodes):
            if node.parent >= 0:
                found[node.parent].append(index)
        return tuple(map(tuple, found))

    @property
    def nbytes(self) -> int:
        """Bytes of one slot's value."""
        return sum(leaf.nbytes for leaf in self.leaves)

    def path(self, index: int) -> str:
        """Slash-joined keys from the root; empty for the root itself."""
        keys: list[str] = []
        while self.nodes[index].parent >= 0:
            keys.append(self.nodes[index].key)
            index = self.nodes[index].parent
        return "/".join(reversed(keys))

    def to_proto(self) -> pb.Space:
        return pb.Space(nodes=[_node_to_proto(node) for node in self.nodes])

    @staticmethod
    def from_proto(message: pb.Space) -> SpaceSpec:
        if not 0 < len(message.nodes) <= MAX_NODES:
            raise RemoteProtocolError(f"a space has 1 to {MAX_NODES} nodes, not {len(message.nodes)}")
        nodes = tuple(_node_from_proto(node) for node in message.nodes)
        _check_places(nodes)
        space = SpaceSpec(nodes)
        for leaf in space.leaves:
            tensors.check_shape(leaf.shape, leaf.dtype, f"space leaf {leaf.path!r}")
        if space.nbytes > tensors.MAX_SLOT_BYTES:
            raise RemoteProtocolError(f"a space of {space.nbytes} bytes a slot; {tensors.MAX_SLOT_BYTES} are possible")
        return space

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SpaceSpec) and self._wire == other._wire

    def __hash__(self) -> int:
        return hash(self._wire)

    @cached_property
    def _wire(self) -> bytes:
        return self.to_proto().SerializeToString(deterministic=True)


def read_leaves(
    parts: Sequence[bytes],
    leaves: Sequence[Leaf],
    rows: int,
    what: str,
    read: Callable[[bytes, np.dtype[Any], Sequence[int], str], tensors.Array] = tensors.from_bytes,
) -> list[tensors.Array]:
    """Arrays `[rows, *leaf.shape]` from one bytes object per leaf: read-only views, or with `tensors.owned` copies."""
    if len(parts) != len(leaves):
        raise RemoteProtocolError(f"{what}: {len(parts)} arrays where the spec has {len(leaves)}")
    return [
        read(part, leaf.dtype, (rows, *leaf.shape), f"{what}[{leaf.path or number}]")
        for number, (part, leaf) in enumerate(zip(parts, leaves, strict=True))
    ]


def _check_places(nodes: tuple[Node, ...]) -> None:
    """Pre-order: a node's parent is a container that is still open, and its key is the next one there."""
    if nodes[0].parent != -1 or nodes[0].key:
        raise RemoteProtocolError("the first node of a space is its root, without parent and key")
    last_keys: dict[int, str | None] = {}  # of the open containers, from the root to the latest node
    for index, node in enumerate(nodes):
        while last_keys and next(reversed(last_keys)) != node.parent:
            last_keys.popitem()
        if index and not last_keys:
            raise RemoteProtocolError(f"space node {index}: its parent is no container, or not where pre-order has it")
        if index:
            _check_key(nodes[node.parent].kind, node.key, last_keys[node.parent], index)
            last_keys[node.parent] = node.key
        if not node.is_leaf:
            last_keys[index] = None


def _check_key(kind: int, key: str, last: str | None, index: int) -> None:
    if kind == pb.TUPLE:
        in_order = key == ("0" if last is None else str(int(last) + 1))
    else:
        in_order = last is None or key > last
    if not in_order:
        raise RemoteProtocolError(f"space node {index}: key {key[:40]!r} is not in the order of its container")


def _optional(array: tensors.Array | None) -> bytes:
    return b"" if array is None else tensors.to_bytes(array)


def _node_to_proto(node: Node) -> pb.Node:
    leaf = node.is_leaf and node.kind != pb.TEXT
    return pb.Node(
        kind=node.kind,
        parent=node.parent,
        key=node.key,
        dtype=_dtype_code(node) if leaf else pb.DTYPE_UNSPECIFIED,
        shape=node.shape,
        low=_optional(node.low),
        high=_optional(node.high),
        n=node.n,
        start=node.start,
        nvec=_optional(node.nvec),
        nvec_start=_optional(node.nvec_start),
        min_length=node.min_length,
        max_length=node.max_length,
        charset=node.charset,
    )


def _dtype_code(node: Node) -> pb.DType.ValueType:
    return pb.BF16 if node.bf16 else tensors.code_of(node.dtype)


def _node_from_proto(message: pb.Node) -> Node:
    if message.kind not in (pb.BOX, pb.DISCRETE, pb.MULTI_DISCRETE, pb.MULTI_BINARY, pb.TEXT, pb.DICT, pb.TUPLE):
        raise RemoteProtocolError(f"unknown kind of space node: {message.kind}")
    leaf = message.kind not in (*_CONTAINERS, pb.TEXT)
    dtype = tensors.dtype_of(message.dtype) if leaf else np.dtype(np.float32)
    shape = tuple(message.shape)
    tensors.check_shape(shape, dtype, f"space node {message.key[:40]!r}")

    def bound(data: bytes, of: np.dtype[Any]) -> tensors.Array | None:
        return tensors.from_bytes(data, of, shape, f"bounds of {message.key!r}") if data else None

    has_no_places = message.kind == pb.MULTI_DISCRETE and not math.prod(shape)
    node = Node(
        kind=message.kind,
        parent=message.parent,
        key=message.key,
        dtype=dtype,
        bf16=leaf and message.dtype == pb.BF16,
        shape=shape,
        low=bound(message.low, dtype),
        high=bound(message.high, dtype),
        n=message.n,
        start=message.start,
        nvec=np.zeros(shape, "<i8") if has_no_places else bound(message.nvec, np.dtype("<i8")),
        nvec_start=bound(message.nvec_start, np.dtype("<i8")),
        min_length=message.min_length,
        max_length=message.max_length,
        charset=message.charset,
    )
    wrong = _what_is_missing(node)
    if wrong is not None:
        raise RemoteProtocolError(f"space node {message.key[:40]!r}: {wrong}")
    return node


def _what_is_missing(node: Node) -> str | None:
    """What a node of this kind needs and this one lacks."""
    if node.kind in (pb.DISCRETE, pb.MULTI_DISCRETE, pb.MULTI_BINARY) and node.dtype.kind == "f":
        return f"a countable space of {node.dtype}"
    if node.kind == pb.DISCRETE and (node.shape or node.n < 1):
        return f"DISCRETE has one number and at least one value, not shape {list(node.shape)} and n = {node.n}"
    if node.kind == pb.MULTI_DISCRETE and (node.nvec is None or (node.nvec < 1).any()):
        return "MULTI_DISCRETE needs nvec, and at least one value in each place"
    if node.kind == pb.TEXT and not (node.min_length <= node.max_length and (node.charset or not node.max_length)):
        return f"TEXT of {node.min_length} to {node.max_length} out of {len(node.charset)} characters"
    return None
