"""Random spaces, values and rows for tests of the wire."""

from __future__ import annotations

import string
from typing import Any

import numpy as np
from hypothesis import strategies as st

from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.spaces import Node, SpaceSpec
from asyncrl.wire.tensors import Array

DTYPES = [np.dtype(name) for name in ("?", "<i1", "<i2", "<i4", "<i8", "<u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8")]
INTEGERS = [dtype for dtype in DTYPES if dtype.kind in "iu"]

shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
seeds = st.integers(0, 2**32 - 1)


def random_array(rng: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Any bits that the dtype can have: NaN, infinities and signed zeros too."""
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(np.bool_)
    count = int(np.prod(shape, dtype=np.int64))
    return np.frombuffer(rng.bytes(count * dtype.itemsize), dtype).reshape(shape).copy()


def laid_out(array: Array, layout: str) -> Array:
    """The same values in another memory layout."""
    if layout == "F":
        return np.asfortranarray(array)
    if layout == "strided":
        wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype) if array.shape[-1] else array
        if array.shape[-1]:
            wide[..., ::2] = array
            return wide[..., ::2]
    return array


@st.composite
def leaf_nodes(draw: st.DrawFn, parent: int, key: str) -> Node:
    kind = draw(st.sampled_from([pb.BOX, pb.DISCRETE, pb.MULTI_DISCRETE, pb.MULTI_BINARY, pb.TEXT]))
    shape: tuple[int, ...] = draw(shapes)
    if kind == pb.BOX:
        dtype = draw(st.sampled_from(DTYPES))
        rng = np.random.default_rng(draw(seeds))
        bounds = [random_array(rng, dtype, shape) if draw(st.booleans()) else None for _ in range(2)]
        return Node(kind, parent, key, dtype, shape, low=bounds[0], high=bounds[1])
    dtype = draw(st.sampled_from(INTEGERS))
    if kind == pb.DISCRETE:
        return Node(kind, parent, key, dtype, n=draw(st.integers(1, 100)), start=draw(st.integers(-5, 5)))
    if kind == pb.MULTI_DISCRETE:
        rng = np.random.default_rng(draw(seeds))
        start = rng.integers(-3, 4, shape) if draw(st.booleans()) else None
        return Node(kind, parent, key, dtype, shape, nvec=rng.integers(1, 9, shape), nvec_start=start)
    if kind == pb.MULTI_BINARY:
        return Node(kind, parent, key, np.dtype(np.int8), shape)
    characters = draw(st.text(string.ascii_letters + "äß漢😀", min_size=1, max_size=8))
    low = draw(st.integers(0, 3))
    high = draw(st.integers(low, 6))
    charset = "".join(sorted(set(characters)))
    return Node(kind, parent, key, min_length=low, max_length=high, charset=charset)


@st.composite
def space_specs(draw: st.DrawFn, max_depth: int = 3) -> SpaceSpec:
    nodes: list[Node] = []

    def grow(parent: int, key: str, depth: int) -> None:
        container = depth < max_depth and draw(st.integers(0, 3)) == 0
        if not container:
            nodes.append(draw(leaf_nodes(parent, key)))
            return
        kind = draw(st.sampled_from([pb.DICT, pb.TUPLE]))
        nodes.append(Node(kind, parent, key))
        index, count = len(nodes) - 1, draw(st.integers(0, 3))
        keys = sorted(draw(st.sets(st.text("abcé_", max_size=3), min_size=count, max_size=count)))
        for number, name in enumerate(keys):
            grow(index, name if kind == pb.DICT else str(number), depth + 1)

    grow(-1, "", 0)
    return SpaceSpec(tuple(nodes))


def random_leaves(rng: np.random.Generator, space: SpaceSpec, rows: int) -> list[Array]:
    """Arrays of the right layout with any bits in them."""
    return [random_array(rng, leaf.dtype, (rows, *leaf.shape)) for leaf in space.leaves]


def member_leaves(rng: np.random.Generator, space: SpaceSpec, rows: int) -> list[Array]:
    """Values that lie in the space."""
    found: list[Array] = []
    for node in space.nodes:
        shape = (rows, *node.shape)
        if node.kind == pb.BOX:
            values = rng.integers(0, 2, shape).astype(node.dtype)
            found.append(values)
        elif node.kind == pb.DISCRETE:
            found.append((node.start + rng.integers(0, node.n, shape)).astype(node.dtype))
        elif node.kind == pb.MULTI_DISCRETE:
            assert node.nvec is not None
            start = 0 if node.nvec_start is None else node.nvec_start
            found.append((start + rng.integers(0, np.broadcast_to(node.nvec, shape))).astype(node.dtype))
        elif node.kind == pb.MULTI_BINARY:
            found.append(rng.integers(0, 2, shape).astype(node.dtype))
        elif node.kind == pb.TEXT:
            found += random_texts(rng, node, rows)
    return found


def random_texts(rng: np.random.Generator, node: Node, rows: int) -> list[Array]:
    data, lengths = np.zeros((rows, node.max_bytes), np.uint8), np.zeros(rows, np.int32)
    for row in range(rows):
        size = int(rng.integers(node.min_length, node.max_length + 1))
        text = "".join(rng.choice(list(node.charset), size)) if size else ""
        encoded = text.encode()
        data[row, : len(encoded)] = np.frombuffer(encoded, np.uint8)
        lengths[row] = len(encoded)
    return [data, lengths]
