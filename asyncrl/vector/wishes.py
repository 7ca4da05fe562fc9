"""What a caller passes to `reset`, checked as Gymnasium's SyncVectorEnv checks it, and split over the lanes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from asyncrl.gym_spaces import ActionError
from asyncrl.vector.exchange import LaneReset
from asyncrl.wire.tensors import Array

Seed = int | Sequence[int | None] | None


@dataclass(frozen=True)
class ResetWish:
    """One reset of all slots: `mask` b1 `[n]` or None for all, `seeds[i]` None where unseeded."""

    mask: Array | None
    seeds: list[int | None] | None
    options: dict[str, Any] | None

    @staticmethod
    def of(seed: Seed, options: Mapping[str, Any] | None, num_envs: int) -> ResetWish:
        """From the arguments of `reset`; the caller's dict stays as it is."""
        rest = None if options is None else dict(options)
        mask = None if rest is None else rest.pop("reset_mask", None)
        if mask is not None:
            _check_mask(mask, num_envs)
        return ResetWish(mask, _seeds(seed, num_envs), rest)

    def part(self, begin: int, end: int) -> LaneReset | None:
        """The share of the slots `begin..end`; None where none of them is reset."""
        mask = None if self.mask is None else self.mask[begin:end]
        if mask is not None and not mask.any():
            return None
        return LaneReset(mask, None if self.seeds is None else self.seeds[begin:end], self.options)


def whole_lanes(ids: Array, lane_of: Array) -> list[int]:
    """The lanes whose slots are exactly `ids` `[N]`; `lane_of` `[n]` has the lane of each slot."""
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or not len(ids) or ids.min() < 0 or ids.max() >= len(lane_of):
        raise ActionError(f"env_id has to be integers [N] below {len(lane_of)}")
    lanes = np.unique(lane_of[ids])
    if not np.array_equal(np.sort(ids), np.flatnonzero(np.isin(lane_of, lanes))):
        raise ActionError("env_id names a part of a lane: lanes step as a whole, so send what recv gave")
    found: list[int] = lanes.tolist()
    return found


def _seeds(seed: Seed, num_envs: int) -> list[int | None] | None:
    if seed is None:
        return None
    if isinstance(seed, int | np.integer):
        return [int(seed) + number for number in range(num_envs)]
    seeds = list(seed)
    if len(seeds) != num_envs:
        raise ValueError(
            f"If seeds are passed as a list the length must match num_envs={num_envs} but got length={len(seeds)}."
        )
    return [None if each is None else int(each) for each in seeds]


def _check_mask(mask: Any, num_envs: int) -> None:
    name = "`options['reset_mask']`"
    if not isinstance(mask, np.ndarray):
        raise TypeError(f"{name} must be a numpy array, got {type(mask)}")
    if mask.shape != (num_envs,):
        raise ValueError(f"{name} must have shape `({num_envs},)`, got {mask.shape}")
    if mask.dtype != np.bool_:
        raise TypeError(f"{name} must have `dtype=np.bool_`, got {mask.dtype}")
    if not mask.any():
        raise ValueError(f"{name} must contain at least one True value, got {mask}")
