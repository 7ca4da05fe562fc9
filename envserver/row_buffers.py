"""The arrays of one reply of a slots host, filled row by row.

Invariants: a row that nothing is written to keeps its last observation
(test_rows_outside_a_reset_mask_keep_their_observation); no mask is lost on the way
(test_a_mask_that_is_too_wide_to_travel_is_a_fault).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.spec import MAX_MASK_SIZE, LaneSpec
from asyncrl.wire.step_rows import EpisodeStats, Rebuilt, StepRows
from asyncrl.wire.tensors import Array
from envserver.gym_spec import BadValue, RowWriter, buffers_for
from envserver.info_columns import InfoCollector

ACTION_MASK = "action_mask"
TO_PLAY = "to_play"


class RowBuffers:
    """Observations, masks and infos of B slots; one reply lies between `begin` and `rows`."""

    def __init__(self, spec: LaneSpec, observation: gymnasium.Space[Any], num_slots: int) -> None:
        self._num_slots = num_slots
        self._width = spec.mask_size
        self._too_wide = _too_wide(spec)
        self._obs = buffers_for(spec.observation, num_slots)
        self._final_obs = buffers_for(spec.observation, num_slots)
        self.write_obs = RowWriter(observation, self._obs).write
        self._write_final = RowWriter(observation, self._final_obs).write
        self._mask = np.ones((num_slots, self._width), np.bool_)
        self._final_mask = np.ones((num_slots, self._width), np.bool_)
        self._to_play = np.zeros(num_slots, "<i4")
        # From the first time on that an environment gives one, every reply has it.
        self._has_mask = self._has_to_play = False
        self._skip = frozenset({TO_PLAY, ACTION_MASK} if self._width else {TO_PLAY})
        self._final_rows: list[int] = []
        self._infos: InfoCollector | None = None
        self._final_infos: InfoCollector | None = None
        self.flags = np.zeros(num_slots, np.uint8)
        self.rewards = np.zeros(num_slots)
        self.rebuilt: list[Rebuilt] = []

    def begin(self, keep_masks: bool) -> None:
        """A new reply; `keep_masks` where rows that do not move stay playable (a masked reset)."""
        self.flags = np.zeros(self._num_slots, np.uint8)
        self.rewards = np.zeros(self._num_slots)
        if self._final_rows:
            self._final_rows = []
        if self.rebuilt:
            self.rebuilt = []
        self._infos = self._final_infos = None
        if self._has_mask and not keep_masks:
            self._mask.fill(True)

    def add_info(self, row: int, info: dict[Any, Any]) -> None:
        """The info that belongs to the row's observation; empty ones need no call."""
        if not isinstance(info, dict):
            raise BadValue(f"the info is a {type(info).__name__}, no dict")
        if self._width and ACTION_MASK in info:
            self._has_mask = True
            self._mask[row] = read_mask(info[ACTION_MASK], self._width)
        if self._too_wide and ACTION_MASK in info:
            raise BadValue(
                f"info[{ACTION_MASK!r}] of {self._too_wide} actions; {MAX_MASK_SIZE} are possible: leave it out, or "
                "split the action over a MultiDiscrete space"
            )
        if TO_PLAY in info:
            self._has_to_play = True
            self._to_play[row] = read_player(info[TO_PLAY])
        if self._infos is None:
            self._infos = InfoCollector()
        self._infos.add(row, info, self._skip)

    def add_final(self, row: int, obs: Any, info: dict[Any, Any]) -> None:
        """What an episode ended with, copied before a reset of the environment can overwrite it."""
        number = len(self._final_rows)
        self._write_final(number, obs)
        if info and not isinstance(info, dict):
            raise BadValue(f"the info is a {type(info).__name__}, no dict")
        self._final_mask[number] = True
        if self._width and ACTION_MASK in info:
            self._has_mask = True
            self._final_mask[number] = read_mask(info[ACTION_MASK], self._width)
        self._final_rows.append(row)
        if info:
            if self._final_infos is None:
                self._final_infos = InfoCollector()
            self._final_infos.add(row, info, self._skip)

    def withdraw_final(self, row: int) -> None:
        """The reset after the last `add_final` failed: the final observation becomes the row's own."""
        self._final_rows.pop()
        number = len(self._final_rows)
        for buffer, final in zip(self._obs, self._final_obs, strict=True):
            buffer[row] = final[number]
        if self._final_infos is not None:
            self._final_infos.discard(row)

    def clear_mask(self, row: int) -> None:
        """Every action allowed again, until an info says otherwise."""
        self._mask[row] = True

    def row(self, row: int) -> tuple[list[Array], Array | None, int | None]:
        """Copies of what a row shows now: observation per leaf, mask, player."""
        mask = self._mask[row].copy() if self._has_mask else None
        return (
            [np.array(buffer[row]) for buffer in self._obs],
            mask,
            int(self._to_play[row]) if self._has_to_play else None,
        )

    def put(self, row: int, obs: Sequence[Array], mask: Array | None, to_play: int | None) -> None:
        """Show an observation from elsewhere, per leaf `[*shape]`, and what belongs to it."""
        for buffer, leaf in zip(self._obs, obs, strict=True):
            buffer[row] = leaf
        self._mask[row] = True if mask is None else mask
        self._has_mask |= mask is not None
        if to_play is not None:
            self._has_to_play = True
            self._to_play[row] = to_play

    def rows(self, stats: EpisodeStats | None) -> StepRows:
        """The reply; its arrays are overwritten by the next one."""
        finals = len(self._final_rows)
        rows = StepRows(self._obs, self.rewards, self.flags, stats=stats, rebuilt=self.rebuilt)
        if finals:
            rows.final_rows = np.array(self._final_rows, "<u4")
            rows.final_obs = [buffer[:finals] for buffer in self._final_obs]
        if self._has_mask:
            rows.mask = self._mask
            rows.final_mask = self._final_mask[:finals] if finals else None
        if self._has_to_play:
            rows.to_play = self._to_play
        if self._infos is not None:
            rows.infos, rows.infos_dropped = self._infos.columns(), self._infos.dropped
        if self._final_infos is not None:
            rows.final_infos = self._final_infos.columns()
            rows.infos_dropped += self._final_infos.dropped
        return rows


def _too_wide(spec: LaneSpec) -> int:
    """How many actions there are, where that is more than masks can have; else 0."""
    node = spec.action.nodes[0]
    count = node.n if node.kind == pb.DISCRETE else 0
    if node.kind == pb.MULTI_DISCRETE and node.nvec is not None:
        count = int(node.nvec.sum())
    return count if count > MAX_MASK_SIZE else 0


def read_mask(value: Any, width: int) -> Array:
    """b1 `[width]` from what an info has; BadValue where it is no mask."""
    # MultiDiscrete.sample takes its mask as a tuple of arrays, one per choice.
    parts = value if isinstance(value, tuple) else (value,)
    try:
        mask = np.concatenate([np.asarray(part).reshape(-1) for part in parts])
    except ValueError as error:
        raise BadValue(f"info[{ACTION_MASK!r}] is no array: {error}") from None
    if mask.shape != (width,) or mask.dtype.kind not in "biu":
        raise BadValue(
            f"info[{ACTION_MASK!r}] is {mask.dtype}{list(mask.shape)}; an i1 or b1 array [{width}] is wanted"
        )
    return mask.astype(np.bool_)


def read_player(value: Any) -> int:
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise BadValue(f"info[{TO_PLAY!r}] is a {type(value).__name__}, no integer")
    return int(value)
