"""Rows of arrays as blocks: which of them have changed, and views of them that stand while the rows go on changing.

A block is so many rows of every column, one after the other: what a file of a checkpoint holds. A *view* is all blocks
as they are now. It copies nothing by itself: whoever is about to write to a block copies it first, for every view that
is still held. So a view costs what changes while it is held, and taking one stops nobody.

Guard: a view's lock holds for its copies, and for the blocks in memory while they are read.

Invariants: a view stays what it was, whatever is written meanwhile and whenever it is read
(test_a_view_stays_what_it_was, test_a_view_is_read_while_rows_are_written); equal keys mean equal bytes
(test_equal_keys_mean_equal_bytes); only blocks that are written to while a view is held are copied
(test_only_what_is_written_to_is_copied).
"""

from __future__ import annotations

import secrets
import threading
import weakref
from collections.abc import Mapping
from typing import Final

import numpy as np

from asyncrl.records import Array

BLOCK_BYTES: Final = 4 << 20  # at most, unless a single row is larger


class Blocks:
    """Of `columns` [num_rows, ...] by name, which are written by one thread."""

    def __init__(self, columns: Mapping[str, Array], num_rows: int) -> None:
        self._columns = columns
        row_bytes = sum(column.nbytes for column in columns.values()) // num_rows
        self.num_rows = min(max(BLOCK_BYTES // max(row_bytes, 1), 1), num_rows)  # of a block; the last may have fewer
        count = -(-num_rows // self.num_rows)
        self._keys = [""] * count
        self._changed = np.zeros(count, np.bool_)  # since the last view
        self._life = secrets.token_hex(8)  # keys of another process are of other bytes
        self._turn = 0
        self._views: weakref.WeakSet[View] = weakref.WeakSet()

    def touch(self, rows: Array) -> None:
        """These rows are about to be written."""
        blocks = rows // self.num_rows
        self._changed[blocks] = True
        for view in list(self._views):
            view.keep(np.unique(blocks).tolist())

    def view(self) -> View:
        """All blocks as they are now."""
        self._turn += 1
        for block in self._changed.nonzero()[0].tolist():
            self._keys[block] = f"{self._life}.{self._turn}.{block}"
        self._changed[:] = False
        view = View(self, tuple(self._keys))
        self._views.add(view)
        return view

    def read(self, block: int) -> bytes:
        """A copy."""
        return b"".join(part.reshape(-1).view(np.uint8).data for part in self._parts(block))

    def load(self, keys: tuple[str, ...], block: int, data: bytes) -> None:
        """The block becomes what it was in a view with these keys. ValueError: it does not fit."""
        parts = [part for part in self._parts(block) if part.size]  # frombuffer refuses to make empty ones
        if len(keys) != len(self._keys) or len(data) != sum(part.nbytes for part in parts):
            raise ValueError("blocks of other rows")
        begin = 0
        for part in parts:
            part[...] = np.frombuffer(data, part.dtype, part.size, begin).reshape(part.shape)
            begin += part.nbytes
        self._keys[block] = keys[block]

    def _parts(self, block: int) -> list[Array]:
        rows = slice(block * self.num_rows, (block + 1) * self.num_rows)
        return [column[rows] for column in self._columns.values()]


class View:
    """The blocks as they were. `keys`, by block: what has the same key has the same bytes; "" has never been written.

    May be read by any thread. Copies are kept until nobody holds it.
    """

    def __init__(self, blocks: Blocks, keys: tuple[str, ...]) -> None:
        self.keys = keys
        self._blocks = blocks
        self._copies: dict[int, bytes] = {}
        self._lock = threading.Lock()

    @property
    def num_copied(self) -> int:
        return len(self._copies)

    def keep(self, blocks: list[int]) -> None:
        """They are about to be written to."""
        with self._lock:
            for block in blocks:
                if self.keys[block] and block not in self._copies:
                    self._copies[block] = self._blocks.read(block)

    def read(self, block: int) -> bytes:
        """Its bytes."""
        with self._lock:
            copy = self._copies.get(block)
            return self._blocks.read(block) if copy is None else copy
