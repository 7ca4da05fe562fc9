"""Running statistics of observations and of discounted returns, kept as buffers of the model.

They change in `update` alone, which the learner calls with rows of training; acting, evaluating and learning read them
(test_nothing_but_update_changes_them). As buffers they travel with the parameters to whoever acts and into checkpoints,
bit for bit (test_statistics_survive_a_checkpoint_bit_for_bit). Sums are float64, merged as Chan et al. do
(test_statistics_are_those_of_all_rows_at_once). A slot's unrolls may be in one batch as well as in several
(test_a_slot_may_be_in_a_batch_twice); no return goes on from another episode's (test_returns_begin_where_episodes_do).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from asyncrl.learner.encoders import as_float, is_normalisable
from asyncrl.wire.spaces import Node
from asyncrl.wire.tensors import Array

_EPSILON = 1e-8  # added to variances


class RunningMoments(nn.Module):
    """Mean and variance of all rows so far, per element of `shape`; 0 and 1 before the first."""

    count: Tensor
    mean: Tensor
    variance: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(shape, dtype=torch.float64))

    @torch.no_grad()
    def update(self, rows: Tensor) -> None:
        """`rows`: [R, *shape]."""
        if not len(rows):
            return
        rows = rows.double()
        variance, mean = torch.var_mean(rows, 0, correction=0)
        total = self.count + len(rows)
        share = len(rows) / total
        delta = mean - self.mean
        # The variance before the first row is a placeholder, and its weight `1 - share` is 0 then.
        self.variance.copy_(self.variance * (1 - share) + variance * share + delta**2 * share * (1 - share))
        self.mean.add_(delta * share)
        self.count.copy_(total)


class ObsNormaliser(nn.Module):
    """Box leaves that are no images: minus mean, over deviation, clipped; float32 [N, *shape]. Others pass."""

    def __init__(self, nodes: Sequence[Node], clip: float) -> None:
        super().__init__()
        self._nodes = {index: node for index, node in enumerate(nodes) if is_normalisable(node)}
        self._clip = clip
        self.moments = nn.ModuleList(RunningMoments(node.shape) for node in self._nodes.values())
        for place, node in enumerate(self._nodes.values()):
            # What `forward` needs of the moments, in its dtype.
            self.register_buffer(f"shift{place}", torch.zeros(node.shape))
            self.register_buffer(f"scale{place}", torch.ones(node.shape))

    def forward(self, obs: Sequence[Tensor]) -> list[Tensor]:
        leaves = list(obs)
        for place, (index, node) in enumerate(self._nodes.items()):
            shift, scale = self._affine(place)
            leaves[index] = ((as_float(leaves[index], node) - shift) * scale).clamp_(-self._clip, self._clip)
        return leaves

    @torch.no_grad()
    def update(self, obs: Sequence[Tensor], valid: Tensor) -> None:
        """`obs`: per leaf [..., *shape] as the wire has them; `valid`: b1 [...], rows that count."""
        for place, (index, node) in enumerate(self._nodes.items()):
            moments = cast(RunningMoments, self.moments[place])
            moments.update(as_float(obs[index][valid], node))
            shift, scale = self._affine(place)
            shift.copy_(moments.mean)
            scale.copy_((moments.variance + _EPSILON).rsqrt())

    def _affine(self, place: int) -> tuple[Tensor, Tensor]:
        return cast(Tensor, self._buffers[f"shift{place}"]), cast(Tensor, self._buffers[f"scale{place}"])


class RewardScaler(nn.Module):
    """The deviation of the running discounted return of each fleet slot, which rewards are divided by.

    A return is cut where an episode ends, and where one begins, as nobody says so of the one before it when a lane is
    lost. It waits where a row is no transition.
    """

    returns: Tensor

    def __init__(self, num_slots: int, gamma: float) -> None:
        super().__init__()
        self._gamma = gamma
        self.moments = RunningMoments(())
        self.register_buffer("returns", torch.zeros(num_slots, dtype=torch.float64))

    @property
    def divisor(self) -> float:
        return math.sqrt(float(self.moments.variance) + _EPSILON)

    @torch.no_grad()
    def update(self, reward: Array, first: Array, ended: Array, valid: Array, fleet_slots: Array) -> None:
        """`reward` f8, raw, `first`, `ended`, `valid` b1: [T, N]; `fleet_slots` i8 [N], of which one may be there more
        than once, its columns in order. Rewards are divided after it."""
        returns, seen = self.returns.cpu().numpy().copy(), np.empty(reward.shape)
        for columns in _turns(fleet_slots):
            running = returns[fleet_slots[columns]]
            for t in range(len(reward)):
                # Also where the row itself was left out: the episode before is over, whether its end was seen or not.
                lives, running = valid[t, columns], np.where(first[t, columns], 0.0, running)
                running = np.where(lives, running * self._gamma + reward[t, columns], running)
                seen[t, columns] = running
                running[lives & ended[t, columns]] = 0.0
            returns[fleet_slots[columns]] = running
        self.moments.update(torch.from_numpy(seen[valid]).to(self.returns.device))
        self.returns.copy_(torch.from_numpy(returns))


def _turns(fleet_slots: Array) -> list[Array]:
    """The columns [N], in parts [K] that have each slot once at most: the first of each slot, the second, and so on."""
    counts = np.unique(fleet_slots, return_counts=True)[1]
    turn = np.empty(len(fleet_slots), np.int64)
    turn[np.argsort(fleet_slots, kind="stable")] = np.arange(len(turn)) - np.repeat(np.cumsum(counts) - counts, counts)
    return [np.flatnonzero(turn == k) for k in range(counts.max(initial=0))]
