"""`Ring`: rows in memory that is made once, R per fleet slot, in which every frame of a stack stands once.

A slot's rows have positions 0, 1, 2, ... for as long as the run lasts; position p stands at row `slot * R + p % R`.
A stacked observation at p is its newest frame there with the frames before it, so those k - 1 have to stand there, and
`write_observations` puts them where they do not. Memory is touched only as it is filled.

Invariants: observations come out as they went in, bit for bit (test_observations_come_back); frames are stored in the
dtype they came in, once (test_a_row_costs_a_frame).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncrl.buffers.blocks import Blocks
from asyncrl.errors import LocalProtocolError
from asyncrl.records import Array
from asyncrl.wire.spec import LaneSpec


class Ring:
    """`columns`: arrays `[num_slots * R, ...]` by name, of which each row is written as a whole."""

    def __init__(self, spec: LaneSpec, capacity: int, num_slots: int) -> None:
        self.num_slots = num_slots
        self.length = capacity // num_slots  # R
        self.num_rows = self.length * num_slots
        self.depth = spec.stack_depth
        if self.length < 2 * self.depth:
            raise LocalProtocolError(f"a replay of {capacity} rows is too small for {num_slots} environments")
        self._stack_leaf = spec.stack_leaf
        self._back = np.arange(1 - self.depth, 1)  # from a stack's newest frame to all of them
        leaves = spec.observation.leaves
        frames = [leaf.shape[1:] if i == spec.stack_leaf else leaf.shape for i, leaf in enumerate(leaves)]
        self.columns: dict[str, Array] = {
            **{
                f"obs{i}": self._zeros(leaf.dtype, shape)
                for i, (leaf, shape) in enumerate(zip(leaves, frames, strict=True))
            },
            **{f"action{i}": self._zeros(leaf.dtype, leaf.shape) for i, leaf in enumerate(spec.action.leaves)},
            "reward": self._zeros("<f4"),
            "discount": self._zeros("<f4"),
            "ahead": self._zeros("<u2"),  # positions from a row to what it bootstraps from; 0: nothing
        }
        self._shapes = [leaf.shape for leaf in leaves]
        self._num_actions = len(spec.action.leaves)
        if spec.mask_size:
            self.columns["mask"] = self._zeros("?", (spec.mask_size,))
        self.blocks = Blocks(self.columns, self.num_rows)
        self._staged: dict[str, Array] = {}

    def _zeros(self, dtype: Any, shape: tuple[int, ...] = ()) -> Array:
        return np.zeros((self.num_rows, *shape), dtype)

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self.columns.values())

    def rows_at(self, slots: Array, positions: Array) -> Array:
        """i8: the rows where these positions of these fleet slots stand; arrays of shapes that broadcast."""
        rows: Array = slots * self.length + positions % self.length
        return rows

    # ------------------------------------------------------------------ writing

    def write(self, rows: Array, **values: Array) -> None:
        """`values` [N, ...] by column, at rows that are all different."""
        self.blocks.touch(rows)
        for name, value in values.items():
            self.columns[name][rows] = value

    def write_observations(
        self, slots: Array, positions: Array, obs: Sequence[Array], mask: Array | None, apart: Array
    ) -> None:
        """Leaves [N, *shape], mask b1 [N, M]. `apart` b1 [N]: whole stacks, as what precedes them is something else."""
        if not len(positions):
            return
        values = {f"obs{i}": leaf[:, -1] if i == self._stack_leaf else leaf for i, leaf in enumerate(obs)}
        if "mask" in self.columns:
            values["mask"] = np.ones(1, np.bool_) if mask is None else mask
        self.write(self.rows_at(slots, positions), **values)
        if self._stack_leaf is not None and apart.any():
            stacks = obs[self._stack_leaf][apart]
            for back in range(1, self.depth):
                rows = self.rows_at(slots[apart], positions[apart] - back)
                self.write(rows, **{f"obs{self._stack_leaf}": stacks[:, -1 - back]})

    def newest_frames(self, slots: Array, positions: Array) -> Array:
        """The frames [N, k - 1, ...] that stand before these positions."""
        assert self._stack_leaf is not None
        rows = self.rows_at(slots[:, None], positions[:, None] + self._back[:-1])
        frames: Array = self.columns[f"obs{self._stack_leaf}"][rows]
        return frames

    # ------------------------------------------------------------------ reading

    def gather(self, name: str, rows: Array) -> Array:
        """A copy of these rows of a column."""
        return np.take(self.columns[name], rows, axis=0)

    def actions(self, rows: Array) -> list[Array]:
        return [self.gather(f"action{i}", rows) for i in range(self._num_actions)]

    def observations(self, rows: Array, after: Array) -> tuple[list[Array], list[Array]]:
        """Leaves [N, *shape] at `rows`, and those at `after`: in memory that the next call takes for its own.

        Both of a pair are fetched one after the other, and what they share comes out of the cache the second time.
        """
        obs, next_obs = [], []
        pairs = np.stack([rows, after], axis=1)
        for i, shape in enumerate(self._shapes):
            if i == self._stack_leaf:
                base = pairs - pairs % self.length
                where = (base[..., None] + (pairs[..., None] + self._back) % self.length).reshape(
                    len(rows), 2 * self.depth
                )
            else:
                where = pairs
            out = self._fetch(f"obs{i}", where).reshape(len(rows), 2, *shape)
            obs.append(out[:, 0])
            next_obs.append(out[:, 1])
        return obs, next_obs

    def masks(self, rows: Array, after: Array) -> tuple[Array | None, Array | None]:
        """As `observations`."""
        if "mask" not in self.columns:
            return None, None
        out = self._fetch("mask", np.stack([rows, after], axis=1))
        return out[:, 0], out[:, 1]

    def _fetch(self, name: str, where: Array) -> Array:
        """Rows `where` [N, m] of a column, as [N, m, ...]. Fresh memory would cost more than to fill it."""
        column = self.columns[name]
        shape = (*where.shape, *column.shape[1:])
        out = self._staged.get(name)
        if out is None or out.shape != shape:
            out = self._staged[name] = np.empty(shape, column.dtype)
        # "raise" would go through a buffer; nothing is out of range here.
        np.take(column, where, axis=0, out=out, mode="clip")
        return out
