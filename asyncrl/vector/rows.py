"""What lanes answered, as the arrays and infos of a Gymnasium vector environment.

A *lost* row is no transition: its environment is gone, or has just been replaced. It is truncated with reward 0, and
`infos["asyncrl/lost"]` marks it. As long as there is no environment its observation is the last that arrived; the row
in which the replacement arrives has the new episode's first one, so that no transition links two environments
(test_a_lost_lane_is_truncated_until_its_replacement_has_arrived).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from asyncrl.gym_spaces import ValueLayout
from asyncrl.vector import infos as vector_infos
from asyncrl.vector.infos import Infos
from asyncrl.wire.flags import FIRST, NO_TRANSITION, SOFT, TERMINATED, TRUNCATED
from asyncrl.wire.step_rows import StepRows
from asyncrl.wire.tensors import Array

Step = tuple[Any, Array, Array, Array, Infos]


@dataclass(slots=True)
class LanePart:
    """One lane's share of one step; `lost` and `final_rows` are rows of the lane."""

    slots: Array  # [B] places in the batch
    obs: list[Array]  # per leaf [B, *shape]
    rows: StepRows | None  # None: no environments
    rewards: Array  # f8 [B]
    terminated: Array  # b1 [B]
    truncated: Array  # b1 [B]
    lost: Array  # [L]
    final_rows: Array  # [R]
    final_obs: list[Array]  # per leaf [R, *shape]


@dataclass(slots=True)
class LaneBook:
    """What has to be remembered of a lane between its rows."""

    slots: Array  # [B] places in the vector environment
    last_obs: list[Array]  # per leaf [B, *shape]; never handed out, only copies
    away: Array = field(init=False)  # b1 [B]: the last row had no environment
    ended: Array = field(init=False)  # b1 [B]: the last row ended an episode, and no other has begun
    flags: Array = field(init=False)  # u1 [B]: of the last step; 0 without environments

    def __post_init__(self) -> None:
        self.away = np.zeros(len(self.slots), np.bool_)
        self.ended = np.zeros(len(self.slots), np.bool_)
        self.flags = np.zeros(len(self.slots), np.uint8)

    @property
    def begun(self) -> Array:
        """b1 `[B]`: the last step shows another episode than the one before, whose reset its infos are of."""
        begun: Array = (self.flags & (FIRST | SOFT)) == FIRST
        return begun

    def present(self, mode: AutoresetMode) -> Array:
        """Rows `[N]` that have environments, as far as the last rows tell."""
        # Where each end is followed by a reset at once, one without another beginning was an end of the environment.
        absent = self.away | self.ended if mode is AutoresetMode.SAME_STEP else self.away
        return np.flatnonzero(~absent)

    def reset(self, rows: StepRows | None, mask: Array | None, *, replaced: bool = False) -> LanePart:
        """The answer to a reset of the rows of `mask`. Where another lane has taken the place of this one since its
        last rows, `replaced`, the episodes of the other rows are lost, which they are told now and by their next step.
        """
        fresh = np.ones(len(self.slots), np.bool_) if mask is None else mask
        absent = fresh.copy()
        if rows is not None:
            self.last_obs = rows.obs
            absent &= (rows.flags & FIRST) == 0  # an environment that could not be reset
        if replaced:
            absent |= ~fresh
        self.away = (self.away & ~fresh) | absent
        self.ended &= ~fresh
        nothing = np.zeros(len(self.slots), np.bool_)
        return self._part(rows, np.zeros(len(self.slots)), nothing, nothing.copy(), np.flatnonzero(absent))

    def untouched(self) -> LanePart:
        """For a reset that does not concern the lane."""
        return self.reset(None, np.zeros(len(self.slots), np.bool_))

    def step(self, rows: StepRows | None, mode: AutoresetMode) -> LanePart:
        """The answer to a step."""
        if rows is None:
            return self._without_environments(mode)
        self.flags = rows.flags
        if not rows.flags.any() and not self.away.any():  # most steps
            self.last_obs = rows.obs
            self.ended.fill(False)
            nothing = np.zeros(len(self.slots), np.bool_)
            return self._part(rows, rows.rewards, nothing, nothing.copy(), np.zeros(0, np.intp))
        flags, before = rows.flags, self.last_obs
        waiting = (flags & (NO_TRANSITION | FIRST)) == NO_TRANSITION
        begun = (flags & (NO_TRANSITION | FIRST)) == (NO_TRANSITION | FIRST)
        # In next-step mode an episode that ended by itself is followed by a first row that is no loss.
        expected = self.ended & ~self.away if mode is AutoresetMode.NEXT_STEP else np.zeros_like(self.ended)
        lost = waiting | self.away | (begun & ~expected)
        terminated = ((flags & TERMINATED) != 0) & ~lost
        truncated = ((flags & TRUNCATED) != 0) | lost
        self.last_obs = rows.obs
        self.away = waiting
        self.ended = (terminated | truncated) & ((flags & FIRST) == 0)
        part = self._part(rows, np.where(lost, 0.0, rows.rewards), terminated, truncated, np.flatnonzero(lost))
        if mode is AutoresetMode.SAME_STEP:
            own = ((flags & SOFT) != 0) | self.ended
            part.final_rows, part.final_obs = _finals(rows, np.flatnonzero(own & ~lost), part.lost, before)
        return part

    def _without_environments(self, mode: AutoresetMode) -> LanePart:
        every = np.arange(len(self.slots))
        self.away = np.ones(len(every), np.bool_)
        self.ended = np.zeros(len(every), np.bool_)
        self.flags = np.zeros(len(every), np.uint8)
        part = self._part(None, np.zeros(len(every)), np.zeros(len(every), np.bool_), self.away.copy(), every)
        if mode is AutoresetMode.SAME_STEP:
            part.final_rows, part.final_obs = every, self.last_obs
        return part

    def _part(
        self, rows: StepRows | None, rewards: Array, terminated: Array, truncated: Array, lost: Array
    ) -> LanePart:
        return LanePart(self.slots, self.last_obs, rows, rewards, terminated, truncated, lost, np.zeros(0, np.intp), [])


def _finals(rows: StepRows, own: Array, lost: Array, before: list[Array]) -> tuple[Array, list[Array]]:
    """Rows with a final observation in same-step mode, and those observations `[R, *shape]`.

    `own` rows end with the observation that they show: soft ends, where the game goes on, and ends after which the
    environment could not be reset. `lost` rows ended with the one `before`.
    """
    if not len(lost) and not len(own):
        return rows.final_rows, rows.final_obs
    final_rows = np.concatenate([rows.final_rows, own, lost]).astype(np.intp)
    order = np.argsort(final_rows)
    leaves = []
    for index, (leaf, old) in enumerate(zip(rows.obs, before, strict=True)):
        parts = [leaf[own], old[lost]]
        if len(rows.final_rows):
            parts.insert(0, rows.final_obs[index])
        leaves.append(np.concatenate(parts)[order])
    return final_rows[order], leaves


class Assembler:
    """Joins the parts of lanes into what `reset` and `step` return: arrays that belong to the caller."""

    def __init__(self, layout: ValueLayout, mask_size: int, statistics: bool) -> None:
        self._layout = layout
        self._mask_size = mask_size
        self._statistics = statistics

    def observations(self, parts: Sequence[LanePart]) -> Any:
        """Batched observations of the parts, in their order."""
        leaves = range(len(self._layout.spec.leaves))
        return self._layout.batch([np.concatenate([part.obs[leaf] for part in parts]) for leaf in leaves])

    def infos(self, parts: Sequence[LanePart], num: int, only: Array | None = None) -> Infos:
        """Infos of the parts; `only` `[num]` masks the rows that have any, as after a masked reset."""
        infos: Infos = {}
        for part in parts:
            self._part_infos(infos, part, num, only)
        return infos

    def step(self, parts: Sequence[LanePart], num: int) -> Step:
        """Observations, rewards (f8), terminated, truncated (b1) and infos of the parts, in their order."""
        return (
            self.observations(parts),
            np.concatenate([part.rewards for part in parts]),
            np.concatenate([part.terminated for part in parts]),
            np.concatenate([part.truncated for part in parts]),
            self.infos(parts, num),
        )

    def _part_infos(self, infos: Infos, part: LanePart, num: int, only: Array | None) -> None:
        slots, rows = part.slots, part.rows
        if len(part.lost):
            vector_infos.add_lost(infos, slots[part.lost], num)
        final: Infos = {}
        if len(part.final_rows):
            values = [self._layout.row(part.final_obs, r) for r in range(len(part.final_rows))]
            final = vector_infos.add_finals(infos, slots[part.final_rows], values, num)
        if rows is None:
            return
        if rows.infos:
            vector_infos.add_columns(infos, rows.infos, slots, num)
        if rows.final_infos:
            vector_infos.add_columns(final, rows.final_infos, slots, num)
        if self._mask_size and rows.mask is not None:
            which = np.arange(len(slots)) if only is None else np.flatnonzero(only[slots])
            which = which[(rows.flags[which] & (NO_TRANSITION | FIRST)) != NO_TRANSITION]  # void where a row waits
            if len(which):
                vector_infos.add_mask(infos, slots[which], rows.mask[which], num)
        if rows.final_mask is not None and len(rows.final_rows):
            vector_infos.add_mask(final, slots[rows.final_rows], rows.final_mask, num)
        if self._statistics and rows.stats is not None:
            vector_infos.add_statistics(infos, rows.stats, slots, num)
