"""n-step windows: how far a row looks ahead, what it earns on the way, and what it bootstraps from.

A window is complete when it meets an end, or when n rows follow it in its episode: before that nobody knows its
reward. Columns are slots; a row without a successor, whose stream was lost, never becomes complete.

Invariants: a window ends with its episode, whichever way that ends (test_every_window_is_as_enumerated); columns do not
mix (test_two_slots_never_mix); what is left open and put before the rows that follow comes out as if it had never been
parted (test_columns_may_be_cut_anywhere).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from asyncrl.records import Array

NOWHERE = -1  # after a terminated row nothing follows


@dataclass(frozen=True, slots=True)
class Columns:
    """Rows of B slots `[T, B]`, in order; fields are void where `valid` is false."""

    valid: Array  # b1
    stop: Array  # b1: the episode ends with this row, in whatever way
    reward: Array  # f8
    at: Array  # i8: where the row is
    after: Array  # i8, of rows with `stop`: where the observation after it is; NOWHERE: it terminated
    value: Array  # f4: of the row's observation
    q_taken: Array  # f4: of its action

    @staticmethod
    def empty(num_rows: int, num_slots: int) -> Columns:
        def zeros(dtype: str) -> Array:
            return np.zeros((num_rows, num_slots), dtype)

        return Columns(zeros("?"), zeros("?"), *map(zeros, ("<f8", "<i8", "<i8", "<f4", "<f4")))

    def followed_by(self, later: Columns) -> Columns:
        names = [field.name for field in fields(Columns)]
        return Columns(*(np.concatenate([getattr(self, name), getattr(later, name)]) for name in names))

    def arrays(self) -> dict[str, Array]:
        return {field.name: getattr(self, field.name) for field in fields(Columns)}


@dataclass(frozen=True, slots=True)
class Windows:
    """Of each row `[T, B]`; fields are void where `complete` is false."""

    complete: Array  # b1
    reward: Array  # f8: Σ γ^i r
    length: Array  # i8: rows that it spans, 1 to n
    after: Array  # i8: where the observation after the last of them is, or NOWHERE
    value: Array  # f4: of that observation; of the last row's own where nobody has acted on it


def windows_of(rows: Columns, n_step: int, gamma: float) -> Windows:
    """The windows of columns in which a row's successor is the valid row below it, unless `stop`."""
    total, shape = len(rows.valid), rows.valid.shape
    has_next = np.zeros(shape, np.bool_)
    has_next[:-1] = rows.valid[:-1] & ~rows.stop[:-1] & rows.valid[1:]
    found = Windows(*(np.zeros(shape, dtype) for dtype in ("?", "<f8", "<i8", "<i8", "<f4")))
    alive = rows.valid.copy()  # the window's rows up to the i-th follower are there, and go on
    for i in range(min(n_step, total)):
        here = slice(0, total - i)
        np.add(found.reward[here], gamma**i * rows.reward[i:], out=found.reward[here], where=alive[here])
        _close(found, alive[here] & rows.stop[i:], i + 1, rows.after[i:], rows.value[i:])
        alive[here] &= has_next[i:]  # which is false of the last row: no window looks beyond
    full = alive[: max(total - n_step, 0)]
    _close(found, full, n_step, rows.at[n_step:], rows.value[n_step:])
    return found


def _close(found: Windows, which: Array, length: int, after: Array, value: Array) -> None:
    """`which` b1 [t, B], the windows of the first t rows that end here; `after` and `value` [t, B]."""
    t = len(which)
    found.complete[:t] |= which
    for kept, new in ((found.length, length), (found.after, after), (found.value, value)):
        np.copyto(kept[:t], new, where=which)


def open_rows(rows: Columns, found: Windows, n_step: int) -> Columns:
    """The last n rows, of which those that are not complete are valid: what has to precede the rows that follow."""
    last = {name: array[len(array) - n_step :].copy() for name, array in rows.arrays().items()}
    last["valid"] &= ~found.complete[len(found.complete) - n_step :]
    return Columns(**last)
