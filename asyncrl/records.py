"""`Unroll`: what the collector hands to a learner."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(slots=True)
class Unroll:
    """T steps of one lane's B slots. Row `[t, b]` is a transition where `valid`; elsewhere its other fields are void.

    Nothing in here shows how environments were reset: what is not a transition is not valid. Arrays of observations,
    actions and masks are of the dtypes of the wire.
    """

    lane: int
    round: int  # of the fleet in sync and lag modes; async: counts the unrolls of the lane
    fleet_slots: Array  # i8 [B]
    obs: list[Array]  # per leaf [T, B, *shape]: what was acted on
    action: list[Array]  # per action leaf [T, B, *shape]: what was sampled, before clipping
    mask: Array | None  # b1 [T, B, mask_size]
    log_prob: Array  # f4 [T, B]: log μ(a), of the forward that acted
    value: Array  # f4 [T, B], of the same forward
    first: Array  # b1 [T, B]: obs begins an episode
    version: Array  # i8 [T]: of the policy that acted
    reward: Array  # f8 [T, B], raw
    terminated: Array  # b1 [T, B]
    truncated: Array  # b1 [T, B]
    cut: Array  # b1 [T, B]: the last row before something broke; bootstrapped as a truncation
    soft: Array  # b1 [T, B]: the end is a lost life, the game goes on
    valid: Array  # b1 [T, B]
    end_rows: Array  # i8 [E, 2]: (t, b), ascending, of rows truncated or cut and not terminated
    end_obs: list[Array]  # per leaf [E, *shape]: the true last observation after those rows
    last_obs: list[Array]  # per leaf [B, *shape]: after row T - 1; void where that row ended or is void
    last_mask: Array | None  # b1 [B, mask_size]
    last_first: Array  # b1 [B]: last_obs begins an episode
    carry: list[Array]  # per carry leaf [B, *shape]: before row 0
    incarnation: Array  # i8 [T, B]; with run_id and fleet slot, episode and t the name of a transition
    episode: Array  # i8 [T, B]
    t: Array  # i8 [T, B]
    end_mask: Array | None = None  # b1 [E, mask_size]: with end_obs
    kept: list[Array] = field(default_factory=list)  # per leaf [T, B, *shape]: what else the policy wanted kept

    @property
    def num_steps(self) -> int:
        return len(self.valid)

    @property
    def num_slots(self) -> int:
        return len(self.fleet_slots)

    @property
    def ended(self) -> Array:
        """b1 [T, B]: rows after which no advantage or return may look."""
        ended: Array = self.terminated | self.truncated | self.cut
        return ended

    @property
    def num_valid(self) -> int:
        return int(np.count_nonzero(self.valid))
