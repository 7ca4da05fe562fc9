"""`UnrollBuilder`: from what one lane showed, did and got, row by row, to an `Unroll`.

Row k is what was acted on at the k-th act, and the reply to that act. While the unroll grows everything is written
once into `[T, B]` memory, flags as they came; what they mean is worked out for all rows at the end:

* a row is valid unless its reply has NO_TRANSITION there: the action was not executed;
* the observation after a row is the one acted on next, but the final one where its reply ended the episode and began
  the next (TERMINATED or TRUNCATED with FIRST; with SOFT the game goes on, and both are the same);
* a valid row that did not end, but is followed by a void one, is `cut`: CUT was sent, the lane went, or the slot began
  anew unannounced. Its next observation is the one acted on next, which stays the last that arrived of its episode.

Invariants: the unroll is what the flag table says, row by row, in every autoreset mode (test_unrolls_are_as_the_table_
says); valid rows are the transitions, no more and no less (test_valid_rows_are_the_transitions); a valid row that has
not ended is followed by a valid row of its episode, or is the last (test_no_trace_leads_into_a_void_row); no first
observation and none after a cut is ever what a row is bootstrapped from (test_poison_never_reaches_a_bootstrap); a
reply without a mask allows everything (test_no_mask_allows_everything).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from asyncrl.policy import Acted
from asyncrl.records import Unroll
from asyncrl.wire.flags import FIRST, NO_TRANSITION, SOFT, TERMINATED, TRUNCATED
from asyncrl.wire.step_rows import StepRows
from asyncrl.wire.tensors import Array

_FINAL_TRUNCATED: Final = TRUNCATED | FIRST


class _Finals(NamedTuple):
    """What only one reply has of episodes that it ended."""

    where: Array  # i8 [R]: truncated rows, as t * B + b
    obs: list[Array]  # per leaf [R, *shape]
    mask: Array | None  # b1 [R, mask_size]


class UnrollBuilder:
    """One unroll of T rows of B slots. `observed`, `acted`, `replied`, and so on; then `finish`.

    `carry`: leaves [B, *shape] before row 0; they are copied.
    """

    def __init__(self, num_steps: int, num_slots: int, carry: Sequence[Array] = ()) -> None:
        self.num_rows = 0  # complete ones
        self._shape = (num_steps, num_slots)
        self._obs: list[Array] = []
        self._action: list[Array] = []
        self._kept: list[Array] = []
        self._mask: Array | None = None
        self._first = np.empty(self._shape, np.bool_)
        self._log_prob = np.empty(self._shape, np.float32)
        self._value = np.empty(self._shape, np.float32)
        self._version = np.empty(num_steps, np.int64)
        self._reward = np.empty(self._shape, np.float64)
        self._flags = np.full(self._shape, NO_TRANSITION, np.uint8)
        self._names = np.empty((3, *self._shape), np.int64)
        self._finals: list[_Finals] = []
        self._carry = [leaf.copy() for leaf in carry]

    @property
    def num_transitions(self) -> int:
        return int(np.count_nonzero((self._flags & NO_TRANSITION) == 0))

    @property
    def is_complete(self) -> bool:
        return self.num_rows == self._shape[0]

    def observed(self, obs: Sequence[Array], mask: Array | None, first: Array) -> tuple[list[Array], Array | None]:
        """What is acted on next: leaves [B, *shape], mask b1 [B, mask_size], first b1 [B].

        Returns observation and mask as they are kept, in memory that does not change any more.
        """
        k = self.num_rows
        if not self._obs:
            self._obs = [_like(leaf, self._shape) for leaf in obs]
        for kept, leaf in zip(self._obs, obs, strict=True):
            kept[k] = leaf
        if mask is not None:
            self._keep_mask(k, mask)
        self._first[k] = first
        return [kept[k] for kept in self._obs], None if self._mask is None else self._mask[k]

    def _keep_mask(self, k: int, mask: Array) -> None:
        if self._mask is None:
            self._mask = np.ones((*self._shape, mask.shape[1]), np.bool_)
        self._mask[k] = _possible(mask)

    def acted(self, acted: Acted) -> None:
        """What was done about it; rows of this lane alone."""
        k = self.num_rows
        if not self._action:
            self._action = [_like(leaf, self._shape) for leaf in acted.action]
            self._kept = [_like(leaf, self._shape) for leaf in acted.kept]
        for kept, leaf in zip(self._action, acted.action, strict=True):
            kept[k] = leaf
        for kept, leaf in zip(self._kept, acted.kept, strict=True):
            kept[k] = leaf
        self._log_prob[k] = acted.log_prob
        self._value[k] = acted.value
        self._version[k] = acted.version

    def replied(self, rows: StepRows, incarnation: Array, episode: Array, t: Array) -> None:
        """What came of it, with the names `[B]` of the transitions: row k is complete."""
        k = self.num_rows
        self._reward[k] = rows.rewards
        self._flags[k] = rows.flags
        names = self._names
        names[0, k], names[1, k], names[2, k] = incarnation, episode, t
        if len(rows.final_rows):
            self._keep_finals(k, rows)
        self.num_rows = k + 1

    def _keep_finals(self, k: int, rows: StepRows) -> None:
        """Observations that only this reply has. Those of terminated rows are nobody's business."""
        final_rows = rows.final_rows
        truncated = (rows.flags[final_rows] & TRUNCATED) != 0
        if truncated.any():
            where = k * self._shape[1] + final_rows[truncated].astype(np.int64)
            mask = None if rows.final_mask is None else rows.final_mask[truncated]
            self._finals.append(_Finals(where, [leaf[truncated] for leaf in rows.final_obs], mask))

    # ------------------------------------------------------------------ the end

    def finish(self, lane: int, number: int, fleet_slots: Array, last: StepRows) -> Unroll | None:
        """The unroll, with what arrived last; None if it holds no transition.

        Rows that never got a reply are void. `last` is then the lane's last word on the episodes that ran.
        """
        k, num_steps = self.num_rows, self._shape[0]
        flags = self._flags
        valid = (flags & NO_TRANSITION) == 0
        if not self._obs or not self._action or not valid.any():
            return None
        terminated, truncated = valid & ((flags & TERMINATED) != 0), valid & ((flags & TRUNCATED) != 0)
        cut = np.zeros(self._shape, np.bool_)
        cut[:-1] = valid[:-1] & ~(terminated | truncated)[:-1] & ~valid[1:]
        if k < num_steps:
            self._pad(k, last)
        end_rows = np.argwhere((truncated | cut) & ~terminated)
        incarnation, episode, t = self._names
        return Unroll(
            lane=lane,
            round=number,
            fleet_slots=fleet_slots,
            obs=self._obs,
            action=self._action,
            mask=self._mask,
            log_prob=self._log_prob,
            value=self._value,
            kept=self._kept,
            first=self._first,
            version=self._version,
            reward=self._reward,
            terminated=terminated,
            truncated=truncated,
            cut=cut,
            soft=valid & ((flags & SOFT) != 0),
            valid=valid,
            end_rows=end_rows,
            end_obs=[self._ends(end_rows, *of) for of in zip(self._obs, last.obs, self._final_leaves(), strict=True)],
            end_mask=self._end_mask(end_rows, last),
            last_obs=last.obs,
            last_mask=None if last.mask is None else _possible(last.mask),
            last_first=(last.flags & FIRST) != 0,
            carry=self._carry,
            incarnation=incarnation,
            episode=episode,
            t=t,
        )

    def _pad(self, k: int, last: StepRows) -> None:
        """Rows from k on: the observation that arrived last, which row k - 1 may need, then zeros; no NaN anywhere."""
        for kept, leaf in zip(self._obs, last.obs, strict=True):
            kept[k] = leaf
            kept[k + 1 :] = 0
        for kept in (*self._action, *self._kept):
            kept[k:] = 0
        if self._mask is not None:
            self._mask[k:] = True
        if last.mask is not None:
            self._keep_mask(k, last.mask)
        self._first[k:] = False
        self._version[k:] = self._version[k - 1]
        for array in (self._log_prob, self._value, self._reward):
            array[k:] = 0
        self._names[:, k:] = 0

    def _final_leaves(self) -> list[list[Array]]:
        """Per leaf, what `_finals` hold."""
        return [[finals.obs[leaf] for finals in self._finals] for leaf in range(len(self._obs))]

    def _end_mask(self, end_rows: Array, last: StepRows) -> Array | None:
        masks = [self._mask, last.mask, *(finals.mask for finals in self._finals)]
        size = next((mask.shape[-1] for mask in masks if mask is not None), None)
        if size is None:
            return None
        rows, after = _or_all(self._mask, self._shape, size), _or_all(last.mask, self._shape[1:], size)
        finals = [_or_all(each.mask, each.where.shape, size) for each in self._finals]
        return _possible(self._ends(end_rows, rows, after, finals))

    def _ends(self, end_rows: Array, rows: Array, last: Array, finals: list[Array]) -> Array:
        """[E, *shape]: what followed each of these rows: as a rule what was acted on next."""
        num_steps, num_slots = self._shape
        t, b = end_rows[:, 0] + 1, end_rows[:, 1]
        at_end = t == num_steps
        ends: Array = rows[np.where(at_end, 0, t), b]
        ends[at_end] = last[b[at_end]]
        if finals:
            places = np.searchsorted((t - 1) * num_slots + b, np.concatenate([each.where for each in self._finals]))
            ends[places] = np.concatenate(finals)
        return ends


def _possible(mask: Array) -> Array:
    """b1 [N, mask_size]. The mask of a row that waits or has ended is void; a policy cannot choose from nothing."""
    possible: Array = mask | ~mask.any(axis=1, keepdims=True)
    return possible


def _or_all(mask: Array | None, shape: tuple[int, ...], size: int) -> Array:
    """b1 [*shape, size]: a reply without a mask allows everything."""
    return np.ones((*shape, size), np.bool_) if mask is None else mask


def _like(leaf: Array, shape: tuple[int, int]) -> np.ndarray[Any, Any]:
    """Uninitialised memory [T, B, *shape] for leaves [B, *shape]."""
    return np.empty((*shape, *leaf.shape[1:]), leaf.dtype)
