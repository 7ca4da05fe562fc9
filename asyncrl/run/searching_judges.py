"""A policy behind an act batcher, as what judges the leaves of a search.

A wave's leaves are one request, under the number of the group that searches: groups do not share forwards, and what a
forward gives does not depend on who else searches.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asyncrl.collector.act_batcher import ActBatcher
from asyncrl.collector.joining import ActRequest
from asyncrl.records import Array
from asyncrl.search import Proposal


class PolicyJudge:
    """A policy that keeps its logits, as what judges the leaves of a search."""

    def __init__(self, batcher: ActBatcher, lane: int) -> None:
        self._batcher, self._lane = batcher, lane
        self.version = 0

    async def __call__(self, obs: Sequence[Array], mask: Array | None, to_play: Array | None) -> tuple[Array, Array]:
        """See `Evaluate`. Cancelled, it drops the rows."""
        request = ActRequest(self._lane, obs, np.zeros(len(obs[0]), np.bool_), mask)
        acted = await self._batcher.submit(request)
        self.version = acted.version
        return acted.kept[0], acted.value


class PolicyProposer:
    """A policy that keeps samples of its actions, as what proposes them to a search."""

    def __init__(self, batcher: ActBatcher, lane: int) -> None:
        self._batcher, self._lane = batcher, lane
        self.version = 0

    async def __call__(self, obs: Sequence[Array], mask: Array | None, keys: Array, num_sampled: int) -> Proposal:
        """See `Propose`. Cancelled, it drops the rows."""
        request = ActRequest(self._lane, obs, np.zeros(len(obs[0]), np.bool_), mask, keys=keys)
        acted = await self._batcher.submit(request)
        self.version = acted.version
        return Proposal(acted.kept, np.zeros((len(keys), num_sampled)), acted.value)
