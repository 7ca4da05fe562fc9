"""The slots of a host whose environments can be looked at and replaced, which is what snapshots are taken from.

Invariants: a restored row begins a new episode and the others stand still
(test_a_restored_row_begins_an_episode_and_the_others_stand_still); one that was lost is cut and created anew as after a
fault of a step (test_a_lost_row_is_cut_and_created_anew).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium

from asyncrl.wire.flags import FIRST, NO_TRANSITION, RowState
from asyncrl.wire.step_rows import StepRows
from asyncrl.wire.tensors import Array
from envserver.episode_stats import EpisodeCounter
from envserver.row_buffers import RowBuffers
from envserver.slot import Slot
from envserver.snapshots.store import Position

AnyEnv = gymnasium.Env[Any, Any]
Fault = Callable[[int, Slot, Exception, str], None]  # what a fault of a row, during something, does to its slot


class LiveSlots:
    """`make` gives one more environment like those of the slots."""

    def __init__(
        self,
        slots: Sequence[Slot],
        rows: RowBuffers,
        stats: EpisodeCounter,
        make: Callable[[], AnyEnv],
        fault: Fault,
    ) -> None:
        self.make = make
        self._fault = fault
        self._slots, self._rows, self._stats = slots, rows, stats

    def running(self, row: int) -> AnyEnv | None:
        """The environment of a row in whose episode a next step is possible; None for any other."""
        slot = self._slots[row]
        return slot.env if slot.state == RowState.RUNNING else None

    def position(self, row: int) -> tuple[Position, list[Array]]:
        """What the client has seen last of a running row, and its observation per leaf."""
        obs, mask, to_play = self._rows.row(row)
        return Position(obs, mask, to_play, *self._stats.standing(row)), obs

    def replace(self, row: int, env: AnyEnv, position: Position, obs: Sequence[Array]) -> StepRows:
        """`env`, which stands at `position`, becomes the row's environment: a new episode. The reply of the lane."""
        slot, rows = self._slots[row], self._begun()
        if slot.env is not env:
            slot.install(env)
        rows.put(row, obs, position.mask, position.to_play)
        rows.flags[row] = FIRST | NO_TRANSITION
        self._stats.resume(row, position.game_return, position.game_length)
        slot.set_state(RowState.RUNNING)
        return rows.rows(None)

    def lose(self, row: int, error: Exception, during: str) -> StepRows:
        """The row's environment broke: its episode is cut, and it is created anew. The reply of the lane."""
        rows = self._begun()
        self._fault(row, self._slots[row], error, during)
        return rows.rows(None)

    def _begun(self) -> RowBuffers:
        """A reply in which nothing has moved yet."""
        self._rows.begin(keep_masks=True)
        self._rows.flags[:] = NO_TRANSITION
        return self._rows

    def env(self, row: int) -> AnyEnv | None:
        """The environment of a row, running or not, to restore a state into; None while it waits to be rebuilt."""
        return self._slots[row].env
