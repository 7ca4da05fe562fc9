"""`Gathering`: batches of so many steps out of unrolls of whatever size; what does not fit waits for the next batch.

A batch takes whole unrolls, and of the last one as many slots as it still wants. So its size depends neither on how
many environments a lane has nor on how many lanes there are. Staleness is asked for each batch, of what goes into it:
what waits here grows older.

Belongs to the learner's thread.

Invariants: every step is in one batch, in the order it came, or was too old (test_every_step_is_in_one_batch); a batch
has as many steps as asked for, where unrolls are whole and their length divides that
(test_batches_are_of_one_size_whatever_the_lanes_are); what waits is measured anew when its batch is due
(test_what_waits_grows_older).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from asyncrl.buffers.staleness import Staleness
from asyncrl.records import Unroll


class Gathering:
    """`batch_steps`: transitions that a batch has at least."""

    def __init__(self, batch_steps: int, staleness: Staleness) -> None:
        self._batch_steps = batch_steps
        self._staleness = staleness
        self._waiting: deque[Unroll] = deque()
        self._batch: list[Unroll] = []
        self._steps = 0  # in `_batch`

    def add(self, unrolls: Sequence[Unroll]) -> None:
        self._waiting.extend(unrolls)

    def batch(self, version: int) -> list[Unroll] | None:
        """To be trained on by weights of `version`; None where there is not enough yet.

        The version must not change from a None to the batch that follows.
        """
        while self._waiting and self._steps < self._batch_steps:
            unroll = self._waiting.popleft()
            wanted = -(-(self._batch_steps - self._steps) // unroll.num_steps)
            if wanted < unroll.num_slots:
                self._waiting.appendleft(slots_of(unroll, wanted, unroll.num_slots))
                unroll = slots_of(unroll, 0, wanted)
            for admitted in self._staleness.admit([unroll], version):
                self._batch.append(admitted)
                self._steps += admitted.num_valid
        if self._steps < self._batch_steps:
            return None
        whole, self._batch, self._steps = self._batch, [], 0
        return whole


def slots_of(unroll: Unroll, start: int, stop: int) -> Unroll:
    """The slots from `start` up to `stop`, as views."""
    slots = slice(start, stop)
    here = (unroll.end_rows[:, 1] >= start) & (unroll.end_rows[:, 1] < stop)
    by_row = {name: getattr(unroll, name)[:, slots] for name in _BY_ROW}
    return replace(
        unroll,
        **by_row,
        fleet_slots=unroll.fleet_slots[slots],
        obs=[leaf[:, slots] for leaf in unroll.obs],
        action=[leaf[:, slots] for leaf in unroll.action],
        kept=[leaf[:, slots] for leaf in unroll.kept],
        mask=None if unroll.mask is None else unroll.mask[:, slots],
        carry=[leaf[slots] for leaf in unroll.carry],
        last_obs=[leaf[slots] for leaf in unroll.last_obs],
        last_mask=None if unroll.last_mask is None else unroll.last_mask[slots],
        last_first=unroll.last_first[slots],
        end_rows=unroll.end_rows[here] - np.array([0, start]),
        end_obs=[leaf[here] for leaf in unroll.end_obs],
        end_mask=None if unroll.end_mask is None else unroll.end_mask[here],
    )


_BY_ROW: Final = (
    *("log_prob", "value", "first", "reward", "terminated", "truncated", "cut", "soft", "valid"),
    *("incarnation", "episode", "t"),
)
