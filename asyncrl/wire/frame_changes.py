"""What of a picture is not as it was a frame ago: of most Atari games some hundred of 7,056 bytes. All that travels.

Frames are seen as words. A bit for each says whether it changed, and the words that did follow in order. The other end
knows the frames before; so lengths follow from the spec, and no message makes it take more memory than they do.

Invariants: `changed(before, changes(before, frames)) == frames`, bit for bit
(test_frames_are_rebuilt_from_what_changed), which never is more bytes than the frames themselves
(test_changes_are_fewer_bytes_than_frames); bits or words of another length are refused
(test_changes_that_do_not_fit_are_refused).
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from asyncrl.errors import RemoteProtocolError
from asyncrl.wire import tensors
from asyncrl.wire.tensors import Array

SMALLEST_FRAME: Final = 64  # bytes: fewer are no picture, and not worth the looking


class FrameChanges(NamedTuple):
    """As they travel."""

    bits: bytes  # one a word, lowest first
    words: bytes


def in_words(frames: Array) -> Array:
    """Frames `[N, ...]` as bits, where -0.0 is not 0.0 and NaN is NaN: `[N, W]` words, as wide as a frame allows.

    A view of frames that lie in one piece each.
    """
    flat = frames.reshape(len(frames), math.prod(frames.shape[1:]))
    if flat.strides[1] != flat.itemsize:
        flat = np.ascontiguousarray(flat)
    size = flat.shape[1] * flat.itemsize
    word = next(width for width in (8, 4, 2, 1) if size % width == 0) if size else flat.itemsize
    return flat.view(f"u{word}")


def changes(before: Array, frames: Array, apart: Array) -> FrameChanges | None:
    """From frames `[B, ...]` to the next ones; None where these are no longer themselves.

    Rows `apart` (u4) count as unchanged: what they show travels in another way.
    """
    words = in_words(frames)
    # In another order of bytes they are not what the other end has.
    if words[:1].nbytes < SMALLEST_FRAME or frames.dtype != frames.dtype.newbyteorder("<"):
        return None
    differs = words != in_words(before)
    differs[apart] = False
    if np.count_nonzero(differs) * words.itemsize - (-differs.size // 8) >= words.nbytes:
        return None
    return FrameChanges(np.packbits(differs, bitorder="little").tobytes(), words[differs].tobytes())


def changed(before: Array, change: FrameChanges) -> Array:
    """The frames after those `before`, in memory of their own."""
    frames = before.copy()
    words = in_words(frames)
    if len(change.bits) != -(-words.size // 8):
        raise RemoteProtocolError(f"changed_bits: {len(change.bits)} bytes for {words.size} words of frames")
    bits = np.unpackbits(np.frombuffer(change.bits, np.uint8), count=words.size, bitorder="little")
    count = int(np.count_nonzero(bits)) * words.itemsize // frames.itemsize
    new = tensors.from_bytes(change.words, frames.dtype, (count,), "changed_words")
    words[bits.view(np.bool_).reshape(words.shape)] = new.view(words.dtype)
    return frames
