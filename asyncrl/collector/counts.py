"""What a collector starts from (`CollectorState`), is asked for (`CollectorConfig`), tells and counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

import numpy as np

from asyncrl.collector.finite import Nonfinite
from asyncrl.wire.tensors import Array

STRAGGLER_FACTOR: Final = 2.0


@dataclass(frozen=True, kw_only=True)
class CollectorConfig:
    """How unrolls are collected, and who acts together."""

    num_steps: int  # of an unroll
    lag: int | None = 0  # rounds that collection may be ahead of the learner; None: async, no rounds
    act_groups: int = 0  # fixed groups of lanes that act together; 0: whoever is ready
    fire_at: int = 1  # without groups: lanes that make a forward
    act_deadline_s: float = 0.002  # without groups: after which fewer do
    act_on_loop: bool = False  # only where no learner computes meanwhile
    nonfinite: Nonfinite = "raise"  # NaN or infinity from an environment: end the run, or leave such steps out


@dataclass
class CollectorState:
    """What a resumed run goes on from. Arrays are by fleet slot."""

    act_steps: Array  # i8 [num_envs]: acts so far; numbers the noise
    carry: list[Array] = field(default_factory=list)  # per carry leaf [num_envs, *shape]
    round: int = 0  # the next one; so many have been handed over, and trained on
    steps: int = 0  # environment steps so far

    @classmethod
    def fresh(cls, num_envs: int, carry: Sequence[Array] = ()) -> CollectorState:
        """Of a run that begins; `carry` as the policy's initial one."""
        return cls(np.zeros(num_envs, np.int64), list(carry))


@dataclass(frozen=True)
class EpisodesEnded:
    """Whole games that ended in one reply, rewards raw; `[E]` each."""

    steps: int  # environment steps of the run when it arrived; with rounds, had the lanes been in lockstep
    fleet_slots: Array  # i8
    returns: Array  # f8
    lengths: Array  # u4
    times: Array  # f4, seconds


@dataclass
class CollectorStats:
    """Counters since the collector was made; all on the loop's thread. `steps` = in unrolls handed over, in those not
    complete yet, or in `steps_dropped`."""

    steps: int  # of the run: transitions that arrived
    steps_by_lane: Counter[int] = field(default_factory=Counter)
    episodes_started: int = 0  # whole games; those that have not ended run, or were cut
    episodes_finished: int = 0
    void_rows: int = 0  # that arrived and were no transitions, or were left out
    nonfinite_steps: int = 0  # left out: something in them was NaN or infinite
    steps_handed: int = 0  # in unrolls that the hand-off took
    steps_dropped: int = 0  # in unrolls that were not complete, or found no taker, when collection ended
    unrolls: int = 0  # handed over
    short_unrolls: int = 0  # of lost lanes
    lost_lanes: int = 0
    lost_steps: int = 0  # sent to a lane that was lost before it replied; they may have been executed
    stragglers: Counter[int] = field(default_factory=Counter)  # unrolls that took twice as long as is usual, by lane
    # Lane-seconds: how long lanes waited for actions, for environments, for the learner (its gate, or its hand-off).
    acting_s: float = 0.0
    env_s: float = 0.0
    learner_s: float = 0.0
    _unroll_s: dict[int, float] = field(default_factory=dict)

    def unroll_took(self, lane: int, seconds: float) -> None:
        """A whole unroll, without what the lane waited for the learner."""
        self._unroll_s[lane] = seconds
        others = [took for other, took in self._unroll_s.items() if other != lane]
        if others and seconds > STRAGGLER_FACTOR * median(others):
            self.stragglers[lane] += 1
