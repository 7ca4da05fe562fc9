"""Batched values of Gymnasium's vector environments: observations, actions and infos as leaf arrays and columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from asyncrl.wire.infos import MAX_INFO_BYTES, InfoColumn
from asyncrl.wire.tensors import Array
from envserver.gym_spec import AnySpace, BadValue, leaf_counts
from envserver.info_columns import WIRE_DTYPES


def read_batch(space: AnySpace, value: Any, num_slots: int, path: str = "") -> list[Array]:
    """Leaf arrays `[num_slots, *shape]` of a batch of values of `space`; no copies where the dtype fits."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        found: list[Array] = []
        for key, child, _ in leaf_counts(space):
            part = value[key] if isinstance(space, spaces.Dict) else value[int(key)]
            found += read_batch(child, part, num_slots, f"{path}/{key}" if path else key)
        return found
    array = np.asarray(value)
    wanted = (num_slots, *(space.shape or ()))
    if array.shape != wanted:
        name = f"leaf {path!r}" if path else "the observation"
        raise BadValue(f"{name} has shape {list(array.shape)} where the space says {list(wanted)}")
    return [array if array.dtype == space.dtype else array.astype(space.dtype, casting="same_kind")]


def action_batch(space: AnySpace, leaves: Sequence[Array]) -> Any:
    """The batch of actions that a vector environment's `step` takes; the environment may write into it."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return leaves[0].copy()
    parts: dict[str, Any] = {}
    begin = 0
    for key, child, count in leaf_counts(space):
        parts[key] = action_batch(child, leaves[begin : begin + count])
        begin += count
    return parts if isinstance(space, spaces.Dict) else tuple(parts.values())


def has_text(space: AnySpace) -> bool:
    """Whether a leaf is a string: those have no batched form."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return any(has_text(child) for _, child, _ in leaf_counts(space))
    return isinstance(space, spaces.Text)


def info_columns(infos: Mapping[str, Any], num_slots: int, skip: frozenset[str]) -> tuple[list[InfoColumn], int]:
    """Columns of a vector environment's infos (`key` beside the mask `_key`), and how many could not travel."""
    found: list[InfoColumn] = []
    dropped, room = 0, MAX_INFO_BYTES
    for key, value, present in _entries(infos, "", 8):
        if key in skip:
            continue
        rows = np.arange(num_slots, dtype="<u4") if present is None else np.flatnonzero(present).astype("<u4")
        array = value if isinstance(value, np.ndarray) else np.zeros(0)
        size = len(key) + (array.nbytes // num_slots)
        if array.shape[:1] != (num_slots,) or array.dtype not in WIRE_DTYPES or size > room:
            dropped += 1
            continue
        room -= size
        found.append(InfoColumn(key, rows, array if present is None else array[rows]))
    return found, dropped


def _entries(infos: Mapping[str, Any], prefix: str, depth: int) -> list[tuple[str, Any, Any]]:
    """(joined key, values, which rows have one or None for all)."""
    found: list[tuple[str, Any, Any]] = []
    for key, value in infos.items():
        if key.startswith("_") and key[1:] in infos:
            continue
        if isinstance(value, dict) and depth:
            found += _entries(value, f"{prefix}{key}/", depth - 1)
        else:
            found.append((prefix + key, value, infos.get(f"_{key}")))
    return found
