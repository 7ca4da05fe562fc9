"""Changes of frames against a loop over their words, and how many bytes they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.errors import RemoteProtocolError
from asyncrl.wire.frame_changes import SMALLEST_FRAME, FrameChanges, changed, changes
from asyncrl.wire.tensors import Array
from tests.unit.wire.strategies import DTYPES, random_array, seeds

NOBODY = np.zeros(0, "<u4")


def naively_changed(before: Array, change: FrameChanges) -> bytes:
    """The frames after `before`, word by word."""
    data, words = bytearray(before.tobytes()), bytearray(change.words)
    size = before[:1].nbytes
    width = next(width for width in (8, 4, 2, 1) if size % width == 0)
    for number in range(len(data) // width):
        if change.bits[number // 8] >> number % 8 & 1:
            data[number * width : (number + 1) * width] = words[:width]
            del words[:width]
    assert not words
    return bytes(data)


@settings(max_examples=150)
@given(
    seeds,
    st.sampled_from(DTYPES),
    st.integers(1, 4),
    st.lists(st.integers(1, 12), min_size=1, max_size=3).map(tuple),
    st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0]),
)
def test_frames_are_rebuilt_from_what_changed(
    seed: int, dtype: np.dtype[Any], num_slots: int, frame: tuple[int, ...], share: float
) -> None:
    """Any bits, any share of them: by the decoder and by the loop; rows apart stay what they were."""
    rng = np.random.default_rng(seed)
    before, other = (random_array(rng, dtype, (num_slots, *frame)) for _ in range(2))
    frames = np.where(rng.random(before.shape) < share, other, before)
    apart = np.flatnonzero(rng.integers(0, 4, num_slots) == 0).astype("<u4")
    change = changes(before, frames, apart)
    wanted = frames.copy()
    wanted[apart] = before[apart]
    if change is None:
        assert frames[:1].nbytes < SMALLEST_FRAME or share > 0
        return
    before.flags.writeable = False  # as what was read off the wire
    after = changed(before, change)
    assert after.tobytes() == wanted.tobytes() == naively_changed(before, change)
    assert (after.shape, after.dtype) == (frames.shape, frames.dtype)
    assert after.flags.writeable


@pytest.mark.parametrize("words", [0, 1, *range(122, 129)])
def test_changes_are_fewer_bytes_than_frames(words: int) -> None:
    """A frame of 128 words, of which the first ones are others: None as soon as it would be as many bytes or more."""
    before = np.zeros((1, 128), "<f8")
    frames = before.copy()
    frames[0, :words] = -0.0
    change = changes(before, frames, NOBODY)
    if 16 + 8 * words < 1024:
        assert change is not None
        assert (len(change.bits), len(change.words)) == (16, 8 * words)
    else:
        assert change is None


def test_a_still_picture_is_its_bits() -> None:
    """84 x 84 pixels, of which 3 in two words change: 111 bytes, and 16."""
    before = np.zeros((1, 84, 84), np.uint8)
    frames = before.copy()
    frames[0, 0, 0] = frames[0, 0, 7] = frames[0, 83, 83] = 1
    change = changes(before, frames, NOBODY)
    assert change is not None
    assert len(change.bits) == 111
    assert (change.bits[0], change.bits[110], sum(change.bits[1:110])) == (1, 2, 0)  # words 0 and 881
    assert change.words == bytes([1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1])


def test_numbers_that_are_no_picture_are_not_looked_at() -> None:
    """Of a few bytes, or in another order of bytes than they travel in."""
    few = np.zeros((3, SMALLEST_FRAME - 1), np.uint8)
    assert changes(few, few, NOBODY) is None
    other = np.zeros((3, SMALLEST_FRAME), ">i2")
    assert changes(other, other, NOBODY) is None
    assert changes(other.astype("<i2"), other.astype("<i2"), NOBODY) is not None


@pytest.mark.parametrize(
    ("bits", "words"),
    [(b"", b""), (b"\1\0", bytes(8)), (b"\1", b""), (b"\1", bytes(7)), (b"\1", bytes(9)), (b"\0", bytes(8))],
)
def test_changes_that_do_not_fit_are_refused(bits: bytes, words: bytes) -> None:
    """One frame of eight words has one byte of bits, and eight bytes for each that is set."""
    before = np.zeros((1, 64), np.uint8)
    assert changed(before, FrameChanges(b"\1", bytes(range(8))))[0, :9].tolist() == [*range(8), 0]
    with pytest.raises(RemoteProtocolError, match="changed_"):
        changed(before, FrameChanges(bits, words))


def test_a_bool_that_is_none_is_refused() -> None:
    """In changed words as anywhere."""
    before = np.zeros((1, 64), np.bool_)
    assert changed(before, FrameChanges(b"\1", b"\1" * 8)).sum() == 8
    with pytest.raises(RemoteProtocolError, match="a bool is 0 or 1"):
        changed(before, FrameChanges(b"\1", b"\2" * 8))
