"""Tic-tac-toe as rules on tuples, its exact values, and a simulator of it: an oracle, and quick.

A board is nine numbers, -1 for free, otherwise whose stone; whose turn it is follows from them.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from asyncrl.records import Array
from asyncrl.search import Expansion, Outcome, Root

Board = tuple[int, ...]
EMPTY: Board = (-1,) * 9
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
_TURN = (2, 5, 8, 1, 4, 7, 0, 3, 6)
_FLIP = (2, 1, 0, 5, 4, 3, 8, 7, 6)


def mover(board: Board) -> int:
    return (9 - board.count(-1)) % 2


def free(board: Board) -> list[int]:
    return [place for place, stone in enumerate(board) if stone == -1]


def played(board: Board, place: int) -> Board:
    return (*board[:place], mover(board), *board[place + 1 :])


def won(board: Board) -> bool:
    """Whether whoever moved last has three in a row."""
    last = 1 - mover(board)
    return any(board[a] == board[b] == board[c] == last for a, b, c in LINES)


def over(board: Board) -> bool:
    return won(board) or -1 not in board


@functools.cache
def worth(board: Board) -> int:
    """By complete search: 1, 0 or -1 to the player to move."""
    if won(board):
        return -1
    if -1 not in board:
        return 0
    return max(-worth(played(board, place)) for place in free(board))


def best(board: Board) -> list[int]:
    """All moves that keep what the position is worth."""
    return [place for place in free(board) if -worth(played(board, place)) == worth(board)]


@functools.cache
def reachable() -> tuple[Board, ...]:
    """Every position that a game can come to."""
    seen, new = {EMPTY}, [EMPTY]
    while new:
        board = new.pop()
        if not over(board):
            after = {played(board, place) for place in free(board)} - seen
            seen |= after
            new += after
    return tuple(sorted(seen))


def one_of_each_kind() -> list[Board]:
    """Positions that are not over, one of those that turns and mirrors make of each other."""

    def kind(board: Board) -> Board:
        images = []
        for image in (board, tuple(board[i] for i in _FLIP)):
            for _ in range(4):
                image = tuple(image[i] for i in _TURN)
                images.append(image)
        return min(images)

    return sorted({kind(board) for board in reachable() if not over(board)})


@dataclass
class Games:
    """Simulates on boards; rollouts are uniform."""

    states: dict[object, Board] = field(default_factory=dict)

    def root(self, board: Board) -> Root:
        return Root(state=board, obs=[np.array(board)], mask=np.array(board) == -1, to_play=mover(board))

    async def simulate(self, wave: Sequence[Expansion]) -> list[Outcome]:
        return [self._simulate(expansion) for expansion in wave]

    async def release(self, states: Sequence[int]) -> None:
        for state in states:
            self.states.pop(state, None)

    def _simulate(self, asked: Expansion) -> Outcome:
        board = asked.parent if isinstance(asked.parent, tuple) else self.states[asked.parent]
        rewards = []
        for place in asked.actions[0].tolist() if asked.actions else ():
            board = played(board, place)
            rewards.append(float(won(board)))
        ended = over(board)
        kept = asked.keep_as is not None and not ended
        if kept:
            self.states[asked.keep_as] = board
        returned = 0.0
        if asked.rollout is not None and not ended:
            returned = _rollout(board, random.Random(asked.rollout.seed))
        return Outcome(
            obs=[np.array(board)],
            rewards=rewards,
            terminated=ended,
            mask=np.array(board) == -1,
            to_play=mover(board),
            kept=kept,
            rollout_return=returned,
        )


def _rollout(board: Board, rng: random.Random) -> float:
    first = mover(board)
    while not over(board):
        board = played(board, rng.choice(free(board)))
    return 0.0 if not won(board) else 1.0 if 1 - mover(board) == first else -1.0


async def exact(obs: Sequence[Array], mask: Array | None, to_play: Array | None) -> tuple[Array, Array]:
    """Uniform logits and exact values."""
    boards = [tuple(row) for row in obs[0].tolist()]
    return np.zeros((len(boards), 9)), np.array([float(worth(board)) for board in boards])
