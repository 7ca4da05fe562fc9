"""The frame-stack codec: one newest frame a step instead of the whole stack; 4x fewer bytes on Atari.

`StackEncoder` compares each stack with the one before it and sends a row whole wherever it is not
that stack shifted by one frame, so the codec needs no trust in how the frames were stacked. A host that
stacks nothing, but returns newest frames, keeps a `FrameRing` and is read by `FrameEncoder`.

Both ends keep the last stacks in a ring of frames: a step adds one frame to it, and copies none.

Invariant: decode(encode(x)) == x, bit for bit, for any sequence of stacks, resets and finals
(test_any_sequence_of_stacks_survives_the_codec).
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

import numpy as np

from asyncrl.errors import RemoteProtocolError
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.changes import in_words
from asyncrl.wire.spec import LaneSpec
from asyncrl.wire.tensors import Array


class FrameRing:
    """The last stacks `[B, k, ...]`, as k frames `[B, ...]`, oldest first; zeros where nothing was pushed."""

    def __init__(self, num_slots: int, depth: int, frame_shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> None:
        nothing = [np.zeros((num_slots, *frame_shape), dtype) for _ in range(depth)]
        self._frames: deque[Array] = deque(nothing, depth)

    @property
    def frames(self) -> list[Array]:
        """By age, in the ring's own memory."""
        return list(self._frames)

    def push(self, newest: Array) -> None:
        """Shifts every stack by one frame `[B, ...]`, which is the ring's from now on."""
        self._frames.append(newest)

    def put(self, rows: Array, stacks: Array) -> None:
        """Replaces the stacks of `rows` by `[N, k, ...]`."""
        if not len(rows):
            return
        for place, frame in enumerate(self._frames):
            # What was read off the wire cannot be written to.
            own = frame if frame.flags.writeable else frame.copy()
            own[rows] = stacks[:, place]
            self._frames[place] = own

    def stacks(self, rows: Array | slice = slice(None)) -> Array:
        """Those of `rows` `[N, k, ...]`, in memory of their own."""
        picked = [frame[rows] for frame in self._frames]
        out = np.empty((len(picked[0]), len(picked), *picked[0].shape[1:]), picked[0].dtype)
        for place, frame in enumerate(picked):
            out[:, place] = frame
        return out


class Encoder(Protocol):
    """Of the rows of one lane."""

    def encode(self, obs: Array, apart: Array) -> tuple[Array, Array, Array]:
        """Newest frames `[B, 1, ...]`, the rows (u4, ascending) whose whole stack must travel, and those stacks.

        `apart` `[B]` marks rows that always travel whole: what they show does not continue what they showed.
        """
        ...

    def final(self, finals: Array, rows: Array) -> Array:
        """Final observations of `rows` as they travel: newest frames `[R, 1, ...]` where they continue what was sent.

        Call it before `encode` of the same reply.
        """
        ...

    def forget(self) -> None:
        """A reply may not have been sent: with the next one all rows travel whole."""
        ...


class StackEncoder:
    """Reads stacks `[B, k, ...]` and remembers the last ones that were sent."""

    def __init__(self) -> None:
        self._ring: FrameRing | None = None

    def encode(self, obs: Array, apart: Array) -> tuple[Array, Array, Array]:
        """See `Encoder`."""
        whole = apart.astype(np.bool_)
        if self._ring is None:
            self._ring = FrameRing(len(obs), obs.shape[1], obs.shape[2:], obs.dtype)
            whole[:] = True
        # A copy: the host writes into what it returned.
        self._ring.push(obs[:, -1].copy())
        for place, frame in enumerate(self._ring.frames[:-1]):
            whole |= (in_words(obs[:, place]) != in_words(frame)).any(axis=1)
        rows = np.flatnonzero(whole).astype("<u4")
        stacks = obs[rows]
        self._ring.put(rows, stacks)
        return obs[:, -1:], rows, stacks

    def final(self, finals: Array, rows: Array) -> Array:
        """See `Encoder`."""
        if self._ring is None:
            return finals
        for place, frame in enumerate(self._ring.frames[1:]):
            if not np.array_equal(in_words(finals[:, place]), in_words(frame[rows])):
                return finals
        return finals[:, -1:]

    def forget(self) -> None:
        """See `Encoder`."""
        self._ring = None


class FrameEncoder:
    """Reads newest frames `[B, 1, ...]` of a host that keeps the stacks in `ring`: there is nothing to compare.

    Final observations are whole stacks here as well: by then the ring may have begun anew.
    """

    def __init__(self, ring: FrameRing) -> None:
        self._ring = ring
        self._began = False

    def encode(self, obs: Array, apart: Array) -> tuple[Array, Array, Array]:
        """See `Encoder`."""
        rows = np.flatnonzero(apart | (not self._began)).astype("<u4")
        self._began = True
        return obs, rows, self._ring.stacks(rows)

    def final(self, finals: Array, rows: Array) -> Array:
        """See `Encoder`."""
        return finals[:, -1:] if self._began else finals

    def forget(self) -> None:
        """See `Encoder`."""
        self._began = False


class StackDecoder:
    """Rebuilds the stacks of one lane."""

    def __init__(self, num_slots: int, depth: int, frame_shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> None:
        self._ring = FrameRing(num_slots, depth, frame_shape, dtype)
        self._known = np.zeros(num_slots, np.bool_)

    def final(self, newest: Array, rows: Array) -> Array:
        """Whole final stacks `[R, k, ...]`; call it before `decode` of the same reply."""
        if not self._known[rows].all():
            raise RemoteProtocolError("a final frame for a slot whose stack was never sent")
        older = [frame[rows] for frame in self._ring.frames[1:]]
        return np.stack([*older, newest[:, 0]], axis=1)

    def decode(self, newest: Array, whole_rows: Array, whole: Array) -> Array:
        """Stacks `[B, k, ...]`, an array of the caller's own. `newest` is the decoder's from now on."""
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
