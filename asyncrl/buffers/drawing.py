"""`Drawing`: which rows of a replay can be drawn, and the drawing.

Invariants: uniform draws hit every row alike, however full the slots are (test_uniform_draws_are_uniform);
prioritised ones in proportion to priority^α, with the weights of that (test_draws_are_in_proportion,
test_probabilities_and_weights_are_the_golden_ones); what is removed is not drawn (test_what_is_removed_is_not_drawn).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from asyncrl.buffers.sum_tree import SumTree
from asyncrl.errors import LocalProtocolError
from asyncrl.records import Array

LEAST_PRIORITY: Final = 1e-6  # what can be drawn is drawn at times


class Drawing:
    """Rows of slots of `length` rows each. `alpha` None: uniform."""

    def __init__(self, num_rows: int, length: int, alpha: float | None) -> None:
        self.drawable = np.zeros(num_rows, np.bool_)
        self.count = 0
        self.greatest = 1.0  # priority that there ever was: of rows of which nothing is known yet
        self._length = length
        self._alpha = alpha
        self._tree = None if alpha is None else SumTree(num_rows)

    def add(self, rows: Array, priorities: Array | None) -> None:
        """Rows that could not be drawn until now, all different."""
        self.drawable[rows] = True
        self.count += len(rows)
        if self._tree is not None:
            self.prioritise(rows, np.full(len(rows), self.greatest) if priorities is None else priorities)

    def remove(self, rows: Array) -> None:
        """Rows that may be drawable, all different."""
        rows = rows[self.drawable[rows]]
        self.drawable[rows] = False
        self.count -= len(rows)
        if self._tree is not None and len(rows):
            self._tree.set(rows, np.zeros(len(rows)))

    def prioritise(self, rows: Array, priorities: Array) -> None:
        """`priorities` f8 [N], not negative, of rows that can be drawn; of one that occurs twice, the last counts."""
        if self._tree is None or self._alpha is None:
            raise LocalProtocolError("priorities for a replay that draws uniformly")
        if not (np.isfinite(priorities) & (priorities >= 0.0)).all():
            raise LocalProtocolError("a priority is a finite number, 0 or more")
        self.greatest = max(self.greatest, float(priorities.max(initial=0.0)))
        self._tree.set(rows, np.maximum(priorities, LEAST_PRIORITY) ** self._alpha)

    def draw(self, count: int, rng: np.random.Generator, beta: float, filled: Array) -> tuple[Array, Array]:
        """Rows i8 [count] and their weights f4 [count]. `filled` i8 [S]: of each slot, rows that were ever written.

        A row's weight is (N·P)^-β over the greatest one of the whole replay, hence (least p / p)^β.
        """
        if not self.count:
            raise LocalProtocolError("nothing can be drawn from a replay that holds no complete transition")
        if self._tree is None:
            return self._uniform(count, rng, filled), np.ones(count, np.float32)
        rows = self._tree.draw(count, rng)
        return rows, ((self._tree.least / self._tree[rows]) ** beta).astype(np.float32)

    def _uniform(self, count: int, rng: np.random.Generator, filled: Array) -> Array:
        """Any rows that were ever written are tried, until enough of them can be drawn, as nearly all can."""
        ends = np.cumsum(filled)
        found: list[Array] = []
        missing = count
        while missing:
            tried = rng.integers(ends[-1], size=missing + missing // 16)
            slots = np.searchsorted(ends, tried, side="right")
            rows = slots * self._length + tried - (ends[slots] - filled[slots])
            found.append(rows[self.drawable[rows]][:missing])
            missing -= len(found[-1])
        return np.concatenate(found)

    def state(self) -> dict[str, Array]:
        """Copies of what `load` takes."""
        priorities = {} if self._tree is None else {"priorities": self._tree.values()}
        return {"drawable": np.packbits(self.drawable), "greatest": np.array(self.greatest), **priorities}

    def load(self, arrays: Mapping[str, Array]) -> None:
        self.drawable = np.unpackbits(arrays["drawable"], count=len(self.drawable)).view(np.bool_)
        self.count = int(np.count_nonzero(self.drawable))
        self.greatest = float(arrays["greatest"])
        if self._tree is not None:
            self._tree.fill(arrays["priorities"])
