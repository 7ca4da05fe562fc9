"""`LaneDriver`: one lane of a collector, from rows to actions to rows; what it fills is an unroll.

    OUT ──rows──► AT_GATE ──begin──► ACTING ◄──actions/rows──► STEPPING
     ▲               ▲                                             │
     └── lost, from anywhere        unroll complete ◄──────────────┘

Invariants: a lane has one request out at a time, to the batcher or to its environments (test_one_request_at_a_time);
every action is paired with the reply to it and with the observation it was chosen for
(test_every_row_pairs_observation_action_and_reply); keys of noise never repeat (test_keys_never_repeat).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import Enum
from time import perf_counter
from typing import Protocol

import numpy as np

from asyncrl.client.fleet_lane import Arrival, FleetLane
from asyncrl.collector.counts import CollectorConfig, CollectorState, CollectorStats
from asyncrl.collector.finite import Sieve
from asyncrl.collector.joining import ActRequest
from asyncrl.collector.unroll import UnrollBuilder
from asyncrl.errors import LocalProtocolError
from asyncrl.keyed_noise import STEP_BITS, row_keys
from asyncrl.policy import Acted
from asyncrl.records import Unroll
from asyncrl.wire.flags import FIRST, NO_TRANSITION, SOFT
from asyncrl.wire.step_rows import StepRows
from asyncrl.wire.tensors import Array


class Phase(Enum):
    """What a lane waits for."""

    OUT = 0  # rows: it has just been opened, or is lost
    AT_GATE = 1  # leave to begin an unroll
    ACTING = 2  # actions
    STEPPING = 3  # rows


class LaneOwner(Protocol):
    """The collector as its lanes see it."""

    stats: CollectorStats

    def submit(self, request: ActRequest) -> asyncio.Future[Acted]: ...

    def lane_at_gate(self, driver: LaneDriver) -> None:
        """Rows of a lane that was out."""
        ...

    def unroll_complete(self, driver: LaneDriver, unroll: Unroll | None) -> None: ...

    def lane_lost(self, driver: LaneDriver, unroll: Unroll | None, in_round: bool) -> None: ...

    def episodes_ended(self, driver: LaneDriver, rows: StepRows) -> None: ...

    def fail(self, error: BaseException) -> None: ...


class LaneDriver:
    """Belongs to the loop. Of the carries of `state` it takes a copy."""

    def __init__(self, lane: FleetLane, config: CollectorConfig, state: CollectorState, owner: LaneOwner) -> None:
        self.lane = lane
        self.index = lane.index
        self.phase = Phase.OUT
        self.carry: list[Array] = [leaf[lane.fleet_slots] for leaf in state.carry]
        self._num_steps = config.num_steps
        self._sieve = Sieve(lane.fleet_slots, config.nonfinite)
        self._owner = owner
        self._stats = owner.stats
        self._keys = row_keys(lane.fleet_slots, state.act_steps[lane.fleet_slots])
        self._rows: StepRows | None = None  # what arrived last
        self._builder: UnrollBuilder | None = None
        self._number = 0
        self._answer: asyncio.Future[Acted] | None = None
        self._sent = False  # the last action, rather than dropped
        self._since = perf_counter()  # the phase
        self._begun_at = 0.0

    @property
    def act_steps(self) -> Array:
        """i8 [B]."""
        steps: Array = (self._keys & np.uint64((1 << STEP_BITS) - 1)).astype(np.int64)
        return steps

    @property
    def rows_held(self) -> int:
        """Rows of the unroll that is not complete."""
        return 0 if self._builder is None else self._builder.num_rows

    @property
    def steps_held(self) -> int:
        """Transitions of the unroll that is not complete."""
        return 0 if self._builder is None else self._builder.num_transitions

    # ------------------------------------------------------------------ rows

    def arrived(self, arrival: Arrival) -> None:
        """An arrival of this lane."""
        rows = arrival.rows
        if rows is None:
            self._lost()
        elif self.phase is Phase.STEPPING:
            self._replied(rows, arrival)
        elif self.phase is Phase.OUT:
            self._stats.episodes_started += _started(rows)
            self._rows = self._sieve.opened(rows)
            self._enter(Phase.AT_GATE)
            self._owner.lane_at_gate(self)
        else:
            raise LocalProtocolError(f"lane {self.index}: rows that answer no step of this collector")

    def _replied(self, rows: StepRows, arrival: Arrival) -> None:
        builder, stats = self._builder, self._stats
        assert builder is not None
        now = perf_counter()
        stats.env_s += now - self._since
        cut_before = self._sieve.num_cut
        stats.episodes_started += _started(rows)  # the sieve says FIRST of rows that begin no game
        self._rows = rows = self._sieve.passed(rows)
        stats.nonfinite_steps += self._sieve.num_cut - cut_before
        builder.replied(rows, arrival.incarnation, arrival.episode, arrival.t)
        num_void = int(np.count_nonzero(rows.flags & NO_TRANSITION))
        num_steps = len(rows.flags) - num_void
        stats.void_rows += num_void
        stats.steps += num_steps
        stats.steps_by_lane[self.index] += num_steps
        if rows.stats is not None:
            stats.episodes_finished += len(rows.stats.rows)
            self._owner.episodes_ended(self, rows)
        if not builder.is_complete:
            self._show(builder, rows, now)
            return
        stats.unroll_took(self.index, now - self._begun_at)
        self._enter(Phase.AT_GATE)
        self._owner.unroll_complete(self, self._finish())

    def _lost(self) -> None:
        in_round = self._builder is not None
        if self.phase is Phase.STEPPING and self._sent:
            self._stats.lost_steps += self.lane.num_slots
        unroll = self._finish() if in_round else None
        self._stats.short_unrolls += unroll is not None
        self.drop_answer()
        self._rows = None
        self._enter(Phase.OUT)
        self._owner.lane_lost(self, unroll, in_round)

    def _finish(self) -> Unroll | None:
        builder, rows = self._builder, self._rows
        assert builder is not None
        assert rows is not None
        self._builder = None
        return builder.finish(self.index, self._number, self.lane.fleet_slots, rows)

    # ------------------------------------------------------------------ actions

    def begin(self, number: int) -> None:
        """The gate is open: the first act of unroll `number`."""
        assert self.phase is Phase.AT_GATE
        assert self._rows is not None
        now = perf_counter()
        self._stats.learner_s += now - self._since
        self._begun_at, self._number = now, number
        self._builder = UnrollBuilder(self._num_steps, self.lane.num_slots, self.carry)
        self._show(self._builder, self._rows, now)

    def _show(self, builder: UnrollBuilder, rows: StepRows, now: float) -> None:
        first = (rows.flags & FIRST) != 0
        obs, mask = builder.observed(rows.obs, rows.mask, first)
        self.phase, self._since = Phase.ACTING, now
        answer = self._owner.submit(ActRequest(self.index, obs, first, mask, self.carry, self._keys, rows.to_play))
        self._answer = answer
        if answer.done():
            self._answered(answer)
        else:
            answer.add_done_callback(self._answered)

    def _answered(self, answer: asyncio.Future[Acted]) -> None:
        if answer is not self._answer or answer.cancelled():
            return
        error = answer.exception()
        if error is not None:
            self._owner.fail(error)
            return
        try:
            self._act(answer.result())
        except Exception as wrong:  # a callback has nobody to raise to
            self._owner.fail(wrong)

    def _act(self, acted: Acted) -> None:
        builder = self._builder
        assert builder is not None
        self._answer = None
        now = perf_counter()
        self._stats.acting_s += now - self._since
        # First the environments: they compute while the rest is written down. Where the lane is down the action is
        # dropped, and its loss arrives.
        self._sent = self.lane.step(acted.sent_action)
        self.phase, self._since = Phase.STEPPING, now
        builder.acted(acted)
        self._keys += np.uint64(1)
        self._keep(acted.carry)

    def _keep(self, carry: Sequence[Array]) -> None:
        for kept, leaf in zip(self.carry, carry, strict=True):
            kept[:] = leaf

    def drop_answer(self) -> None:
        """Actions that are on their way are for nobody any more; their keys stay used."""
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.cancel()
            self._keys = self._keys + np.uint64(1)
            # The forward that was asked may still read the old ones.
            self.carry = [leaf.copy() for leaf in self.carry]

    def _enter(self, phase: Phase) -> None:
        self.phase, self._since = phase, perf_counter()


def _started(rows: StepRows) -> int:
    """Games that begin with these rows: after a lost life the game goes on."""
    return int(np.count_nonzero((rows.flags & (FIRST | SOFT)) == FIRST))
