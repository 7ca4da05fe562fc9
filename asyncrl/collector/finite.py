"""`Sieve`: replies of environments without NaN and infinity, before a policy or a learner sees them.

What cannot be trained on becomes what the flag table calls a row without a transition, so that nothing above knows of
it: the row before it is cut there, and its next observation stays the finite one that it had.

Invariants: every valid row is finite, with the observation after it (test_valid_rows_are_finite); a row is left out
only where it, its reward or what follows it is not finite (test_no_more_is_left_out_than_must_be); what a policy
remembers of such a row is forgotten (test_what_is_left_out_leaves_no_memory); `raise` names slot and leaf
(test_raise_names_slot_and_leaf); finite rows are passed on as they are (test_finite_rows_are_untouched).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from asyncrl.errors import AsyncRLError
from asyncrl.wire.flags import FIRST, NO_TRANSITION, SOFT, TERMINATED, TRUNCATED
from asyncrl.wire.step_rows import StepRows
from asyncrl.wire.tensors import Array

Nonfinite = Literal["cut", "raise"]


class NonFiniteRows(AsyncRLError):
    """An environment gave an observation or a reward that is NaN or infinite."""


class Sieve:
    """Of one lane with these slots. `cut` leaves such rows out, `raise` raises NonFiniteRows."""

    def __init__(self, fleet_slots: Array, policy: Nonfinite) -> None:
        self.num_cut = 0  # transitions left out
        self._slots = fleet_slots
        self._policy = policy
        self._void = np.zeros(len(fleet_slots), np.bool_)  # rows whose observation of now is made up

    def opened(self, rows: StepRows) -> StepRows:
        """The first rows of a lane, or of its replacement."""
        self._void[:] = False
        return self.passed(rows)

    def passed(self, rows: StepRows) -> StepRows:
        """The reply, with zeros for what is not finite, and NO_TRANSITION where that matters."""
        bad_obs, bad_final = self._bad_rows(rows.obs), self._bad_rows(rows.final_obs)
        bad_reward = None if np.isfinite(rows.rewards).all() else ~np.isfinite(rows.rewards)
        if bad_obs is None and bad_final is None and bad_reward is None and not self._void.any():
            return rows
        if self._policy == "raise":
            self._complain(rows, bad_obs, bad_final)
        nothing = np.zeros(len(self._slots), np.bool_)
        bad_obs = nothing if bad_obs is None else bad_obs
        # Where the next episode begins in this row, the observation is not what the transition led to.
        void = self._void | (bad_obs & ((rows.flags & (FIRST | SOFT)) != FIRST))
        if bad_reward is not None:
            void |= bad_reward
        if bad_final is not None:
            void[rows.final_rows[bad_final]] = True
        self.num_cut += int(np.count_nonzero(void & ((rows.flags & NO_TRANSITION) == 0)))
        flags = np.where(void, rows.flags & ~np.uint8(TERMINATED | TRUNCATED | SOFT) | NO_TRANSITION, rows.flags)
        # A recurrent policy remembers the row, and a learner, who does not see it, cannot.
        flags[void & ~bad_obs] |= FIRST
        self._void = bad_obs
        return replace(
            rows,
            obs=_zeroed(rows.obs, bad_obs),
            rewards=rows.rewards if bad_reward is None else np.where(bad_reward, 0.0, rows.rewards),
            flags=flags.astype(np.uint8),
            final_obs=rows.final_obs if bad_final is None else _zeroed(rows.final_obs, bad_final),
        )

    def _bad_rows(self, leaves: Sequence[Array]) -> Array | None:
        """b1 [N], rows with something that is not finite in a leaf [N, *shape]; None: there are none."""
        floats = [leaf for leaf in leaves if leaf.dtype.kind == "f" and not np.isfinite(leaf).all()]
        if not floats:
            return None
        bad: Array = np.any([~np.isfinite(leaf).reshape(len(leaf), -1).all(axis=1) for leaf in floats], axis=0)
        return bad

    def _complain(self, rows: StepRows, bad_obs: Array | None, bad_final: Array | None) -> None:
        row, what = int(np.argmin(np.isfinite(rows.rewards))), "a reward"
        if bad_final is not None:
            row, what = int(rows.final_rows[np.argmax(bad_final)]), "a last observation"
        if bad_obs is not None:
            row = int(np.argmax(bad_obs))
            leaf = next(
                i for i, leaf in enumerate(rows.obs) if leaf.dtype.kind == "f" and not np.isfinite(leaf[row]).all()
            )
            what = f"an observation (leaf {leaf})"
        raise NonFiniteRows(
            f"environment {self._slots[row]} gave {what} that is NaN or infinite: --nonfinite cut leaves such steps out"
        )


def _zeroed(leaves: Sequence[Array], bad: Array) -> list[Array]:
    """Copies with zeros in these rows, of the leaves that can hold NaN; the decoder may still need its own."""
    zeroed = []
    for leaf in leaves:
        if leaf.dtype.kind == "f":
            leaf = leaf.copy()
            leaf[bad] = 0
        zeroed.append(leaf)
    return zeroed
