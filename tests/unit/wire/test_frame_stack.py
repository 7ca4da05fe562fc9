"""The frame-stack codec against the plain stacks, bit for bit, and what it saves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.errors import RemoteProtocolError
from asyncrl.wire.frame_stack import FrameEncoder, FrameRing, StackDecoder, StackEncoder
from asyncrl.wire.tensors import Array
from tests.unit.wire.strategies import DTYPES, laid_out, random_array, seeds

U4 = np.dtype("<u4")


class Channel:
    """An encoder and a decoder of one lane, and the bytes that went from one to the other."""

    def __init__(self, num_slots: int, depth: int, frame: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.encoder, self.decoder = StackEncoder(), StackDecoder(num_slots, depth, frame, dtype)
        self.sent_bytes = 0

    def step(self, stacks: Array, first: Array) -> tuple[Array, Array]:
        """The stacks as they arrive, and the rows that travelled whole."""
        newest, rows, whole = self.encoder.encode(stacks, first)
        self.sent_bytes += newest.nbytes + whole.nbytes
        return self.decoder.decode(newest.copy(), rows, whole.copy()), rows

    def final(self, finals: Array, rows: Array) -> Array:
        sent = self.encoder.final(finals, rows)
        self.sent_bytes += sent.nbytes
        if sent.shape[1] == finals.shape[1]:  # whole, as the length of the message says
            return sent
        return self.decoder.final(sent.copy(), rows)


@settings(max_examples=120)
@given(
    seeds,
    st.sampled_from(DTYPES),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.lists(st.integers(0, 5), min_size=1, max_size=2).map(tuple),
    st.sampled_from(["C", "F", "strided"]),
)
def test_any_sequence_of_stacks_survives_the_codec(
    seed: int, dtype: np.dtype[Any], sizes: tuple[int, int], frame: tuple[int, ...], layout: str
) -> None:
    """Stacks that shift, restart, jump and end, of any dtype with any bits in them: what arrives is what was sent."""
    rng = np.random.default_rng(seed)
    num_slots, depth = sizes
    channel = Channel(num_slots, depth, frame, dtype)
    stacks = random_array(rng, dtype, (num_slots, depth, *frame))
    for number in range(6):
        first = rng.integers(0, 4, num_slots) == 0
        kinds = rng.integers(0, 4, num_slots)
        before, stacks = stacks, np.concatenate([stacks[:, 1:], random_array(rng, dtype, (num_slots, 1, *frame))], 1)
        fresh = first | (kinds == 0)
        stacks[fresh] = random_array(rng, dtype, (int(fresh.sum()), depth, *frame))
        if number:  # final stacks come before the rows that they belong to
            rows = np.flatnonzero(first).astype(U4)
            finals = np.concatenate([before[rows, 1:], random_array(rng, dtype, (len(rows), 1, *frame))], 1)
            if len(rows) and rng.integers(0, 3) == 0:
                finals = random_array(rng, dtype, finals.shape)
            if len(rows):
                assert channel.final(laid_out(finals, layout), rows).tobytes() == finals.tobytes()
        arrived, _ = channel.step(laid_out(stacks, layout), first)
        assert arrived.tobytes() == stacks.tobytes()
        assert arrived.shape == stacks.shape
        arrived[...] = 0  # the caller's own: nothing of it is used again


@settings(max_examples=80)
@given(seeds, st.sampled_from(DTYPES), st.tuples(st.integers(1, 4), st.integers(1, 4)))
def test_newest_frames_survive_the_codec(seed: int, dtype: np.dtype[Any], sizes: tuple[int, int]) -> None:
    """Of a host that keeps a ring: rows that begin, rows that stay where they are, ends, and a reply that was lost."""
    rng = np.random.default_rng(seed)
    num_slots, depth = sizes
    ring, decoder = FrameRing(num_slots, depth, (3,), dtype), StackDecoder(num_slots, depth, (3,), dtype)
    encoder = FrameEncoder(ring)
    naive, lost = np.zeros((num_slots, depth, 3), dtype), True
    for number in range(8):
        frames = random_array(rng, dtype, (num_slots, 3))
        begin = rng.integers(0, 3, num_slots) == 0
        moved = number > 0 and bool(rng.integers(0, 4))
        if moved:
            ended = np.flatnonzero(begin).astype(U4)
            finals = np.concatenate([naive[ended, 1:], random_array(rng, dtype, (len(ended), 1, 3))], 1)
            sent = encoder.final(finals, ended)
            if sent.shape[1] < finals.shape[1]:
                sent = decoder.final(sent.copy(), ended)
            assert sent.tobytes() == finals.tobytes()
            naive = np.concatenate([naive[:, 1:], frames[:, None]], 1)
            ring.push(frames)
        naive[begin] = 0
        naive[begin, -1] = frames[begin]
        ring.put(np.flatnonzero(begin), naive[begin])
        newest, rows, whole = encoder.encode(ring.frames[-1][:, None], begin | (not moved))
        assert len(rows) == (begin.sum() if moved and not lost else num_slots)
        lost = bool(rng.integers(0, 5) == 0)
        if lost:
            encoder.forget()
        else:
            arrived = decoder.decode(newest.copy(), rows, whole)
            assert arrived.tobytes() == naive.tobytes()
            assert ring.stacks().tobytes() == naive.tobytes()
            arrived[...] = 0


def test_a_lane_that_only_steps_sends_single_frames() -> None:
    """After the first reply a quarter of the bytes, of four frames a stack; only forced rows are whole."""
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (40, 8, 84, 84), dtype=np.uint8)
    channel = Channel(8, 4, (84, 84), np.dtype("<u1"))
    nobody = np.zeros(8, np.bool_)
    for number in range(37):
        stacks = np.stack(list(frames[number : number + 4]), axis=1)
        if number == 1:
            channel.sent_bytes = 0
        _, rows = channel.step(stacks, nobody)
        assert rows.tolist() == (list(range(8)) if number == 0 else [])
    assert channel.sent_bytes == 36 * frames[0].nbytes
    assert 36 * stacks.nbytes / channel.sent_bytes == 4


@pytest.mark.parametrize(
    "change",
    [
        lambda stacks: stacks.__setitem__((1, 0, 0), 9),
        lambda stacks: stacks.__setitem__((1, 2, 2), 9),
        lambda stacks: stacks.__setitem__((1, 0, 1), -stacks[1, 0, 1]),
    ],
)
def test_a_row_that_is_no_shift_travels_whole(change: Callable[[Array], None]) -> None:
    """One changed element in an old frame, in the first or the last of them, or a sign: that row alone is whole."""
    channel = Channel(3, 4, (3,), np.dtype("<f4"))
    stacks = np.zeros((3, 4, 3), np.float32)
    nobody = np.zeros(3, np.bool_)
    channel.step(stacks, nobody)
    stacks = stacks.copy()
    change(stacks)
    arrived, rows = channel.step(stacks, nobody)
    assert rows.tolist() == [1]
    assert arrived.tobytes() == stacks.tobytes()


def test_not_a_number_is_equal_to_itself() -> None:
    """A stack of NaN that shifts is a shift."""
    channel = Channel(1, 3, (2,), np.dtype("<f8"))
    stacks = np.full((1, 3, 2), np.nan)
    channel.step(stacks, np.zeros(1, np.bool_))
    assert channel.step(stacks, np.zeros(1, np.bool_))[1].size == 0


def test_a_depth_of_one_is_a_stack_too() -> None:
    """Every frame is the newest one."""
    channel = Channel(2, 1, (2,), np.dtype("<u1"))
    for number in range(3):
        stacks = np.full((2, 1, 2), number, np.uint8)
        assert channel.step(stacks, np.zeros(2, np.bool_))[0].tolist() == stacks.tolist()
        finals = np.full((1, 1, 2), 9, np.uint8)
        assert channel.final(finals, np.array([1], U4)).tolist() == finals.tolist()


def test_finals_before_any_stack_travel_whole() -> None:
    """There is nothing that they could continue."""
    finals = np.zeros((1, 4, 2), np.uint8)
    assert StackEncoder().final(finals, np.array([0], U4)) is finals


def test_the_encoder_keeps_no_reference() -> None:
    """The host may write into its stacks as soon as they were sent."""
    channel = Channel(1, 2, (2,), np.dtype("<u1"))
    stacks = np.array([[[1, 1], [2, 2]]], np.uint8)
    channel.step(stacks, np.zeros(1, np.bool_))
    stacks[...] = [[[2, 2], [3, 3]]]
    arrived, rows = channel.step(stacks, np.zeros(1, np.bool_))
    assert rows.size == 0
    assert arrived.tolist() == stacks.tolist()


def test_a_single_frame_for_an_unknown_stack_is_refused() -> None:
    """A decoder that has never had a slot's stack raises, and goes on as if nothing had come."""
    decoder = StackDecoder(2, 2, (1,), np.dtype("<u1"))
    newest, whole = np.ones((2, 1, 1), np.uint8), np.ones((1, 2, 1), np.uint8)
    for _ in range(2):
        with pytest.raises(RemoteProtocolError, match="a single frame"):
            decoder.decode(newest, np.array([1], U4), whole)
    with pytest.raises(RemoteProtocolError, match="a final frame"):
        decoder.final(newest[:1], np.array([1], U4))
    both = np.array([0, 1], U4)
    assert decoder.decode(newest, both, np.ones((2, 2, 1), np.uint8)).sum() == 4
    assert decoder.final(newest[:1], np.array([1], U4)).shape == (1, 2, 1)
