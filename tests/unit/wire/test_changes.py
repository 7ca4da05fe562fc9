"""Changes of arrays against a loop over their words, how many bytes they are, and when nobody looks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.errors import RemoteProtocolError
from asyncrl.wire import changes as codec
from asyncrl.wire.changes import LONGEST_REST, SMALLEST_ROW, Change, ChangeDecoder, ChangeEncoder
from asyncrl.wire.tensors import Array
from tests.unit.wire.strategies import DTYPES, laid_out, random_array, seeds


class Channel:
    """An encoder and a decoder of one lane of one leaf."""

    def __init__(self) -> None:
        self.encoder, self.decoder = ChangeEncoder(), ChangeDecoder()
        self.arrived: Array = np.zeros(0)

    def send(self, rows: Array) -> Change | None:
        """What travelled; None: all of it. What arrives is what was sent."""
        change = self.encoder.encode(0, rows)
        if change is None:
            data = np.frombuffer(rows.tobytes(), rows.dtype).reshape(rows.shape)
            self.decoder.came(0, data)
            self.arrived = data.copy()
        else:
            self.arrived = self.decoder.changed(0, change)
        assert (self.arrived.shape, self.arrived.dtype) == (rows.shape, rows.dtype)
        assert self.arrived.tobytes() == rows.tobytes()
        return change


def naively_changed(before: Array, change: Change) -> bytes:
    """The rows after `before`, word by word."""
    data, words = bytearray(before.tobytes()), bytearray(change.words)
    size = before[:1].nbytes
    width = next(width for width in (8, 4, 2, 1) if size % width == 0)
    for number in range(len(data) // width):
        if change.bits[number // 8] >> number % 8 & 1:
            data[number * width : (number + 1) * width] = words[:width]
            del words[:width]
    assert not words
    return bytes(data)


@settings(max_examples=120)
@given(
    seeds,
    st.sampled_from(DTYPES),
    st.integers(1, 4),
    st.lists(st.integers(0, 12), min_size=1, max_size=3).map(tuple),
    st.sampled_from(["C", "F", "strided"]),
)
def test_any_sequence_survives_the_codec(
    seed: int, dtype: np.dtype[Any], num_slots: int, shape: tuple[int, ...], layout: str
) -> None:
    """Any bits, any share of them, any layout; replies that are lost; by the decoder and by the loop."""
    rng = np.random.default_rng(seed)
    channel, rows = Channel(), random_array(rng, dtype, (num_slots, *shape))
    before: Array = rows
    for _ in range(8):
        change = channel.send(laid_out(rows, layout))
        if change is not None:
            assert naively_changed(before, change) == rows.tobytes()
        channel.arrived[...] = 0  # the caller's own: nothing of it is used again
        before, other = rows, random_array(rng, dtype, rows.shape)
        rows = np.where(rng.random(rows.shape) < rng.choice([0.0, 0.02, 0.3, 1.0]), other, rows)
        if not rng.integers(0, 6):
            channel.encoder.encode(0, other)
            channel.encoder.forget()


@pytest.mark.parametrize("words", [0, 1, *range(122, 129)])
def test_changes_are_fewer_bytes_than_the_array(words: int) -> None:
    """A row of 128 words, of which the first ones are others: whole as soon as it would be as many bytes or more."""
    channel, rows = Channel(), np.zeros((1, 128), "<f8")
    assert channel.send(rows) is None
    rows[0, :words] = -0.0
    change = channel.send(rows)
    if 16 + 8 * words < 1024:
        assert change is not None
        assert (len(change.bits), len(change.words)) == (16, 8 * words)
    else:
        assert change is None


def test_a_still_picture_is_its_bits() -> None:
    """84 x 84 pixels, of which 3 in two words change: 111 bytes, and 16."""
    channel, rows = Channel(), np.zeros((1, 84, 84), np.uint8)
    channel.send(rows)
    rows[0, 0, 0] = rows[0, 0, 7] = rows[0, 83, 83] = 1
    change = channel.send(rows)
    assert change is not None
    assert len(change.bits) == 111
    assert (change.bits[0], change.bits[110], sum(change.bits[1:110])) == (1, 2, 0)  # words 0 and 881
    assert change.words == bytes([1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1])


def test_arrays_that_are_no_picture_are_not_looked_at() -> None:
    """Of a few bytes a row, or in another order of bytes than they travel in."""
    for rows, looked_at in (
        (np.zeros((3, SMALLEST_ROW - 1), np.uint8), False),
        (np.zeros((3, SMALLEST_ROW), ">i2"), False),
        (np.zeros((3, SMALLEST_ROW), "<i2"), True),
    ):
        encoder = ChangeEncoder()
        assert encoder.encode(0, rows) is None
        assert (encoder.encode(0, rows) is not None) == looked_at


def test_noise_is_looked_at_less_and_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rest of 0, 1, 3, ... replies after each look, and one that is whole before the next; then what stands still is
    found."""
    rng, channel = np.random.default_rng(0), Channel()
    looks: list[int] = []
    sent = 0
    look = codec._change

    def noted(before: Array, rows: Array) -> Change | None:
        looks.append(sent)
        return look(before, rows)

    monkeypatch.setattr(codec, "_change", noted)
    while sent < 500:
        assert channel.send(rng.integers(0, 256, (2, 64), np.uint8)) is None
        sent += 1
    assert np.diff(looks)[:7].tolist() == [1, 3, 5, 9, 17, 33, LONGEST_REST + 2]
    assert set(np.diff(looks)[7:]) == {LONGEST_REST + 2}
    still = np.zeros((2, 64), np.uint8)
    found = [channel.send(still) is not None for _ in range(2 * LONGEST_REST)]
    assert found == sorted(found)
    assert found[-1]


def test_a_cut_to_another_scene_costs_one_picture() -> None:
    """However many there were before: after each, what changes in the new scene is told."""
    channel, rng = Channel(), np.random.default_rng(0)
    for cut in range(5):
        scene = rng.integers(0, 256, (2, 64), np.uint8)
        assert channel.send(scene) is None
        for step in range(3):
            scene[1, step] ^= 1
            assert channel.send(scene) is not None, (cut, step)


def test_leaves_are_apart() -> None:
    """Each against what was sent of it, and of an array that the host writes into as soon as it was sent."""
    channel, rows = Channel(), np.zeros((1, 64), np.uint8)
    channel.send(rows)
    assert channel.encoder.encode(1, rows) is None
    rows[0, 0] = 7
    change = channel.send(rows)
    assert change is not None
    assert change.words == bytes([7, 0, 0, 0, 0, 0, 0, 0])
    channel.decoder.came(1, np.zeros((2, SMALLEST_ROW - 1), np.uint8))  # too small for its changes ever to come
    with pytest.raises(RemoteProtocolError, match="leaf 1, which never came whole"):
        channel.decoder.changed(1, change)


@pytest.mark.parametrize(
    ("bits", "words"),
    [(b"", b""), (b"\1\0", bytes(8)), (b"\1", b""), (b"\1", bytes(7)), (b"\1", bytes(9)), (b"\0", bytes(8))],
)
def test_changes_that_do_not_fit_are_refused(bits: bytes, words: bytes) -> None:
    """One row of eight words has one byte of bits, and eight bytes for each that is set; then all is as before."""
    decoder, before = ChangeDecoder(), np.zeros((1, 64), np.uint8)
    decoder.came(0, before)
    for number in range(2):
        with pytest.raises(RemoteProtocolError, match="changed "):
            decoder.changed(0, Change(bits, words))
        assert decoder.changed(0, Change(b"\1", bytes([number] * 8)))[0, :9].tolist() == [*[number] * 8, 0]


def test_a_bool_that_is_none_is_refused() -> None:
    """In changed words as anywhere."""
    decoder = ChangeDecoder()
    decoder.came(0, np.frombuffer(bytes(64), np.bool_).reshape(1, 64))
    assert decoder.changed(0, Change(b"\1", b"\1" * 8)).sum() == 8
    with pytest.raises(RemoteProtocolError, match="a bool is 0 or 1"):
        decoder.changed(0, Change(b"\1", b"\2" * 8))
