"""Spaces without Gymnasium: a flat pre-order list of nodes, and values as a list of leaf arrays.

`SpaceSpec` is what travels in `Spec`. A value of the space (for B slots at once) is a plain
list of arrays, one `[B, *leaf.shape]` per leaf in `SpaceSpec.leaves` order.

Invariants: nodes are in pre-order and every parent precedes its children; the wire form
round-trips to an equal object (test_space_round_trips_through_the_wire).
"""

from __future__ import annotations

from collections.abc import Sequence
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
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


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
        while index >= 0 and self.nodes[index].parent >= 0:
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
        for index, node in enumerate(nodes):
            _check_place(nodes, index, node)
        return SpaceSpec(nodes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SpaceSpec) and self._wire == other._wire

    def __hash__(self) -> int:
        return hash(self._wire)

    @cached_property
    def _wire(self) -> bytes:
        return self.to_proto().SerializeToString(deterministic=True)


def read_leaves(parts: Sequence[bytes], leaves: Sequence[Leaf], rows: int, what: str) -> list[tensors.Array]:
    """Read-only arrays `[rows, *leaf.shape]` from one bytes object per leaf."""
    if len(parts) != len(leaves):
        raise RemoteProtocolError(f"{what}: {len(parts)} arrays where the spec has {len(leaves)}")
    return [
        tensors.from_bytes(part, leaf.dtype, (rows, *leaf.shape), f"{what}[{leaf.path or number}]")
        for number, (part, leaf) in enumerate(zip(parts, leaves, strict=True))
    ]


def _check_place(nodes: tuple[Node, ...], index: int, node: Node) -> None:
    if index == 0:
        if node.parent != -1:
            raise RemoteProtocolError("the first node of a space is its root")
    elif not 0 <= node.parent < index or nodes[node.parent].is_leaf:
        raise RemoteProtocolError(f"space node {index} has no container for a parent")


def _optional(array: tensors.Array | None) -> bytes:
    return b"" if array is None else tensors.to_bytes(array)


def _node_to_proto(node: Node) -> pb.Node:
    leaf = node.is_leaf and node.kind != pb.TEXT
    return pb.Node(
        kind=node.kind,
        parent=node.parent,
        key=node.key,
        dtype=tensors.code_of(node.dtype) if leaf else pb.DTYPE_UNSPECIFIED,
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


def _node_from_proto(message: pb.Node) -> Node:
    if message.kind not in (pb.BOX, pb.DISCRETE, pb.MULTI_DISCRETE, pb.MULTI_BINARY, pb.TEXT, pb.DICT, pb.TUPLE):
        raise RemoteProtocolError(f"unknown kind of space node: {message.kind}")
    leaf = message.kind not in (*_CONTAINERS, pb.TEXT)
    dtype = tensors.dtype_of(message.dtype) if leaf else np.dtype(np.float32)
    shape = tuple(message.shape)

    def bound(data: bytes, of: np.dtype[Any]) -> tensors.Array | None:
        return tensors.from_bytes(data, of, shape, f"bounds of {message.key!r}") if data else None

    return Node(
        kind=message.kind,
        parent=message.parent,
        key=message.key,
        dtype=dtype,
        shape=shape,
        low=bound(message.low, dtype),
        high=bound(message.high, dtype),
        n=message.n,
        start=message.start,
        nvec=bound(message.nvec, np.dtype("<i8")),
        nvec_start=bound(message.nvec_start, np.dtype("<i8")),
        min_length=message.min_length,
        max_length=message.max_length,
        charset=message.charset,
    )
