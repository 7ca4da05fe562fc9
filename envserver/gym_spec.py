"""Gymnasium spaces as wire spaces, and their values as leaf arrays: both directions, compiled once per lane.

Invariants: a value that passes `RowWriter.write` reads back equal from the buffers
(test_values_survive_the_buffers); a value of a wrong shape, type or dtype raises BadValue that names
the leaf, and leaves the row as it was (test_a_bad_value_names_its_leaf_and_changes_nothing); an
action of row b is what Gymnasium's own vector environments would pass to `step`
(test_actions_are_those_that_gymnasium_passes).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import Space, spaces

from asyncrl.errors import LocalProtocolError, UnsupportedSpace
from asyncrl.wire import tensors
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.spaces import Node, SpaceSpec
from asyncrl.wire.spec import MAX_MASK_SIZE
from asyncrl.wire.tensors import Array

AnySpace = Space[Any]
if TYPE_CHECKING:
    _Tuple = spaces.Tuple[Any]  # generic to the type checker, and not in every version that we run on
Read = Callable[[Any], list[Array]]  # a value -> its leaf arrays, checked
Unbatch = Callable[[Sequence[Array]], list[Any]]  # leaf arrays [B, ...] -> B values


class BadValue(ValueError):
    """An environment returned something that is not of its own space; the text names the leaf."""


def space_spec(space: AnySpace) -> SpaceSpec:
    """The wire form of a Gymnasium space; UnsupportedSpace names what has none."""
    nodes: list[Node] = []
    _append(nodes, space, -1, "")
    return SpaceSpec(tuple(nodes))


def mask_size(space: AnySpace) -> int:
    """Width of an action mask: choices summed; 0 where actions cannot be masked, and where there are too many."""
    width = 0
    if isinstance(space, spaces.Discrete):
        width = int(space.n)
    elif isinstance(space, spaces.MultiDiscrete):
        width = int(space.nvec.sum())
    return width if width <= MAX_MASK_SIZE else 0


def _append(nodes: list[Node], space: AnySpace, parent: int, key: str) -> None:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        kind = pb.DICT if isinstance(space, spaces.Dict) else pb.TUPLE
        nodes.append(Node(kind, parent, key))
        index = len(nodes) - 1
        for name, child in _children(space):
            _append(nodes, child, index, name)
    else:
        nodes.append(_leaf_node(space, parent, key))


def _children(space: spaces.Dict | _Tuple) -> list[tuple[str, AnySpace]]:
    """Children in wire order."""
    if isinstance(space, spaces.Tuple):
        return [(str(number), child) for number, child in enumerate(space.spaces)]
    for key in space.spaces:
        if "/" in str(key) or str(key) != key:
            raise UnsupportedSpace(f"key {key!r} of a Dict space: keys must be strings without '/'")
    return sorted(space.spaces.items())


def _leaf_node(space: AnySpace, parent: int, key: str) -> Node:
    match space:
        case spaces.Box():
            return Node(pb.BOX, parent, key, _wire_dtype(space, key), space.shape, low=space.low, high=space.high)
        case spaces.Discrete():
            return Node(pb.DISCRETE, parent, key, _wire_dtype(space, key), n=int(space.n), start=int(space.start))
        case spaces.MultiDiscrete():
            start = np.asarray(space.start, np.int64)
            node = Node(pb.MULTI_DISCRETE, parent, key, _wire_dtype(space, key), space.shape)
            return replace(node, nvec=np.asarray(space.nvec, np.int64), nvec_start=start if start.any() else None)
        case spaces.MultiBinary():
            return Node(pb.MULTI_BINARY, parent, key, _wire_dtype(space, key), space.shape)
        case spaces.Text():
            node = Node(pb.TEXT, parent, key, min_length=int(space.min_length), max_length=int(space.max_length))
            return replace(node, charset="".join(sorted(space.character_set)))
    raise UnsupportedSpace(
        f"{_name(space, key)} has no fixed layout; serve Box, Discrete, MultiDiscrete, MultiBinary, Text, Dict or "
        "Tuple spaces"
    )


def _wire_dtype(space: AnySpace, key: str) -> np.dtype[Any]:
    try:
        tensors.code_of(np.dtype(space.dtype))
    except (LocalProtocolError, TypeError) as error:
        raise UnsupportedSpace(f"{_name(space, key)}: {error}") from None
    return np.dtype(space.dtype)


def _name(space: AnySpace, key: str) -> str:
    return f"{type(space).__name__} {key!r}" if key else type(space).__name__


# ------------------------------------------------------------------------------------------- values into leaf arrays


class RowWriter:
    """Writes values of one space into buffers `[B, *leaf.shape]`, one per leaf; `write` is the hot path."""

    def __init__(self, space: AnySpace, buffers: Sequence[Array]) -> None:
        self.write: Callable[[int, Any], None]
        if isinstance(space, spaces.Box):
            self.write = _box_writer(space, buffers[0])
        else:
            self.write = _writer(reader(space), buffers)


def buffers_for(spec: SpaceSpec, rows: int) -> list[Array]:
    """Zeroed arrays `[rows, *leaf.shape]`, one per leaf."""
    return [np.zeros((rows, *leaf.shape), leaf.dtype) for leaf in spec.leaves]


def reader(space: AnySpace, path: str = "") -> Read:
    """A function from a value of `space` to its leaf arrays in wire order."""
    if isinstance(space, spaces.Tuple):
        return _tuple_reader([reader(child, _join(path, key)) for key, child in _children(space)], path)
    if isinstance(space, spaces.Dict):
        return _dict_reader([(key, reader(child, _join(path, key))) for key, child in _children(space)], path)
    if isinstance(space, spaces.Text):
        return _text_reader(space, path)
    return lambda value: [_leaf_array(value, np.dtype(space.dtype), space.shape or (), path)]


def _join(path: str, key: str) -> str:
    return f"{path}/{key}" if path else key


def _writer(read: Read, buffers: Sequence[Array]) -> Callable[[int, Any], None]:
    def write(row: int, value: Any) -> None:
        # All leaves are checked before the first is written: a bad one leaves the row whole.
        for buffer, array in zip(buffers, read(value), strict=True):
            buffer[row] = array

    return write


def _box_writer(space: spaces.Box, buffer: Array) -> Callable[[int, Any], None]:
    dtype, shape = buffer.dtype, space.shape

    def write(row: int, value: Any) -> None:
        if value.__class__ is not np.ndarray or value.dtype is not dtype or value.shape != shape:
            value = _leaf_array(value, dtype, shape, "")
        buffer[row] = value

    return write


def _leaf_array(value: Any, dtype: np.dtype[Any], shape: tuple[int, ...], path: str) -> Array:
    name = f"leaf {path!r}" if path else "the value"
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise BadValue(f"{name}: {type(value).__name__} is no array of {dtype}{list(shape)}: {error}") from None
    if array.shape != shape:
        raise BadValue(f"{name} has shape {list(array.shape)} where the space says {list(shape)}")
    # What np.stack(..., out=) allows, as in Gymnasium: float64 for float32, but no float for an integer.
    if array.dtype.kind not in "biuf" or not (np.can_cast(array.dtype, dtype, "same_kind") or _fits(array, dtype)):
        raise BadValue(f"{name} has dtype {array.dtype} where the space says {dtype}")
    return array


def _fits(array: Array, dtype: np.dtype[Any]) -> bool:
    """Whether signed integers, which is what Python's are to NumPy, are values of an unsigned dtype."""
    if array.dtype.kind != "i" or dtype.kind != "u" or not array.size:
        return False
    return int(array.min()) >= 0 and int(array.max()) <= int(np.iinfo(dtype).max)


def _tuple_reader(children: Sequence[Read], path: str) -> Read:
    def read(value: Any) -> list[Array]:
        if not isinstance(value, tuple | list) or len(value) != len(children):
            size = f" of {len(value)}" if isinstance(value, tuple | list) else ""
            raise BadValue(f"{path or 'the value'} is a {type(value).__name__}{size}, no tuple of {len(children)}")
        return [array for child, part in zip(children, value, strict=True) for array in child(part)]

    return read


def _dict_reader(children: Sequence[tuple[str, Read]], path: str) -> Read:
    def read(value: Any) -> list[Array]:
        try:
            return [array for key, child in children for array in child(value[key])]
        except (KeyError, IndexError, TypeError) as error:
            keys = [key for key, _ in children]
            raise BadValue(f"{path or 'the value'} is no dict with the keys {keys}: {error!r}") from None

    return read


def _text_reader(space: spaces.Text, path: str) -> Read:
    width = _leaf_node(space, -1, "").max_bytes

    def read(value: Any) -> list[Array]:
        if not isinstance(value, str):
            raise BadValue(f"leaf {path!r} is a {type(value).__name__}, no str")
        data = value.encode()
        if len(data) > width:
            raise BadValue(f"leaf {path!r} takes {len(data)} bytes where the space allows {width}")
        padded = np.zeros(width, np.uint8)
        padded[: len(data)] = np.frombuffer(data, np.uint8)
        return [padded, np.asarray(len(data), np.int32)]

    return read


# ------------------------------------------------------------------------------------------- leaf arrays into values


def unbatcher(space: AnySpace) -> Unbatch:
    """A function from leaf arrays `[B, *shape]` to the B values that `env.step` expects, which the env may keep."""
    if isinstance(space, spaces.Tuple):
        parts = _parts(space)
        return lambda leaves: list(zip(*(part(leaves[cut]) for cut, part in parts.values()), strict=True))
    if isinstance(space, spaces.Dict):
        parts = _parts(space)
        # The order of the space, which need not be that of the wire.
        order = list(space.spaces)

        def unbatch(leaves: Sequence[Array]) -> list[Any]:
            columns = [parts[key][1](leaves[parts[key][0]]) for key in order]
            return [dict(zip(order, row, strict=True)) for row in zip(*columns, strict=True)]

        return unbatch
    if isinstance(space, spaces.Text):
        return lambda leaves: [
            bytes(data[:length]).decode(errors="replace") for data, length in zip(leaves[0], leaves[1], strict=True)
        ]
    if isinstance(space, spaces.Discrete):
        return lambda leaves: list(leaves[0])
    # Arrays off the wire are read-only and share memory; an environment may write into its action.
    return lambda leaves: list(np.array(leaves[0]))


def _parts(space: spaces.Dict | _Tuple) -> dict[str, tuple[slice, Unbatch]]:
    """By key: which of the container's leaves are the child's, and how it is unbatched."""
    found: dict[str, tuple[slice, Unbatch]] = {}
    begin = 0
    for key, child, count in leaf_counts(space):
        found[key] = (slice(begin, begin + count), unbatcher(child))
        begin += count
    return found


def leaf_counts(space: spaces.Dict | _Tuple) -> list[tuple[str, AnySpace, int]]:
    """A container's children in wire order, each with its number of leaves."""
    return [(key, child, len(space_spec(child).leaves)) for key, child in _children(space)]
