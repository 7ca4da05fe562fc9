"""The frame-stack codec: one newest frame a step instead of the whole stack; 4x fewer bytes on Atari.

The encoder compares each stack with the one before it and sends a row whole wherever it is not
that stack shifted by one frame, so the codec needs no trust in how the frames were stacked.

Invariant: decode(encode(x)) == x for any sequence of stacks, resets and finals
(test_any_sequence_of_stacks_survives_the_codec).
"""

from __future__ import annotations

import numpy as np

from asyncrl.errors import RemoteProtocolError
from asyncrl.wire.tensors import Array


class StackEncoder:
    """Remembers the last stacks `[B, k, ...]` that were sent."""

    def __init__(self) -> None:
        self._last: Array | None = None

    def encode(self, stacks: Array, first: Array) -> tuple[Array, Array]:
        """Newest frames `[B, 1, ...]`, and the rows (u4, ascending) whose whole stack must travel.

        `first` `[B]` marks rows that always travel whole.
        """
        whole = first.astype(np.bool_)
        last = self._last
        if last is None:
            whole[:] = True
        else:
            whole |= (stacks[:, :-1] != last[:, 1:]).reshape(len(stacks), -1).any(axis=1)
        self._last = stacks.copy()
        return stacks[:, -1:], np.flatnonzero(whole).astype("<u4")

    def final(self, finals: Array, rows: Array) -> Array:
        """Final stacks `[R, k, ...]` of `rows` as they travel: newest frames where they continue what was sent.

        Call it before `encode` of the same reply.
        """
        last = self._last
        if last is not None and np.array_equal(finals[:, :-1], last[rows, 1:]):
            return finals[:, -1:]
        return finals


class StackDecoder:
    """Rebuilds the stacks of one lane."""

    def __init__(self, num_slots: int, depth: int, frame_shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> None:
        self._stacks = np.zeros((num_slots, depth, *frame_shape), dtype)
        self._known = np.zeros(num_slots, np.bool_)

    def final(self, newest: Array, rows: Array) -> Array:
        """Whole final stacks `[R, k, ...]`; call it before `decode` of the same reply."""
        if not self._known[rows].all():
            raise RemoteProtocolError("a final frame for a slot whose stack was never sent")
        return np.concatenate([self._stacks[rows, 1:], newest], axis=1)

    def decode(self, newest: Array, whole_rows: Array, whole: Array) -> Array:
        """Stacks `[B, k, ...]`, an array of the caller's own."""
        self._known[whole_rows] = True
        if not self._known.all():
            raise RemoteProtocolError("a single frame for a slot whose stack was never sent")
        self._stacks = np.concatenate([self._stacks[:, 1:], newest], axis=1)
        self._stacks[whole_rows] = whole
        return self._stacks.copy()
