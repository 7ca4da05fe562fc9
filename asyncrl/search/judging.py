"""What leaves are worth and which actions they have: from a network, from proposals, or without either.

Invariants: the end of an episode is never evaluated, and an end by truncation only for its value
(test_ends_of_episodes_are_never_evaluated); who proposes actions is told what is allowed
(test_proposals_know_the_masks_of_their_states).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import numpy as np

from asyncrl.errors import ConfigError
from asyncrl.records import Array
from asyncrl.search.config import SearchConfig
from asyncrl.search.simulator import Evaluate, Propose


class Leaf(NamedTuple):
    """A state to be judged."""

    obs: Sequence[Array]  # per leaf [*shape]
    mask: Array | None  # b1 [A]; where actions are sampled [M], see `Propose`
    to_play: int | None
    key: int  # unlike that of any other state


class Judged(NamedTuple):
    """What was found about N states."""

    logits: Array  # f8 [N, A]
    mask: Array  # b1 [N, A]
    value: Array  # f8 [N]; zeros unless leaves are worth what is evaluated
    actions: list[Array]  # per action leaf [N, A, *shape], where actions are sampled


class Judge:
    """Asks `evaluate`, if there is one. `num_actions` is 0 until the first states are judged."""

    def __init__(self, evaluate: Evaluate | Propose | None, config: SearchConfig) -> None:
        if evaluate is None and (config.leaf == "evaluate" or config.num_sampled):
            raise ConfigError('without an evaluator pass leaf="rollout" or leaf="zero", and no num_sampled')
        self._evaluate, self._config = evaluate, config
        self.num_actions = config.num_sampled

    async def judge(self, leaves: Sequence[Leaf]) -> Judged:
        """All of them in one call. Cancelled, it leaves what `evaluate` leaves."""
        if self._config.num_sampled:
            judged = await self._propose(leaves)
        elif self._evaluate is None:
            mask = self._masks(leaves)
            judged = Judged(np.zeros(mask.shape), mask, np.zeros(len(leaves)), [])
        else:
            judged = await self._ask(leaves)
        if self._config.leaf != "evaluate":
            judged.value[:] = 0.0
        if not np.isfinite(judged.value).all():
            raise ConfigError("the evaluator's values are not finite")
        return judged

    async def _ask(self, leaves: Sequence[Leaf]) -> Judged:
        evaluate = cast(Evaluate, self._evaluate)
        to_play = None
        if leaves[0].to_play is not None:
            to_play = np.array([leaf.to_play for leaf in leaves], np.int32)
        masked = any(leaf.mask is not None for leaf in leaves)
        logits, value = await evaluate(_stacked(leaves), self._masks(leaves) if masked else None, to_play)
        logits, value = np.array(logits, np.float64), np.array(value, np.float64)
        if not self.num_actions and logits.ndim == 2:
            self.num_actions = logits.shape[1]
        mask = self._masks(leaves)
        if logits.shape != mask.shape or value.shape != (len(leaves),):
            raise ConfigError(
                f"of {len(leaves)} states with {self.num_actions} actions the evaluator returned logits"
                f" {list(logits.shape)} and values {list(value.shape)}"
            )
        return Judged(logits, mask, value, [])

    async def _propose(self, leaves: Sequence[Leaf]) -> Judged:
        num, width = len(leaves), self._config.num_sampled
        keys = np.array([leaf.key for leaf in leaves], np.uint64)
        found = await cast(Propose, self._evaluate)(_stacked(leaves), _choices(leaves), keys, width)
        logits, value = np.array(found.logits, np.float64), np.array(found.value, np.float64)
        actions = [np.asarray(leaf) for leaf in found.actions]
        if logits.shape != (num, width) or value.shape != (num,) or any(a.shape[:2] != (num, width) for a in actions):
            raise ConfigError(f"{width} actions for each of {num} states were wanted from the evaluator")
        return Judged(logits, np.ones((num, width), np.bool_), value, actions)

    def _masks(self, leaves: Sequence[Leaf]) -> Array:
        """b1 [N, A]. The first mask that is seen says how many actions there are."""
        first = leaves[0].mask
        if not self.num_actions:
            if first is None:
                raise ConfigError(
                    "nobody says how many actions there are: give the roots a mask, or set num_sampled where they"
                    " cannot be listed"
                )
            self.num_actions = len(first)
        mask = np.ones((len(leaves), self.num_actions), np.bool_)
        for row, leaf in enumerate(leaves):
            if leaf.mask is not None:
                mask[row] = leaf.mask
        return mask


def _choices(leaves: Sequence[Leaf]) -> Array | None:
    """b1 [N, M]; all, where a leaf has no mask beside others that have one."""
    given = [leaf.mask for leaf in leaves if leaf.mask is not None]
    if not given:
        return None
    everything = np.ones(len(given[0]), np.bool_)
    return np.stack([everything if leaf.mask is None else leaf.mask for leaf in leaves])


def _stacked(leaves: Sequence[Leaf]) -> list[Array]:
    """Per observation leaf [N, *shape]."""
    return [together([leaf.obs[i] for leaf in leaves]) for i in range(len(leaves[0].obs))]


def together(rows: Sequence[Array]) -> Array:
    """[N, *shape]: without a copy where the rows are all those of one array, as a whole wave's observations are."""
    first, whole = rows[0], rows[0].base
    if not isinstance(whole, np.ndarray) or whole.dtype != first.dtype or not whole.flags.c_contiguous:
        return np.stack(rows)
    at, size, like = _address(whole), first.nbytes, (first.dtype, first.shape)
    in_order = whole.nbytes == len(rows) * size and all(
        row.base is whole
        and (row.dtype, row.shape) == like
        and row.flags.c_contiguous
        and _address(row) == at + i * size
        for i, row in enumerate(rows)
    )
    return whole.reshape(len(rows), *first.shape) if in_order else np.stack(rows)


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
