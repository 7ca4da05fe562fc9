"""`Staleness`: rows that were acted on too many policy versions ago are not trained on.

What counts is the version at the moment of training, so the learner asks when it has taken unrolls and before it makes
a batch of them. Versions only grow along an unroll, so what is too old is its beginning: those rows become void, and
the rest stays, with which lanes that are slow still contribute. An unroll of which nothing stays is dropped, and so is
one with a carry, which nothing but its beginning can bring up to the rest.

Guard: `_lock` holds for the counters, which the learner's thread writes and any thread reads through `counts`.

Invariants: no admitted row is older than `max_lag` versions (test_no_admitted_row_is_too_old); rows are admitted or
counted as dropped, each once (test_rows_are_admitted_or_counted); what stays is unchanged
(test_what_stays_is_unchanged).
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from asyncrl.records import Unroll
from asyncrl.wire.tensors import Array

log = logging.getLogger("asyncrl.staleness")


@dataclass
class StalenessCounts:
    """Since the start. `lags`: steps trained on, by how many versions old they were then."""

    lags: Counter[int] = field(default_factory=Counter)
    steps_dropped: int = 0
    unrolls_dropped: int = 0  # whole ones

    @property
    def mean_lag(self) -> float:
        """Of a step that was trained on; 0.0 before the first."""
        steps = self.lags.total()
        return sum(lag * count for lag, count in self.lags.items()) / steps if steps else 0.0


class Staleness:
    """`max_lag` None: everything is admitted, and counted."""

    def __init__(self, max_lag: int | None) -> None:
        self.max_lag = max_lag
        self._lock = threading.Lock()
        self._counts = StalenessCounts()
        self._told = 0

    @property
    def counts(self) -> StalenessCounts:
        """A copy."""
        with self._lock:
            return replace(self._counts, lags=self._counts.lags.copy())

    def admit(self, unrolls: Sequence[Unroll], version: int) -> list[Unroll]:
        """What may be trained on by a policy of `version`. Unrolls lose their old rows in place."""
        admitted = []
        for unroll in unrolls:
            before = unroll.num_valid
            lags = version - unroll.version
            if self.max_lag is not None and lags.max() > self.max_lag:
                _void(unroll, lags > self.max_lag)
            after = unroll.num_valid
            self._count(lags, np.count_nonzero(unroll.valid, axis=1), before - after)
            if after:
                admitted.append(unroll)
        return admitted

    def _count(self, lags: Array, steps: Array, dropped: int) -> None:
        """`lags`, `steps` [T]: of each row how old, and how many steps of it stay."""
        with self._lock:
            counts = self._counts
            for lag in np.unique(lags).tolist():
                stay = int(steps[lags == lag].sum())
                if stay:
                    counts.lags[lag] += stay
            counts.steps_dropped += dropped
            counts.unrolls_dropped += not steps.any()
            total = counts.steps_dropped
        if total >= 2 * self._told and dropped:  # each time it has doubled
            self._told = total
            log.warning("%d steps were older than %s policy versions and dropped", total, self.max_lag)


def _void(unroll: Unroll, old: Array) -> None:
    """`old` b1 [T]: these rows are no transitions any more."""
    if unroll.carry:
        old = np.ones_like(old)
    for flag in (unroll.valid, unroll.terminated, unroll.truncated, unroll.cut, unroll.soft):
        flag[old] = False
    stay = ~old[unroll.end_rows[:, 0]]
    unroll.end_rows = unroll.end_rows[stay]
    unroll.end_obs = [leaf[stay] for leaf in unroll.end_obs]
    if unroll.end_mask is not None:
        unroll.end_mask = unroll.end_mask[stay]
