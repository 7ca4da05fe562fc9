"""What a minibatch is: any rows together for a feed-forward model, whole slots for one with a carry.

Either way losses see valid rows only, as [M]: void rows of a slot go through the network (they hold zeros) and are left
out behind it.

Invariants: an epoch shows every valid row once and no void one, in parts that differ by one at most
(test_an_epoch_shows_every_valid_row_once, test_an_epoch_shows_every_slot_once); the first epoch's parts follow from the
seed (test_shuffles_follow_from_the_seed).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from asyncrl.learner.batches import Batch
from asyncrl.learner.encoders import lies_side_by_side
from asyncrl.learner.model import ActorCritic
from asyncrl.records import Array


class Part(NamedTuple):
    """One minibatch of a batch of [T, N] rows."""

    rows: Tensor  # i8 [M], t * N + n of its valid rows
    slots: Tensor | None = None  # i8 [K], for sequences


class Split(Protocol):
    """How a batch falls into parts, and what the model says about one."""

    def parts(self, rng: np.random.Generator | None) -> Iterator[Part]:
        """An epoch of parts, shuffled; in order for None. No part is empty."""
        ...

    def forward(self, model: ActorCritic, part: Part) -> tuple[Tensor, Tensor]:
        """Parameters [M, P] of the policy, and values [M]."""
        ...


class RowSplit:
    """Rows in any order, for a model without a carry."""

    def __init__(self, batch: Batch, num_parts: int) -> None:
        self._rows = np.flatnonzero(batch.valid)
        self._num_parts = min(num_parts, len(self._rows))
        self._device = batch.first.device
        self._obs = [leaf.flatten(0, 1) for leaf in batch.obs]
        self._first = batch.first.flatten()

    def parts(self, rng: np.random.Generator | None) -> Iterator[Part]:
        rows = self._rows if rng is None else rng.permutation(self._rows)
        for part in torch.from_numpy(rows).to(self._device).tensor_split(self._num_parts):
            yield Part(part)

    def forward(self, model: ActorCritic, part: Part) -> tuple[Tensor, Tensor]:
        obs = [rows_of_leaf(leaf, part.rows) for leaf in self._obs]
        out = model.step(obs, self._first.index_select(0, part.rows), [])
        return out.params, out.value


def rows_of_leaf(leaf: Tensor, rows: Tensor) -> Tensor:
    """In the order of memory that the leaf has."""
    if leaf.dim() == 4 and lies_side_by_side(leaf):
        return leaf.movedim(1, 3).index_select(0, rows).movedim(3, 1)
    return leaf.index_select(0, rows)


class SlotSplit:
    """Whole unrolls of slots from their first carry, for a model with one."""

    def __init__(self, batch: Batch, num_parts: int) -> None:
        self._batch = batch
        self._slots = np.flatnonzero(batch.valid.any(axis=0))
        self._num_parts = min(num_parts, len(self._slots))

    def parts(self, rng: np.random.Generator | None) -> Iterator[Part]:
        slots = self._slots if rng is None else rng.permutation(self._slots)
        valid, num_slots = self._batch.valid, self._batch.num_slots
        for chosen in np.array_split(slots, self._num_parts):
            t, k = np.nonzero(valid[:, chosen])
            yield Part(self._tensor(t * num_slots + chosen[k]), self._tensor(chosen))

    def forward(self, model: ActorCritic, part: Part) -> tuple[Tensor, Tensor]:
        batch, slots = self._batch, part.slots
        assert slots is not None
        first = batch.first.index_select(1, slots)
        carry = [leaf.index_select(0, slots) for leaf in batch.carry]
        out = model.sequence([leaf.index_select(1, slots) for leaf in batch.obs], first, carry)
        place = self._places(part.rows, slots)
        return out.params.flatten(0, 1).index_select(0, place), out.value.flatten().index_select(0, place)

    def _places(self, rows: Tensor, slots: Tensor) -> Tensor:
        """Where the rows t * N + n are in [T, K] of the chosen slots."""
        num_slots = self._batch.num_slots
        column = torch.empty(num_slots, dtype=torch.int64, device=rows.device)
        column[slots] = torch.arange(len(slots), device=rows.device)
        return rows // num_slots * len(slots) + column.index_select(0, rows % num_slots)

    def _tensor(self, array: Array) -> Tensor:
        return torch.from_numpy(array).to(self._batch.first.device)


def split_of(batch: Batch, num_parts: int) -> Split:
    return SlotSplit(batch, num_parts) if batch.carry else RowSplit(batch, num_parts)
