"""Of observations only what is not as it was one reply before: of most Atari games some hundred of 7,056 bytes a step.

An array is seen as words. A bit for each says whether it changed; the words that did follow in order. Both ends keep
the array of the reply before, so lengths follow from the spec, and no message makes the other end take more memory.
Where looking does not pay, as with cameras of the real world, it is left for longer and longer.

Invariants: what is rebuilt is what was encoded, bit for bit, for any sequence of arrays, also whole ones
(test_any_sequence_survives_the_codec); changes never are more bytes than the array
(test_changes_are_fewer_bytes_than_the_array); bits or words of another length, and changes of what never came, are
refused (test_changes_that_do_not_fit_are_refused).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from asyncrl.errors import RemoteProtocolError
from asyncrl.wire import tensors
from asyncrl.wire.tensors import Array

SMALLEST_ROW: Final = 64  # bytes: fewer are no picture, and not worth the looking
LONGEST_REST: Final = 63  # replies


class Change(NamedTuple):
    """As it travels."""

    bits: bytes  # one a word, lowest first
    words: bytes


def in_words(rows: Array) -> Array:
    """Rows `[N, ...]` as bits, where -0.0 is not 0.0 and NaN is NaN: `[N, W]` words, as wide as a row allows.

    A view of rows that lie in one piece each.
    """
    flat = rows.reshape(len(rows), math.prod(rows.shape[1:]))
    if flat.strides[1] != flat.itemsize:
        flat = np.ascontiguousarray(flat)
    size = flat.shape[1] * flat.itemsize
    word = next(width for width in (8, 4, 2, 1) if size % width == 0) if size else flat.itemsize
    return flat.view(f"u{word}")


@dataclass(slots=True)
class _Sent:
    """Of one leaf: what the other end has, and how it went of late."""

    rows: Array | None = None
    rest: int = 0  # replies that are sent without looking
    next_rest: int = 0  # after another look that does not pay


class ChangeEncoder:
    """Of the observation leaves of one lane, as they travel: of a stack its newest frames."""

    def __init__(self) -> None:
        self._leaves: dict[int, _Sent] = {}

    def encode(self, leaf: int, rows: Array) -> Change | None:
        """Of rows `[B, ...]`; None: they have to travel whole."""
        # In another order of bytes they are not what the other end has.
        if rows[:1].nbytes < SMALLEST_ROW or rows.dtype != rows.dtype.newbyteorder("<"):
            return None
        sent = self._leaves.setdefault(leaf, _Sent())
        if sent.rest:
            sent.rest -= 1
            return None
        change = None if sent.rows is None else _change(sent.rows, rows)
        if change is not None:
            sent.next_rest = 0
            return change
        if sent.rows is not None:
            sent.rest, sent.next_rest = sent.next_rest, min(2 * sent.next_rest + 1, LONGEST_REST)
        # A copy: the host writes into what it returned.
        sent.rows = None if sent.rest else np.array(rows, order="C")
        return None

    def forget(self) -> None:
        """A reply may not have been sent: the next one is whole."""
        self._leaves.clear()


def _change(before: Array, rows: Array) -> Change | None:
    """Writes the rows into `before`, except where their changes are not fewer bytes: None."""
    words, old = in_words(rows), in_words(before)
    differs = words != old
    bits_size = -(-differs.size // 8)
    if bits_size + np.count_nonzero(differs) * words.itemsize >= words.nbytes:
        return None
    new = words[differs]
    old[differs] = new
    return Change(np.packbits(differs, bitorder="little").tobytes(), new.tobytes())


class ChangeDecoder:
    """Rebuilds the leaves of one lane."""

    def __init__(self) -> None:
        self._rows: dict[int, Array] = {}

    def came(self, leaf: int, rows: Array) -> None:
        """A leaf came whole; nobody writes to these rows."""
        if rows[:1].nbytes >= SMALLEST_ROW:
            self._rows[leaf] = rows

    def changed(self, leaf: int, change: Change) -> Array:
        """The rows of a leaf, in memory of the caller's own."""
        rows = self._rows.get(leaf)
        if rows is None:
            raise RemoteProtocolError(f"changes of leaf {leaf}, which never came whole")
        if not rows.flags.writeable:
            rows = rows.copy()
        words = in_words(rows)
        if len(change.bits) != -(-words.size // 8):
            raise RemoteProtocolError(f"changed bits: {len(change.bits)} bytes for {words.size} words")
        bits = np.unpackbits(np.frombuffer(change.bits, np.uint8), count=words.size, bitorder="little")
        count = int(np.count_nonzero(bits)) * words.itemsize // rows.itemsize
        new = tensors.from_bytes(change.words, rows.dtype, (count,), "changed words")
        words[bits.view(np.bool_).reshape(words.shape)] = new.view(words.dtype)
        self._rows[leaf] = rows
        return rows.copy()
