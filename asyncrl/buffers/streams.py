"""Where the rows of an unroll go: the stream of each fleet slot, as positions in its ring.

A stream is what was observed, in order. A valid row takes a position; so does the last observation of an episode that
was truncated or cut, after its row; and so, for the time being, does what was observed after the last row of an
unroll (the *head*): the next row takes its place if the episode goes on there, else the episode was cut, and it stays.
Before a stack that does not continue the one before it stand its older frames.

Invariants: how a stream is cut into unrolls leaves no trace (test_unroll_boundaries_leave_no_trace); a row that does
not continue its slot's episode begins a new one (test_holes_and_new_incarnations_begin_anew).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from asyncrl.buffers.stacks import Follows
from asyncrl.buffers.windows import NOWHERE, Columns, Windows, open_rows
from asyncrl.records import Array, Unroll


@dataclass(frozen=True, slots=True)
class Placed:
    """An unroll [T, B] with E ends in the streams; i8 positions are void where there is no such row."""

    slots: Array  # i8 [B], fleet slots
    goes_on: Array  # b1 [B]: row 0 continues what the slot did last
    own: Array  # i8 [T, B]
    own_apart: Array  # b1 [T, B]: the older frames of its stack stand before it
    end: Array  # i8 [E], of the observations after `end_rows`
    end_apart: Array  # b1 [E]
    head: Array  # i8 [B]
    head_apart: Array  # b1 [B]
    has_head: Array  # b1 [B]
    stop: Array  # i8 [B]: the next position, the head's own if there is one
    top: Array  # i8 [B]: the first position that nothing stands at


class Streams:
    """Of `num_slots` fleet slots; all arrays are by fleet slot."""

    def __init__(self, num_slots: int, n_step: int, depth: int) -> None:
        self.stop = np.zeros(num_slots, np.int64)  # rows before this position stay what they are
        self.top = np.zeros(num_slots, np.int64)  # beyond `stop` by the head
        self.is_bare = np.zeros(num_slots, np.bool_)  # the row before `stop` is the last of an unroll
        self.names = np.zeros((3, num_slots), np.int64)  # incarnation, episode and t of the last row, if it is open
        self.tail = Columns.empty(n_step, num_slots)  # rows whose windows are not complete
        self._depth = depth

    @property
    def is_open(self) -> Array:
        """b1 [num_slots]: the last row has not ended."""
        is_open: Array = self.tail.valid[-1]
        return is_open

    def goes_on(self, unroll: Unroll) -> Array:
        """b1 [B]: row 0 is the next one of the slot's episode."""
        slots = unroll.fleet_slots
        incarnation, episode, t = self.names[:, slots]
        same = (unroll.incarnation[0] == incarnation) & (unroll.episode[0] == episode) & (unroll.t[0] == t + 1)
        goes_on: Array = self.is_open[slots] & unroll.valid[0] & same
        return goes_on

    def place(self, unroll: Unroll, goes_on: Array, follows: Follows) -> Placed:
        """Positions for everything in the unroll; nothing is changed yet."""
        slots, more = unroll.fleet_slots, self._depth - 1
        start = np.where(goes_on, self.stop[slots], self.top[slots])
        end_t, end_b = unroll.end_rows.T
        before_own = np.where(unroll.valid & ~follows.own, more, 0)
        num_ends = np.zeros_like(before_own)
        num_ends[end_t, end_b] = np.where(follows.end, 1, 1 + more)
        count = unroll.valid + before_own + num_ends
        own = start + np.cumsum(count, axis=0) - count + before_own
        stop = start + count.sum(axis=0)
        has_head = unroll.valid[-1] & ~unroll.ended[-1]
        top = stop + np.where(has_head, np.where(follows.head, 1, 1 + more), 0)
        return Placed(
            slots=slots,
            goes_on=goes_on,
            own=own,
            own_apart=unroll.valid & ~follows.own,
            end=(own + num_ends)[end_t, end_b],
            end_apart=~follows.end,
            head=top - 1,
            head_apart=has_head & ~follows.head,
            has_head=has_head,
            stop=stop,
            top=top,
        )

    def columns(self, unroll: Unroll, placed: Placed, reward: Array, q_taken: Array | None) -> Columns:
        """The open rows of these slots, and those of the unroll below them. What does not go on was cut."""
        slots, ended = placed.slots, unroll.ended
        last = {name: array[:, slots] for name, array in self.tail.arrays().items()}
        last["stop"][-1] |= ~placed.goes_on
        last["after"][-1] = self.top[slots] - 1
        after = np.full(ended.shape, NOWHERE, np.int64)
        after[tuple(unroll.end_rows.T)] = placed.end
        q = np.zeros_like(unroll.value) if q_taken is None else q_taken
        new = Columns(unroll.valid, unroll.valid & ended, reward, placed.own, after, unroll.value, q)
        return Columns(**last).followed_by(new)

    def advance(self, unroll: Unroll, placed: Placed, rows: Columns, windows: Windows) -> None:
        """The unroll is in the ring."""
        slots = placed.slots
        self.stop[slots], self.top[slots] = placed.stop, placed.top
        is_last_bare = unroll.valid[-1].copy()
        end_t, end_b = unroll.end_rows.T
        is_last_bare[end_b[end_t == unroll.num_steps - 1]] = False
        self.is_bare[slots] = is_last_bare
        self.names[:, slots] = unroll.incarnation[-1], unroll.episode[-1], unroll.t[-1]
        for name, array in open_rows(rows, windows, len(self.tail.valid)).arrays().items():
            getattr(self.tail, name)[:, slots] = array

    def state(self) -> dict[str, Array]:
        """Copies of what `load` takes."""
        own = {name: getattr(self, name).copy() for name in ("stop", "top", "is_bare", "names")}
        return own | {f"tail_{name}": array.copy() for name, array in self.tail.arrays().items()}

    def load(self, arrays: Mapping[str, Array]) -> None:
        for name in ("stop", "top", "is_bare", "names"):
            getattr(self, name)[...] = arrays[name]
        for name, array in self.tail.arrays().items():
            array[...] = arrays[f"tail_{name}"]
