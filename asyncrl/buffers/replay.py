"""`Replay`: transitions to learn from more than once, taken in as unrolls and drawn as batches.

Owned by one thread, the learner's. A transition spans n steps, or fewer where its episode ends before: no window
crosses `terminated`, `truncated` or `cut`, a row that is void, or another slot. What was truncated or cut bootstraps
from the last observation; what terminated, a lost life among it, from nothing.

Invariants: whatever is taken in, what can be drawn is what a list of whole transitions would hold
(test_the_replay_is_a_list_of_transitions); no transition crosses an end (test_windows_around_an_end); no two slots mix
(test_slots_never_mix); void rows and the observations of the next episode are never seen
(test_poison_is_never_drawn); what was drawn before its row was overwritten changes nothing when its priority comes back
(test_stale_priorities_are_void).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from asyncrl.buffers.drawing import Drawing
from asyncrl.buffers.ring import Ring
from asyncrl.buffers.stacks import Follows, follows
from asyncrl.buffers.streams import Placed, Streams
from asyncrl.buffers.windows import NOWHERE, Columns, Windows, windows_of
from asyncrl.errors import LocalProtocolError
from asyncrl.records import Array, Unroll
from asyncrl.wire.spec import LaneSpec


@dataclass(frozen=True)
class ReplayConfig:
    """`capacity`: rows. A transition takes one; a truncated or cut episode takes one more, and each beginning of a
    stack of k frames k - 1 more."""

    capacity: int
    num_slots: int  # fleet slots; each has an equal share
    n_step: int = 1
    gamma: float = 0.99
    prioritised: bool = False
    alpha: float = 0.6  # priorities count to this power


@dataclass(frozen=True)
class ReplayState:
    """All of a replay between two calls of it. The arrays are copies; rows are read block by block, by any thread, and
    stay what they were for as long as somebody holds this: what is overwritten meanwhile is copied first."""

    arrays: Mapping[str, Array]
    keys: tuple[str, ...]  # by block: what has the same key has the same bytes; "": nothing was ever written there
    read: Callable[[int], bytes]  # a block


@dataclass(frozen=True, slots=True)
class Sample:
    """N transitions. Observations and masks stand in memory that the next sample takes for its own."""

    rows: Array  # i8 [N], with `generations` the names by which priorities come back
    generations: Array  # i8 [N]
    weights: Array  # f4 [N], of importance sampling; at most 1
    obs: list[Array]  # per leaf [N, *shape]
    action: list[Array]  # per action leaf [N, *shape]
    mask: Array | None  # b1 [N, mask_size]
    reward: Array  # f4 [N], Σ γ^i r over the k steps that it spans
    discount: Array  # f4 [N], γ^k; 0 where it terminated
    next_obs: list[Array]  # per leaf [N, *shape]; where it terminated, `obs` again
    next_mask: Array | None  # b1 [N, mask_size]


class Replay:
    """Of environments with this spec."""

    def __init__(self, spec: LaneSpec, config: ReplayConfig) -> None:
        self.spec = spec
        self.config = config
        self._ring = Ring(spec, config.capacity, config.num_slots)
        self._streams = Streams(config.num_slots, config.n_step, spec.stack_depth)
        self._oldest = np.zeros(config.num_slots, np.int64)  # positions before it are overwritten, or their stacks are
        alpha = config.alpha if config.prioritised else None
        self._drawing = Drawing(self._ring.num_rows, self._ring.length, alpha)

    def __len__(self) -> int:
        """Transitions that can be drawn."""
        return self._drawing.count

    # ------------------------------------------------------------------ taking in

    def insert(self, unroll: Unroll, reward: Array | None = None, q_taken: Array | None = None) -> int:
        """Take all transitions of an unroll in; how many they are. A lane's unrolls have to come in order.

        `reward` [T, B]: to learn from, instead of the raw one. `q_taken` f4 [T, B]: Q(s, a) of the forward that acted,
        where `unroll.value` is max_a Q(s, a).
        """
        streams = self._streams
        goes_on = streams.goes_on(unroll)
        placed = streams.place(unroll, goes_on, self._follows(unroll, goes_on))
        most = int((placed.top - streams.stop[placed.slots]).max())
        if most > self._ring.length - self._ring.depth:
            raise LocalProtocolError(f"an unroll of {most} rows in a replay of {self._ring.length} per environment")
        rows = streams.columns(unroll, placed, unroll.reward if reward is None else reward, q_taken)
        windows = windows_of(rows, self.config.n_step, self.config.gamma)
        self._evict(placed)
        self._write(unroll, placed)
        self._complete(placed.slots, rows, windows, by_q=q_taken is not None)
        streams.advance(unroll, placed, rows, windows)
        return unroll.num_valid

    def _follows(self, unroll: Unroll, goes_on: Array) -> Follows:
        leaf, slots, streams = self.spec.stack_leaf, unroll.fleet_slots, self._streams
        if leaf is None:
            return Follows.everywhere(unroll)
        known = streams.is_bare[slots] & (goes_on | ~streams.is_open[slots])
        return follows(unroll, leaf, self._ring.newest_frames(slots, streams.stop[slots]), known)

    def _evict(self, placed: Placed) -> None:
        """What is about to be overwritten cannot be drawn any more, nor can what looks back at it."""
        slots, ring = placed.slots, self._ring
        old = self._oldest[slots]
        new = np.maximum(old, placed.top - ring.length + ring.depth - 1)
        self._oldest[slots] = new
        counts = new - old
        if not counts.any():
            return
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        rows = ring.rows_at(np.repeat(slots, counts), np.repeat(old, counts) + within)
        self._drawing.remove(rows)

    def _write(self, unroll: Unroll, placed: Placed) -> None:
        ring, slots, mask = self._ring, placed.slots, unroll.mask
        t, b = unroll.valid.nonzero()
        every = len(t) == unroll.valid.size

        def flat(leaf: Array) -> Array:
            """[N, ...] for [T, B, ...]; not copied if it can be helped, for frames are many bytes."""
            return leaf.reshape(-1, *leaf.shape[2:]) if every else leaf[t, b]

        own, own_mask = placed.own[t, b], None if mask is None else flat(mask)
        ring.write_observations(slots[b], own, list(map(flat, unroll.obs)), own_mask, placed.own_apart[t, b])
        ring.write(ring.rows_at(slots[b], own), **{f"action{i}": flat(leaf) for i, leaf in enumerate(unroll.action)})
        end_slots = slots[unroll.end_rows[:, 1]]
        ring.write_observations(end_slots, placed.end, unroll.end_obs, unroll.end_mask, placed.end_apart)
        heads = placed.has_head.nonzero()[0]
        head_mask = None if unroll.last_mask is None else unroll.last_mask[heads]
        head_obs = [leaf[heads] for leaf in unroll.last_obs]
        ring.write_observations(slots[heads], placed.head[heads], head_obs, head_mask, placed.head_apart[heads])

    def _complete(self, slots: Array, rows: Columns, windows: Windows, *, by_q: bool) -> None:
        """Rows whose windows are complete can be drawn; `by_q`: by how wrong the forward was that acted."""
        t, b = (windows.complete & (rows.at >= self._oldest[slots])).nonzero()
        at, after, reward = rows.at[t, b], windows.after[t, b], windows.reward[t, b]
        where = self._ring.rows_at(slots[b], at)
        discount = np.where(after == NOWHERE, 0.0, self.config.gamma ** windows.length[t, b])
        self._ring.write(where, reward=reward, discount=discount, ahead=np.where(after == NOWHERE, 0, after - at))
        errors = np.abs(reward + discount * windows.value[t, b] - rows.q_taken[t, b]) if by_q else None
        self._drawing.add(where, errors)

    # ------------------------------------------------------------------ drawing

    def sample(self, count: int, rng: np.random.Generator, beta: float = 0.0) -> Sample:
        """`count` transitions, of which some may be the same. LocalProtocolError: there is nothing to draw from."""
        filled = np.minimum(self._streams.top, self._ring.length)
        return self.at(*self._drawing.draw(count, rng, beta, filled))

    def update_priorities(self, rows: Array, generations: Array, priorities: Array) -> int:
        """`priorities` [N] of sampled rows; how many still hold what was sampled. The others are left alone."""
        valid = self._drawing.drawable[rows] & (self._generations(rows) == generations)
        self._drawing.prioritise(rows[valid], priorities[valid])
        return int(np.count_nonzero(valid))

    def drawable_rows(self) -> Array:
        """i8, ascending: every row that can be drawn."""
        rows: Array = self._drawing.drawable.nonzero()[0]
        return rows

    def at(self, rows: Array, weights: Array) -> Sample:
        """These very transitions: rows that can be drawn."""
        ring = self._ring
        place = rows % ring.length
        after = rows - place + (place + ring.gather("ahead", rows)) % ring.length
        obs, next_obs = ring.observations(rows, after)
        mask, next_mask = ring.masks(rows, after)
        return Sample(
            rows=rows,
            generations=self._generations(rows),
            weights=weights,
            obs=obs,
            action=ring.actions(rows),
            mask=mask,
            reward=ring.gather("reward", rows),
            discount=ring.gather("discount", rows),
            next_obs=next_obs,
            next_mask=next_mask,
        )

    def _generations(self, rows: Array) -> Array:
        """How often the ring of the row's slot had gone round when the row was written."""
        length = self._ring.length
        newest = self._streams.top[rows // length] - 1
        generations: Array = (newest - rows % length) // length
        return generations

    # ------------------------------------------------------------------ saving

    def state(self) -> ReplayState:
        """What `load` takes."""
        view = self._ring.blocks.view()
        own = {"settings": self._settings(), "oldest": self._oldest.copy()}
        return ReplayState(own | self._streams.state() | self._drawing.state(), view.keys, view.read)

    def load(self, state: ReplayState) -> None:
        """Become what that one was. LookupError or ValueError: it was made with other settings."""
        if not np.array_equal(self._settings(), state.arrays["settings"]):
            raise ValueError(
                "the replay was made with another capacity, n_step, gamma or alpha, or for other observations"
            )
        for block, key in enumerate(state.keys):
            if key:
                self._ring.blocks.load(state.keys, block, state.read(block))
        self._oldest[...] = state.arrays["oldest"]
        self._streams.load(state.arrays)
        self._drawing.load(state.arrays)

    def _settings(self) -> Array:
        """f8: what has to be the same for a state to make sense."""
        config = self.config
        ring = self._ring
        sizes = (ring.num_rows, ring.num_slots, ring.depth, ring.nbytes)
        alpha = config.alpha if config.prioritised else 0.0  # priorities are kept to this power
        return np.array([*sizes, config.n_step, config.gamma, config.prioritised, alpha], np.float64)
