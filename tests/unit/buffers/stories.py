"""Stories: what happens to a few slots, row by row, as plain Python; told as unrolls of any lengths, or as the
transitions that a replay should hold by the end.

Everything void is poison: NaN, or a byte that no frame has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np

from asyncrl.records import Array, Unroll
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.spaces import Node, SpaceSpec
from asyncrl.wire.spec import LaneSpec

DEPTH: Final = 3
FRAME: Final = (2, 5)
POISON: Final = 255
NUM_ACTIONS: Final = 4
ENDS: Final = ("terminated", "truncated", "cut", "soft")

_BOX = {"kind": pb.BOX, "parent": 0}
_STACK = Node(**_BOX, key="frames", dtype=np.dtype(np.uint8), shape=(DEPTH, *FRAME))  # type: ignore[arg-type]
_VECTOR = Node(**_BOX, key="vector", dtype=np.dtype("<f4"), shape=(3,))  # type: ignore[arg-type]
_ACTION = Node(kind=pb.DISCRETE, dtype=np.dtype("<i8"), n=NUM_ACTIONS)


def spec_for(stacked: bool) -> LaneSpec:
    """A dictionary of frames and a vector; `stacked`: the frames are known to be a stack."""
    observation = SpaceSpec((Node(kind=pb.DICT), _STACK, _VECTOR))
    action = SpaceSpec((_ACTION,))
    return LaneSpec("story", observation, action, mask_size=NUM_ACTIONS, stack_leaf=0 if stacked else None)


@dataclass
class Seen:
    """One observation."""

    stack: Array
    vector: Array
    mask: Array


@dataclass
class Happened:
    """One row of one slot; `after` is what the environment showed then, the next episode's first apart."""

    number: int  # of the row in the story, its action and the name of its transition
    seen: Seen | None  # None: the row is void
    after: Seen | None = None
    reward: float = 0.0
    end: str = ""  # one of ENDS
    name: tuple[int, int, int] = (0, 0, 0)  # incarnation, episode, t


@dataclass
class Story:
    """`slots[b][row]`."""

    slots: list[list[Happened]]
    fleet_slots: list[int]

    @property
    def num_rows(self) -> int:
        return len(self.slots[0])

    def unrolls(self, cuts: list[int]) -> Iterator[Unroll]:
        """The story told in pieces that begin at 0 and at the cuts."""
        for start, stop in pairwise(sorted({0, *cuts, self.num_rows})):
            yield self._unroll(start, stop)

    def _unroll(self, start: int, stop: int) -> Unroll:
        rows = [[slot[t] for slot in self.slots] for t in range(start, stop)]
        after_last = [slot[stop] if stop < self.num_rows else None for slot in self.slots]

        def by_row(of: Any, dtype: Any) -> Array:
            return np.array([[of(row) for row in line] for line in rows], dtype)

        def ends_as(*kinds: str) -> Array:
            return by_row(lambda row: row.end in kinds, np.bool_)

        # A cut after the last row is not known yet.
        cut = ends_as("cut")
        cut[-1] = False
        terminated, truncated, valid = ends_as("terminated", "soft"), ends_as("truncated"), by_row(_is_valid, np.bool_)
        end_rows = np.argwhere(truncated | cut)
        ended = [rows[t][b].after for t, b in end_rows]
        last = [_last_seen(row, later) for row, later in zip(rows[-1], after_last, strict=True)]
        names = by_row(lambda row: row.name, np.int64)
        obs, mask = _seen([row.seen for line in rows for row in line], valid.shape)
        end_obs, end_mask = _seen(ended, (len(ended),))
        last_obs, last_mask = _seen(last, (len(last),))
        return Unroll(
            lane=0, round=0, fleet_slots=np.array(self.fleet_slots),
            obs=obs, action=[by_row(lambda row: row.number, np.int64)], mask=mask,
            log_prob=np.zeros(valid.shape, np.float32),
            value=by_row(lambda row: value_of(row.number) if row.seen else np.nan, np.float32),
            first=by_row(lambda row: row.name[2] == 0, np.bool_), version=np.zeros(stop - start, np.int64),
            reward=by_row(lambda row: row.reward if row.seen else np.nan, np.float64),
            terminated=terminated, truncated=truncated, cut=cut, soft=ends_as("soft"), valid=valid,
            end_rows=end_rows, end_obs=end_obs, end_mask=end_mask,
            last_obs=last_obs, last_mask=last_mask, last_first=np.zeros(len(last), np.bool_), carry=[],
            incarnation=names[..., 0], episode=names[..., 1], t=names[..., 2],
        )  # fmt: skip

    def q_taken(self, start: int, stop: int) -> Array:
        """f4 [T, B], for the unroll of these rows."""
        rows = [[q_of(slot[t].number) if slot[t].seen else np.nan for slot in self.slots] for t in range(start, stop)]
        return np.array(rows, np.float32)


def value_of(number: int) -> float:
    return number % 7 - 3.0


def q_of(number: int) -> float:
    return number % 5 / 2.0


def _is_valid(row: Happened) -> bool:
    return row.seen is not None


def _last_seen(row: Happened, later: Happened | None) -> Seen | None:
    """What there is after a row, if it did not end."""
    if row.seen is None or (row.end and row.end != "cut"):
        return later.seen if later is not None else None  # the next episode's: nobody's business
    return row.after


def _seen(found: list[Seen | None], shape: tuple[int, ...]) -> tuple[list[Array], Array]:
    """Leaves [*shape, ...] and masks; poison where nothing was seen."""
    void = Seen(np.full((DEPTH, *FRAME), POISON, np.uint8), np.full(3, np.nan, np.float32), np.zeros(4, np.bool_))
    every = [void if seen is None else seen for seen in found]
    stacks = np.array([seen.stack for seen in every], np.uint8).reshape(*shape, DEPTH, *FRAME)
    vectors = np.array([seen.vector for seen in every], np.float32).reshape(*shape, 3)
    masks = np.array([seen.mask for seen in every], np.bool_).reshape(*shape, NUM_ACTIONS)
    return [stacks, vectors], masks


# --------------------------------------------------------------------------------------------------------------- making


class _Teller:
    """Tells of one slot."""

    def __init__(self, rng: np.random.Generator, slot: int) -> None:
        self.rng = rng
        self.slot = slot
        self.incarnation, self.episode, self.t = 0, -1, 0
        self.rows: list[Happened] = []

    def _frame(self) -> Array:
        return self.rng.integers(0, 4, FRAME).astype(np.uint8)

    def begins(self) -> Seen:
        """First observations, padded in one of three ways."""
        self.episode, self.t = self.episode + 1, 0
        newest = self._frame()
        older = [np.zeros_like(newest), newest, self._frame()][self.rng.integers(3)]
        return self._see(np.stack([older] * (DEPTH - 1) + [newest]))

    def goes_on(self, seen: Seen) -> Seen:
        """A tenth of the stacks have nothing to do with the ones before."""
        if self.rng.random() < 0.1:
            return self._see(np.stack([self._frame() for _ in range(DEPTH)]))
        return self._see(np.concatenate([seen.stack[1:], self._frame()[None]]))

    def _see(self, stack: Array) -> Seen:
        mask = self.rng.random(NUM_ACTIONS) < 0.5
        mask[self.rng.integers(NUM_ACTIONS)] = True
        return Seen(stack, self.rng.standard_normal(3).astype(np.float32), mask)

    def row(self, seen: Seen | None, end: str) -> Happened:
        number = len(self.rows) * 1000 + self.slot
        name = (self.incarnation, self.episode, self.t)
        row = Happened(number, seen, name=name, end=end)
        if seen is not None:
            row.reward = float(self.rng.integers(-3, 4)) / 2
            row.after = self.goes_on(seen)
            self.t += 1
        self.rows.append(row)
        return row

    def tell(self, num_rows: int, chance_of_end: float) -> list[Happened]:
        seen: Seen | None = self.begins()
        while len(self.rows) < num_rows:
            end = str(self.rng.choice(ENDS)) if self.rng.random() < chance_of_end else ""
            row = self.row(seen, end)
            seen = row.after
            if end == "soft":
                self.episode, self.t = self.episode + 1, 0
            elif end:
                self._void(row)
                seen = self.begins()
        return self.rows[:num_rows]

    def _void(self, row: Happened) -> None:
        """After a cut at least one row is void; after other ends there may be some."""
        for _ in range(self.rng.integers(row.end == "cut", 3)):
            self.row(None, "")
        if row.end == "cut" and self.rng.random() < 0.5:
            self.incarnation, self.episode = self.incarnation + 1, -1


def a_story(seed: int, num_rows: int, fleet_slots: list[int], chance_of_end: float = 0.2) -> Story:
    tellers = [_Teller(np.random.default_rng([seed, slot]), slot) for slot in fleet_slots]
    return Story([teller.tell(num_rows, chance_of_end) for teller in tellers], fleet_slots)


# ----------------------------------------------------------------------------------------------------------------- twin


@dataclass
class Transition:
    """What a replay should hold of a row."""

    seen: Seen
    after: Seen | None  # None: it terminated
    reward: float
    discount: float
    priority: float  # |target - q|


@dataclass
class Twin:
    """The naive replay: whole transitions by number, and which of them a ring of so many rows still has."""

    n_step: int
    gamma: float
    transitions: dict[int, Transition] = field(default_factory=dict)

    def tell(self, story: Story, num_rows: int, length: int, stacked: bool) -> None:
        for slot in story.slots:
            self._tell_slot(slot[:num_rows], length, stacked)

    def _tell_slot(self, rows: list[Happened], length: int, stacked: bool) -> None:
        more = DEPTH - 1 if stacked else 0
        stack: Array | None = None
        position = 0
        places: dict[int, int] = {}

        def push(seen: Seen) -> int:
            """Rows that this observation takes; the last one is its own."""
            nonlocal stack
            follows = stack is not None and np.array_equal(stack[1:], seen.stack[:-1])
            stack = seen.stack
            return 1 if follows else 1 + more

        for i, row in enumerate(rows):
            if row.seen is None:
                stack = None
                continue
            position += push(row.seen)
            places[i] = position - 1
            if row.end in ("truncated", "cut") or (i == len(rows) - 1 and not row.end):
                assert row.after is not None
                position += push(row.after)
                stack = None
        oldest = position - length + more
        for i, place in places.items():
            transition = self._transition(rows, i)
            if place >= oldest and transition is not None:
                self.transitions[rows[i].number] = transition

    def _transition(self, rows: list[Happened], i: int) -> Transition | None:
        seen = rows[i].seen
        assert seen is not None
        reward, known = 0.0, 0.0
        for k in range(self.n_step):
            if i + k >= len(rows):
                return None
            row = rows[i + k]
            reward += self.gamma**k * row.reward
            known = value_of(row.number)
            if row.end == "cut" and i + k + 1 == len(rows):
                return None  # nobody knows yet
            if row.end:
                break
        else:
            if i + k + 1 >= len(rows):
                return None
            known = value_of(rows[i + k + 1].number)
        terminated = row.end in ("terminated", "soft")
        discount = 0.0 if terminated else self.gamma ** (k + 1)
        priority = abs(reward + discount * known - q_of(rows[i].number))
        return Transition(seen, None if terminated else row.after, reward, discount, priority)
