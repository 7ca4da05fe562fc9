"""What acting asks of a policy: `Policy.act`, one forward over the rows of one or many lanes.

The protocol knows arrays only, so that the loop side needs no torch; whoever implements it decides where the
forward runs. `act` is called from one thread at a time, the inference thread of the act batcher.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from asyncrl.wire.tensors import Array


class Acted(NamedTuple):
    """What one forward gave for N rows. Behaviour quantities are those of this forward, never recomputed later.

    The arrays belong to the caller: a later forward does not write into them.
    """

    action: Sequence[Array]  # per action leaf [N, *shape]: what was sampled, and is stored
    log_prob: Array  # f4 [N]: log μ(a)
    value: Array  # f4 [N]
    version: int  # policy version of the weights that acted
    carry: Sequence[Array] = ()  # per carry leaf [N, *shape]; () for a feed-forward policy
    env_action: Sequence[Array] = ()  # per action leaf [N, *shape]: what is sent, where it is not `action`
    kept: Sequence[Array] = ()  # further leaves [N, *shape] that the learner wants with the rows

    @property
    def sent_action(self) -> Sequence[Array]:
        """Per action leaf [N, *shape]: what the environments get."""
        return self.env_action or self.action


class Policy(Protocol):
    """Maps observations to actions."""

    def act(
        self, obs: Sequence[Array], mask: Array | None, first: Array, carry: Sequence[Array], keys: Array | None
    ) -> Acted:
        """One action per row.

        `obs`: per leaf [N, *shape], read-only to the policy and valid during the call alone. `mask`: b1 [N,
        mask_size] of allowed actions, None for all. `first`: b1 [N], rows that begin an episode (their carry is to be
        ignored). `carry`: as the previous `Acted.carry` of the same rows, () before there is one. `keys`: u8 [N], a
        number for each row that no other row of the run has; noise that follows from it (see `keyed_noise`) does not
        depend on which rows share a forward. None: any noise will do.
        """
        ...
