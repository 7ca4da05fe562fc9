"""The frame-stack codec: one newest frame a step instead of the whole stack; 4x fewer bytes on Atari.

The encoder compares each stack with the one before it and sends a row whole wherever it is not
that stack shifted by one frame, so the codec needs no trust in how the frames were stacked.

Both ends keep the last stacks in a ring of frames: a step writes one frame of it, not all of them.

Invariant: decode(encode(x)) == x, bit for bit, for any sequence of stacks, resets and finals
(test_any_sequence_of_stacks_survives_the_codec).
"""

from __future__ import annotations

import math

import numpy as np

from asyncrl.errors import RemoteProtocolError
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.spec import LaneSpec
from asyncrl.wire.tensors import Array


class _Ring:
    """The last stacks `[B, k, ...]`, as k frames `[B, ...]` of which `_newest` is the latest."""

    def __init__(self, num_slots: int, depth: int, frame_shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> None:
        self.depth = depth
        self._frames = np.zeros((depth, num_slots, *frame_shape), dtype)
        self._newest = depth - 1

    def frame(self, place: int) -> Array:
        """Frame `place` of the stacks `[B, ...]`, 0 being the oldest; the ring's own memory."""
        return self._frames[(self._newest + 1 + place) % self.depth]  # type: ignore[no-any-return]

    def push(self, newest: Array) -> None:
        """Shifts every stack by one frame `[B, ...]`."""
        self._newest = (self._newest + 1) % self.depth
        self._frames[self._newest] = newest

    def put(self, rows: Array, stacks: Array) -> None:
        """Replaces the stacks of `rows` by `[N, k, ...]`."""
        for place in range(self.depth):
            self.frame(place)[rows] = stacks[:, place]

    def stacks(self) -> Array:
        """All of them `[B, k, ...]`, in memory of their own."""
        num_slots, *frame_shape = self._frames.shape[1:]
        out = np.empty((num_slots, self.depth, *frame_shape), self._frames.dtype)
        for place in range(self.depth):
            out[:, place] = self.frame(place)
        return out


def _bits(frames: Array) -> Array:
    """`[N, words]`, for comparing: as bits, where -0.0 is not 0.0 and NaN is NaN, in words, which are fewer."""
    flat = frames.reshape(len(frames), math.prod(frames.shape[1:]))
    if flat.strides[1] != flat.itemsize:
        flat = np.ascontiguousarray(flat)
    size = flat.shape[1] * flat.itemsize
    word = next(width for width in (8, 4, 2, 1) if size % width == 0) if size else flat.itemsize
    return flat.view(f"u{word}")


class StackEncoder:
    """Remembers the last stacks `[B, k, ...]` that were sent."""

    def __init__(self) -> None:
        self._ring: _Ring | None = None

    def encode(self, stacks: Array, first: Array) -> tuple[Array, Array]:
        """Newest frames `[B, 1, ...]`, and the rows (u4, ascending) whose whole stack must travel.

        `first` `[B]` marks rows that always travel whole.
        """
        whole = first.astype(np.bool_)
        if self._ring is None:
            self._ring = _Ring(len(stacks), stacks.shape[1], stacks.shape[2:], stacks.dtype)
            whole[:] = True
        self._ring.push(stacks[:, -1])
        for place in range(self._ring.depth - 1):
            whole |= (_bits(stacks[:, place]) != _bits(self._ring.frame(place))).any(axis=1)
        rows = np.flatnonzero(whole).astype("<u4")
        self._ring.put(rows, stacks[rows])
        return stacks[:, -1:], rows

    def final(self, finals: Array, rows: Array) -> Array:
        """Final stacks `[R, k, ...]` of `rows` as they travel: newest frames where they continue what was sent.

        Call it before `encode` of the same reply.
        """
        ring = self._ring
        if ring is None:
            return finals
        for place in range(ring.depth - 1):
            if not np.array_equal(_bits(finals[:, place]), _bits(ring.frame(place + 1)[rows])):
                return finals
        return finals[:, -1:]


class StackDecoder:
    """Rebuilds the stacks of one lane."""

    def __init__(self, num_slots: int, depth: int, frame_shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> None:
        self._ring = _Ring(num_slots, depth, frame_shape, dtype)
        self._known = np.zeros(num_slots, np.bool_)

    def final(self, newest: Array, rows: Array) -> Array:
        """Whole final stacks `[R, k, ...]`; call it before `decode` of the same reply."""
        if not self._known[rows].all():
            raise RemoteProtocolError("a final frame for a slot whose stack was never sent")
        older = [self._ring.frame(place)[rows] for place in range(1, self._ring.depth)]
        return np.stack([*older, newest[:, 0]], axis=1)

    def decode(self, newest: Array, whole_rows: Array, whole: Array) -> Array:
        """Stacks `[B, k, ...]`, an array of the caller's own."""
        known = self._known.copy()
        known[whole_rows] = True
        if not known.all():
            raise RemoteProtocolError("a single frame for a slot whose stack was never sent")
        self._known = known
        self._ring.push(newest[:, 0])
        self._ring.put(whole_rows, whole)
        return self._ring.stacks()


def agreed_decoder(opened: pb.Opened, spec: LaneSpec, num_slots: int) -> StackDecoder | None:
    """For the rows of a lane that opened so; None: its stacks travel whole."""
    if pb.FRAME_STACK not in opened.features or spec.stack_leaf is None:
        return None
    leaf = spec.observation.leaves[spec.stack_leaf]
    return StackDecoder(num_slots, leaf.shape[0], leaf.shape[1:], leaf.dtype)
