"""Late positions of Connect-4: how many of a search's moves keep what the position is worth.

    python -m benchmarks.endgames [--positions 100] [--free 14] [--sims 2000]

Positions come of random moves without a winner, at most `free` places are open, and only those count in which some move
is better than another. Leaves are worth what the solver says of them: won, drawn or lost. There is no prior.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import tyro

from asyncrl.records import Array
from asyncrl.search import SearchConfig
from asyncrl.search.local import search_env
from benchmarks.report import Row, machine, print_table, write_json
from examples.connect4 import COLUMNS, HEIGHT, ROWS, Board, Connect4, Solver

FEWEST: Final = 8


@dataclass(frozen=True)
class Options:
    """Which positions, and how long they are thought about."""

    positions: int = 100
    free: int = 14
    sims: int = 2000
    json: Path | None = None


class Exact:
    """`Evaluate`: no prior, and the signs of true values. One for each root: what is below is solved once."""

    def __init__(self) -> None:
        self._solver = Solver()

    async def __call__(self, obs: Sequence[Array], mask: Array | None, to_play: Array | None) -> tuple[Array, Array]:
        return np.zeros((len(obs[0]), COLUMNS)), np.array([self._solver.outcome(board_of(each)) for each in obs[0]])


def board_of(planes: Array) -> Board:
    """What an observation shows; the player to move is 0."""
    board = Board()
    for player, plane in enumerate(planes[:, ::-1]):
        board.stones[player] = sum(1 << (column * HEIGHT + row) for row, column in np.argwhere(plane).tolist())
    board.heights = planes.sum((0, 1)).astype(int).tolist()
    return board


def worth_of_moves(board: Board) -> dict[int, int]:
    """-1, 0 or 1 of each legal column, to who plays it."""
    solver, worth = Solver(), {}
    for column in board.legal():
        after = board.copy()
        worth[column] = 1 if after.play(column) else -solver.outcome(after)
    return worth


def positions(count: int, most_free: int) -> list[tuple[str, dict[int, int]]]:
    """Moves that lead there, and what each next move is worth."""
    found: list[tuple[str, dict[int, int]]] = []
    rng = random.Random(1)
    while len(found) < count:
        board, moves, free = Board(), "", rng.randint(FEWEST, most_free)
        while board.num_free > free:
            quiet = [column for column in board.legal() if not board.wins_with(column)]
            if not quiet:
                break
            moves += str(rng.choice(quiet))
            board.play(int(moves[-1]))
        else:
            worth = worth_of_moves(board)
            if len(set(worth.values())) > 1:
                found.append((moves, worth))
    return found


async def measure(options: Options) -> list[Row]:
    config = SearchConfig(num_simulations=options.sims, discount=1.0, rng="frozen")
    right: Counter[int] = Counter()
    all_of: Counter[int] = Counter()
    began = time.perf_counter()
    for number, (moves, worth) in enumerate(positions(options.positions, options.free)):
        env = Connect4()
        obs, info = env.reset(options={"moves": moves})
        result = await search_env(env, config, np.random.default_rng(number), obs=obs, info=info, evaluate=Exact())
        free = ROWS * COLUMNS - len(moves)
        all_of[free] += 1
        right[free] += worth[result.action] == max(worth.values())
    note = ", ".join(f"{free} free: {right[free]} of {all_of[free]}" for free in sorted(all_of))
    share = 100 * right.total() / all_of.total()
    name = f"{options.positions} positions, n = {options.sims}"
    return [
        Row("connect4", name, share, "% optimal", note=note),
        Row("connect4", "time", time.perf_counter() - began, "s"),
    ]


def main(options: Options) -> None:
    from rich.console import Console

    rows = asyncio.run(measure(options))
    print_table(rows, Console(width=None))
    if options.json is not None:
        write_json(rows, machine(), options.json)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
