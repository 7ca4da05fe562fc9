"""Infos of single environments as columns: what is a number travels, the rest is dropped and counted.

dtypes are those that `gymnasium.vector.VectorEnv` would give (int -> i8, float -> f8, bool -> b1,
arrays and NumPy scalars their own), except that a key whose rows differ in dtype gets one that
holds them all, where Gymnasium truncates.

Invariant: whatever an environment puts into its info, at most MAX_INFO_BYTES of keys and values
per slot and step travel, and collecting it ends (test_hostile_infos_are_dropped_and_counted).
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, Final

import numpy as np

from asyncrl.wire.infos import MAX_INFO_BYTES, InfoColumn

MAX_ENTRIES: Final = 256  # of one info, nested ones included
MAX_DEPTH: Final = 8
MAX_KEY: Final = 128
_SCALARS: Final[dict[type, np.dtype[Any]]] = {
    int: np.dtype(np.int64),
    float: np.dtype(np.float64),
    bool: np.dtype(np.bool_),
}
WIRE_DTYPES: Final = frozenset(map(np.dtype, ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")))
_INT64: Final = np.iinfo(np.int64)
_NOTHING: Final[frozenset[str]] = frozenset()


class _Column:
    __slots__ = ("dtype", "mixed", "rows", "shape", "values")

    def __init__(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self.dtype, self.shape = dtype, shape
        self.mixed = False
        self.rows: list[int] = []
        self.values: list[Any] = []


class InfoCollector:
    """The infos of one reply. Rows are added in ascending order."""

    def __init__(self) -> None:
        self.dropped = 0
        self._columns: dict[str, _Column] = {}
        self._bytes = 0
        self._entries = 0

    def add(self, row: int, info: dict[Any, Any], skip: Collection[str] = _NOTHING) -> None:
        """One slot's info; top-level keys in `skip` are neither sent nor counted."""
        self._bytes = self._entries = 0
        self._add(row, info, "", 0, skip)

    def discard(self, row: int) -> None:
        """Take back what was added last, if it was for `row`."""
        for column in self._columns.values():
            if column.rows and column.rows[-1] == row:
                column.rows.pop()
                column.values.pop()

    def columns(self) -> list[InfoColumn]:
        """One column per key, in order of first appearance."""
        if any(column.mixed for column in self._columns.values()):
            self._count_again()
        found = []
        for key, column in self._columns.items():
            if column.rows:
                found.append(InfoColumn(key, np.array(column.rows, "<u4"), np.array(column.values, column.dtype)))
        return found

    def _count_again(self) -> None:
        """A dtype that holds those of all rows may be wider than each of them: i4 and f4 become f8."""
        taken: dict[int, int] = {}  # bytes, by row
        for key, column in sorted(self._columns.items(), key=lambda item: item[1].mixed):
            if column.mixed:
                column.dtype, column.mixed = np.array(column.values).dtype, False
            size = len(key) + column.dtype.itemsize * math.prod(column.shape)
            if any(taken.get(row, 0) + size > MAX_INFO_BYTES for row in column.rows):
                self.dropped += len(column.rows)
                del self._columns[key]
                continue
            for row in column.rows:
                taken[row] = taken.get(row, 0) + size

    def _add(self, row: int, info: dict[Any, Any], prefix: str, depth: int, skip: Collection[str]) -> None:
        for count, (key, value) in enumerate(info.items()):
            if self._entries >= MAX_ENTRIES:
                self.dropped += len(info) - count
                return
            if key in skip:
                continue
            self._entries += 1
            dtype = _SCALARS.get(value.__class__)
            if isinstance(value, dict) and depth < MAX_DEPTH and isinstance(key, str):
                self._add(row, value, f"{prefix}{key[:MAX_KEY]}/", depth + 1, _NOTHING)
            elif not self._put(row, key, value, prefix, dtype):
                self.dropped += 1

    def _put(self, row: int, key: Any, value: Any, prefix: str, dtype: np.dtype[Any] | None) -> bool:
        """False for what cannot travel."""
        shape: tuple[int, ...] = ()
        if dtype is None:
            if not isinstance(value, np.ndarray | np.generic) or value.dtype not in WIRE_DTYPES:
                return False
            dtype, shape = value.dtype, value.shape
            if value.nbytes > MAX_INFO_BYTES:
                return False
            value = np.array(value)  # the environment may go on writing into its array
        elif dtype.kind == "i" and not _INT64.min <= value <= _INT64.max:
            return False
        column = self._columns.get(key if not prefix else prefix + key) if isinstance(key, str) else None
        if column is None:
            column = self._new_column(key, prefix, dtype, shape)
        if column is None or column.shape != shape or (column.rows and column.rows[-1] == row):
            return False
        size = len(prefix) + len(key) + dtype.itemsize * int(np.prod(shape, dtype=np.int64) if shape else 1)
        if self._bytes + size > MAX_INFO_BYTES:
            return False
        self._bytes += size
        column.mixed |= column.dtype is not dtype
        column.rows.append(row)
        column.values.append(value)
        return True

    def _new_column(self, key: Any, prefix: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> _Column | None:
        if not isinstance(key, str) or not key or len(prefix) + len(key) > MAX_KEY:
            return None
        try:
            key.encode()
        except UnicodeEncodeError:  # a lone surrogate has no UTF-8
            return None
        column = self._columns[prefix + key] = _Column(dtype, shape)
        return column
