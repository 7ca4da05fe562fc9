"""Which stacks of an unroll continue the ones before them, bit for bit: those are stored by their newest frame alone.

Nobody has to be trusted with how frames were stacked or padded, nor with which rows begin an episode.

Invariant: a stack follows where it is the one before it, moved by one frame
(test_a_stack_follows_where_it_is_moved_by_one_frame).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from asyncrl.records import Array, Unroll

PIECE: Final = 1 << 18  # words that are compared at once: the result stays in the cache


@dataclass(frozen=True, slots=True)
class Follows:
    """Whether the stack continues what stands in the stream before it; void where there is no such row."""

    own: Array  # b1 [T, B]
    end: Array  # b1 [E], of the observations after `end_rows`
    head: Array  # b1 [B], of those after the last row

    @staticmethod
    def everywhere(unroll: Unroll) -> Follows:
        """For observations without stacks."""
        num_ends, num_slots = len(unroll.end_rows), unroll.num_slots
        return Follows(np.ones_like(unroll.valid), np.ones(num_ends, np.bool_), np.ones(num_slots, np.bool_))


def follows(unroll: Unroll, leaf: int, before: Array, known: Array) -> Follows:
    """`before` [B, k - 1, ...]: the newest frames of the slots' streams, to be looked at where `known` b1 [B]."""
    stacks = _words(unroll.obs[leaf], 2)
    end_t, end_b = unroll.end_rows.T
    own = np.zeros_like(unroll.valid)
    own[0] = known & _same(_words(before, 1), stacks[0, :, :-1])
    own[1:] = unroll.valid[:-1]
    own[1:][tuple(unroll.end_rows[end_t + 1 < len(own)].T)] = False
    rows = max(PIECE // max(stacks[0, :, 1:].size, 1), 1)
    for t in range(1, len(own), rows):
        own[t : t + rows] &= _same(stacks[t - 1 : t - 1 + rows, :, 1:][: len(own) - t], stacks[t : t + rows, :, :-1])
    end = _same(stacks[end_t, end_b, 1:], _words(unroll.end_obs[leaf], 1)[:, :-1])
    head = _same(stacks[-1, :, 1:], _words(unroll.last_obs[leaf], 1)[:, :-1])
    return Follows(own, end, head)


def _words(frames: Array, axes: int) -> Array:
    """`[..., k, words]` for `[..., k, *frame]` with so many axes before k: bits, in words as wide as they can be."""
    head, frame = frames.shape[: axes + 1], frames.shape[axes + 1 :]
    flat = np.ascontiguousarray(frames).reshape(*head, math.prod(frame)).view(np.uint8)
    width = next(width for width in (8, 4, 2, 1) if flat.shape[-1] % width == 0)
    return flat.view(f"u{width}")


def _same(one: Array, other: Array) -> Array:
    """b1 `[...]` for `[..., k - 1, words]`: every word is the same."""
    equal = one == other
    same: Array = equal.reshape(*equal.shape[:-2], equal.shape[-2] * equal.shape[-1]).all(axis=-1)
    return same
