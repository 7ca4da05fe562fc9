"""Wire spaces as Gymnasium spaces, and leaf arrays as the batched values of Gymnasium's vector environments.

Invariants: a space that went over the wire equals the one that was served (test_a_space_survives_the_wire);
batched values have the layout of `gymnasium.vector.utils.concatenate` (test_batches_are_laid_out_as_gymnasium_does);
actions are taken in every form that `gymnasium.vector.utils.iterate` takes
(test_actions_are_taken_in_the_forms_that_gymnasium_iterates), and one that does not fit raises ActionError
naming the leaf (test_misfits_are_refused_by_name).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from gymnasium import Space, spaces

from asyncrl.errors import LocalProtocolError
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.spaces import Leaf, Node, SpaceSpec
from asyncrl.wire.tensors import Array

AnySpace = Space[Any]
Batch = Callable[[Sequence[Array]], Any]
Row = Callable[[Sequence[Array], int], Any]
Unbatch = Callable[[Any, int], list[Array]]


class ActionError(LocalProtocolError, ValueError):
    """Actions of a form, shape or dtype that the action space does not have. Nothing was sent."""


def space_of(spec: SpaceSpec) -> AnySpace:
    """The Gymnasium space of one slot."""
    return _space(spec, 0)


class ValueLayout:
    """Values of one space: leaf arrays `[n, *leaf.shape]` on one side, what Gymnasium's users hold on the other."""

    def __init__(self, spec: SpaceSpec) -> None:
        self.spec = spec
        self.space = space_of(spec)
        self.batch: Batch  # leaves -> batched value; arrays are the leaves themselves, not copies
        self.row: Row  # leaves, b -> the value of one slot, in memory of its own
        self.batch, self.row, self._unbatch, _ = _codec(spec, 0, 0)

    def leaves_of(self, value: Any, num: int) -> list[Array]:
        """Leaf arrays `[num, *leaf.shape]` of a batched value; ActionError where it does not fit."""
        return self._unbatch(value, num)

    def zeros(self, num: int) -> list[Array]:
        """Leaves before anything has arrived; zeros as in Gymnasium, which need not be members of the space."""
        return [np.zeros((num, *leaf.shape), leaf.dtype) for leaf in self.spec.leaves]


# --------------------------------------------------------------------------------------------------------------- spaces


def _space(spec: SpaceSpec, index: int) -> AnySpace:
    node = spec.nodes[index]
    if node.kind == pb.DICT:
        return spaces.Dict({spec.nodes[child].key: _space(spec, child) for child in spec.children[index]})
    if node.kind == pb.TUPLE:
        return spaces.Tuple([_space(spec, child) for child in spec.children[index]])
    if node.kind == pb.DISCRETE:
        return spaces.Discrete(node.n, start=node.start, dtype=node.dtype)
    if node.kind == pb.MULTI_DISCRETE:
        assert node.nvec is not None
        return spaces.MultiDiscrete(node.nvec, dtype=node.dtype, start=node.nvec_start)
    if node.kind == pb.MULTI_BINARY:
        # Gymnasium tells MultiBinary(5) from MultiBinary((5,)); a shape of one axis is far more often the former.
        return spaces.MultiBinary(node.shape[0] if len(node.shape) == 1 else node.shape)
    if node.kind == pb.TEXT:
        return spaces.Text(node.max_length, min_length=node.min_length, charset=node.charset)
    return _box(node)


def _box(node: Node) -> AnySpace:
    if node.dtype.kind == "f":
        low, high = -np.inf, np.inf
    elif node.dtype.kind == "b":
        low, high = 0, 1
    else:
        low, high = np.iinfo(node.dtype).min, np.iinfo(node.dtype).max
    return spaces.Box(
        np.full(node.shape, low, node.dtype) if node.low is None else node.low.copy(),
        np.full(node.shape, high, node.dtype) if node.high is None else node.high.copy(),
        shape=node.shape,
        dtype=node.dtype.type,
    )


# --------------------------------------------------------------------------------------------------------------- values


def _codec(spec: SpaceSpec, index: int, first: int) -> tuple[Batch, Row, Unbatch, int]:
    """Three directions of a node's values whose first leaf is `first`, and the number of the leaf after them."""
    node = spec.nodes[index]
    if node.kind == pb.TEXT:
        return (*_text_codec(spec, index, first), first + 2)
    if node.is_leaf:
        return (*_array_codec(node, spec.leaves[first], first), first + 1)
    keys, parts = [], []
    for child in spec.children[index]:
        keys.append(spec.nodes[child].key)
        *three, first = _codec(spec, child, first)
        parts.append(cast(tuple[Batch, Row, Unbatch], tuple(three)))
    if node.kind == pb.DICT:
        return (*_dict_codec(keys, parts, spec.path(index)), first)
    return (*_tuple_codec(parts, spec.path(index)), first)


Codec = tuple[Batch, Row, Unbatch]


def _array_codec(node: Node, leaf: Leaf, number: int) -> Codec:
    # The environments of Gymnasium give Python ints for Discrete; for arrays the slot gets memory of its own.
    plain = node.kind == pb.DISCRETE

    def batch(leaves: Sequence[Array]) -> Any:
        return leaves[number]

    def row(leaves: Sequence[Array], b: int) -> Any:
        return int(leaves[number][b]) if plain else np.array(leaves[number][b])

    def unbatch(value: Any, num: int) -> list[Array]:
        if value.__class__ is np.ndarray and value.dtype == leaf.dtype and value.shape == (num, *leaf.shape):
            return [value]
        return [_fitting(value, leaf, num)]

    return batch, row, unbatch


def _text_codec(spec: SpaceSpec, index: int, number: int) -> Codec:
    node, name = spec.nodes[index], _name(spec.path(index))

    def row(leaves: Sequence[Array], b: int) -> Any:
        return bytes(leaves[number][b, : int(leaves[number + 1][b])]).decode(errors="replace")

    def batch(leaves: Sequence[Array]) -> Any:
        return tuple(row(leaves, b) for b in range(len(leaves[number])))

    def unbatch(value: Any, num: int) -> list[Array]:
        texts = list(value) if isinstance(value, Sequence | np.ndarray) and not isinstance(value, str) else None
        if texts is None or len(texts) != num or not all(isinstance(text, str) for text in texts):
            raise ActionError(f"{name}: a sequence of {num} strings is wanted, not {_describe(value)}")
        data, lengths = np.zeros((num, node.max_bytes), np.uint8), np.zeros(num, np.int32)
        for b, text in enumerate(texts):
            encoded = text.encode()
            if len(encoded) > node.max_bytes:
                raise ActionError(f"{name} of row {b}: {len(text)} characters where {node.max_length} are allowed")
            data[b, : len(encoded)] = np.frombuffer(encoded, np.uint8)
            lengths[b] = len(encoded)
        return [data, lengths]

    return batch, row, unbatch


def _dict_codec(keys: Sequence[str], parts: Sequence[Codec], path: str) -> Codec:
    def batch(leaves: Sequence[Array]) -> Any:
        return {key: part[0](leaves) for key, part in zip(keys, parts, strict=True)}

    def row(leaves: Sequence[Array], b: int) -> Any:
        return {key: part[1](leaves, b) for key, part in zip(keys, parts, strict=True)}

    def unbatch(value: Any, num: int) -> list[Array]:
        if not isinstance(value, Mapping) or any(key not in value for key in keys):
            raise ActionError(
                f"{_name(path)}: a dict of arrays with the keys {list(keys)} is wanted, not {_describe(value)}"
            )
        return [leaf for key, part in zip(keys, parts, strict=True) for leaf in part[2](value[key], num)]

    return batch, row, unbatch


def _tuple_codec(parts: Sequence[Codec], path: str) -> Codec:
    def batch(leaves: Sequence[Array]) -> Any:
        return tuple(part[0](leaves) for part in parts)

    def row(leaves: Sequence[Array], b: int) -> Any:
        return tuple(part[1](leaves, b) for part in parts)

    def unbatch(value: Any, num: int) -> list[Array]:
        if not isinstance(value, Sequence) or len(value) != len(parts):
            raise ActionError(
                f"{_name(path)}: a tuple of {len(parts)} batched values is wanted, not {_describe(value)}"
            )
        return [leaf for item, part in zip(value, parts, strict=True) for leaf in part[2](item, num)]

    return batch, row, unbatch


def _fitting(value: Any, leaf: Leaf, num: int) -> Array:
    """`value` as `[num, *leaf.shape]` of the leaf's dtype: casts within a kind and from int to float, no others."""
    name, wanted = _name(leaf.path), [num, *leaf.shape]
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ActionError(f"{name}: {_describe(value)} is no array of {leaf.dtype}{wanted}: {error}") from None
    if array.shape != tuple(wanted):
        raise ActionError(f"{name} has shape {list(array.shape)}; {num} slots of this action space need {wanted}")
    if array.dtype.kind not in "biuf" or (array.dtype.kind == "f" and leaf.dtype.kind != "f"):
        raise ActionError(f"{name} has dtype {array.dtype}, which does not convert to {leaf.dtype}: cast it yourself")
    with np.errstate(over="ignore", invalid="ignore"):
        cast_array = array.astype(leaf.dtype)
    if leaf.dtype.kind in "biu" and not np.array_equal(cast_array, array):
        raise ActionError(f"{name} has values that {leaf.dtype} cannot hold")
    return cast_array


def _name(path: str) -> str:
    return f"action {path!r}" if path else "the action"


def _describe(value: Any) -> str:
    size = f" of {len(value)}" if hasattr(value, "__len__") and getattr(value, "shape", None) != () else ""
    return f"a {type(value).__name__}{size}"
