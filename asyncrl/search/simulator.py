"""What a search asks of its surroundings: a simulator that holds states, and somebody who judges leaves.

A state is a snapshot that the simulator holds. The search names the states it wants kept (`keep_as`), never uses a name
twice in a process, and releases every one of them, however it ends. The states of the roots belong to the caller.

Rewards are those of the player who moved; values and rollout returns are those of the player whose turn it is.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Literal, NamedTuple, Protocol

from asyncrl.records import Array

RngMode = Literal["resample", "frozen", "open_loop"]
OK = "ok"
SNAPSHOT_GONE = (
    "snapshot_gone"  # status of what began with a state that is not there: others begin further up from now on
)


class Rollout(NamedTuple):
    """Uniform random legal actions from the state after the last action, to the end or for `steps` steps."""

    steps: int
    discount: float
    seed: int


class Expansion(NamedTuple):
    """Restore `parent`, execute `actions`, tell what came of it, and keep the state if asked: one step of one root.

    No actions at all, `()`, are legal with a rollout. Execution stops where the episode ends. `rng` says which luck
    the steps have: `frozen`, that of the state; otherwise generators are seeded with `seed` after restoring.
    """

    root: int  # index into the roots of the search
    parent: Hashable  # a root's state, or the `keep_as` of an earlier expansion of this root
    actions: Sequence[Array]  # per action leaf [k, *shape]; enumerated actions: one leaf i8 [k], counted from 0
    keep_as: int | None
    rng: RngMode
    seed: int
    rollout: Rollout | None


class Outcome(NamedTuple):
    """What came of one expansion. Where `status` is not OK the rest is void, and nothing was kept."""

    status: str = OK  # or what went wrong, in a word
    obs: Sequence[Array] = ()  # per leaf [*shape], after the last step that was executed
    rewards: Sequence[float] = ()  # one per step that was executed; fewer than actions where the episode ended
    terminated: bool = False
    truncated: bool = False
    mask: Array | None = None  # b1 [A] of allowed actions, or [M] as `Propose` has them; None: all
    to_play: int | None = None  # None: a single player
    kept: bool = False  # whether `keep_as` names the state now; never where the episode ended
    rollout_return: float = 0.0


class Simulator(Protocol):
    """Where the environments are."""

    async def simulate(self, wave: Sequence[Expansion]) -> Sequence[Outcome]:
        """One outcome per expansion, in order: one round trip.

        What fails is told in its own outcome; an exception says that nothing of the wave can be used. Cancelled, it
        keeps nothing, or keeps what the `release` that follows gives back.
        """
        ...

    async def release(self, states: Sequence[int]) -> None:
        """Forget these. A state that is not there, because its wave was cancelled or its lane is gone, is no error."""
        ...


class Evaluate(Protocol):
    """A network, or whatever knows what states are worth."""

    async def __call__(self, obs: Sequence[Array], mask: Array | None, to_play: Array | None) -> tuple[Array, Array]:
        """Logits [N, A] and values [N] of N states.

        `obs`: per leaf [N, *shape], not to be written into. `mask`: b1 [N, A] of allowed actions, None for all; logits
        of others do not matter.
        `to_play`: i4 [N], None where there is a single player. A row's answer must not depend on the rows beside it if
        results are to be reproducible bit for bit.
        """
        ...


class Proposal(NamedTuple):
    """K actions for each of N states, drawn from a distribution β, and how much more likely π makes them than β."""

    actions: Sequence[Array]  # per action leaf [N, K, *shape]
    logits: Array  # [N, K]: log π − log β, up to a constant a row; zeros where the actions are drawn from π
    value: Array  # [N]


class Propose(Protocol):
    """Stands in for `Evaluate` where actions cannot be enumerated."""

    async def __call__(self, obs: Sequence[Array], mask: Array | None, keys: Array, num_sampled: int) -> Proposal:
        """`obs`: per leaf [N, *shape]. `mask`: b1 [N, M] of allowed choices, those of one place of the action after the
        other, None for all; nobody but the proposer keeps to it. `keys` u8 [N]: a number for each state; noise that
        follows from it makes the search reproducible.
        """
        ...
