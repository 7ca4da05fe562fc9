"""Connect-4 as an environment for two, on bit boards, and its solver.

    python -m examples.connect4                           # the search against a solver that sees 9 moves ahead
    envserver --env connect4=examples.connect4:make_env --num-envs 64

One slot is one board, and both players step it in turn. An observation is the board as the player to move sees it; a
reward is that of the player who moved.
"""

from __future__ import annotations

import asyncio
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from asyncrl.search import SearchConfig
from asyncrl.search.local import action_of, search_env

ROWS, COLUMNS = 6, 7
HEIGHT = ROWS + 1  # bits of a column: one stays free, so that no line runs over a column's top
CENTRE_FIRST = (3, 2, 4, 1, 5, 0, 6)


class Board:
    """A position. Bit `column * 7 + row` of `stones[player]` is a stone of that player; row 0 is the lowest."""

    def __init__(self, moves: str = "") -> None:
        self.stones = [0, 0]
        self.heights = [0] * COLUMNS
        self.player = 0
        for column in moves:
            self.play(int(column))

    def copy(self) -> Board:
        board = Board()
        board.stones, board.heights, board.player = list(self.stones), list(self.heights), self.player
        return board

    @property
    def num_free(self) -> int:
        return ROWS * COLUMNS - sum(self.heights)

    def legal(self) -> list[int]:
        return [column for column in CENTRE_FIRST if self.heights[column] < ROWS]

    def play(self, column: int) -> bool:
        """Drop a stone of the player to move; whether that wins."""
        self.stones[self.player] |= 1 << (column * HEIGHT + self.heights[column])
        self.heights[column] += 1
        won = four_in_a_row(self.stones[self.player])
        self.player = 1 - self.player
        return won

    def wins_with(self, column: int) -> bool:
        """Whether the player to move would win there."""
        return four_in_a_row(self.stones[self.player] | 1 << (column * HEIGHT + self.heights[column]))


def four_in_a_row(stones: int) -> bool:
    for shift in (1, HEIGHT, HEIGHT - 1, HEIGHT + 1):
        pairs = stones & (stones >> shift)
        if pairs & (pairs >> 2 * shift):
            return True
    return False


class Solver:
    """Negamax with alpha-beta and a table: what a position is worth to the player to move.

    A win is worth more the sooner it comes: 1 + the stones that the winner has left; a loss the negative of that.
    """

    def __init__(self) -> None:
        self._table: dict[tuple[int, int, int], tuple[int, int]] = {}

    def value(self, board: Board, depth: int = ROWS * COLUMNS) -> int:
        """Exact where the game ends within `depth` moves; otherwise 0 stands for what is not seen."""
        self._table.clear()
        return self._search(board, -COLUMNS * ROWS, COLUMNS * ROWS, depth)

    def outcome(self, board: Board) -> int:
        """1, 0 or -1: won, drawn or lost. What was seen on the way is kept for the next call."""
        worth = self._search(board, -1, 1, board.num_free)
        return (worth > 0) - (worth < 0)

    def best_moves(self, board: Board, depth: int = ROWS * COLUMNS) -> list[int]:
        """All moves that are worth most."""
        worth: dict[int, int] = {}
        for column in board.legal():
            if board.wins_with(column):
                worth[column] = won_with(board.num_free)
            else:
                after = board.copy()
                after.play(column)
                worth[column] = -self.value(after, depth - 1)
        return sorted(column for column in worth if worth[column] == max(worth.values()))

    def _search(self, board: Board, alpha: int, beta: int, depth: int) -> int:
        if board.num_free == 0:
            return 0
        legal = board.legal()
        for column in legal:
            if depth and board.wins_with(column):
                return won_with(board.num_free)
        if depth == 0:
            return 0
        key = (board.stones[board.player], board.stones[0] | board.stones[1], depth)
        low, high = self._table.get(key, (-ROWS * COLUMNS, ROWS * COLUMNS))
        if low >= beta or low == high:
            return low
        if high <= alpha:
            return high
        best, floor = -ROWS * COLUMNS, alpha
        for column in legal:
            after = board.copy()
            after.play(column)
            best = max(best, -self._search(after, -beta, -floor, depth - 1))
            floor = max(floor, best)
            if floor >= beta:
                break
        # What alpha-beta returns is exact inside the window, and a bound outside of it.
        self._table[key] = (best if best > alpha else low, best if best < beta else high)
        return best


def won_with(num_free: int) -> int:
    """What it is worth to win with the next stone."""
    return (num_free + 1) // 2


class Connect4(gymnasium.Env[Any, Any]):
    """Seven columns of six; four in a row win. A move into a full column loses the game at once.

    Observations u1 [2, 6, 7]: the stones of the player to move, and the other's, the highest row first. Infos:
    `action_mask` and `to_play`.
    """

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 1, (2, ROWS, COLUMNS), np.uint8)
        self.action_space = spaces.Discrete(COLUMNS)
        self.board = Board()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """An empty board. `options={"moves": "3340"}`: the position after these columns."""
        super().reset(seed=seed)
        self.board = Board((options or {}).get("moves", ""))
        return self._obs(), self.infos()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        board, column = self.board, int(action)
        if board.heights[column] == ROWS:
            board.player = 1 - board.player
            return self._obs(), -1.0, True, False, self.infos()
        won = board.play(column)
        return self._obs(), float(won), won or board.num_free == 0, False, self.infos()

    def infos(self) -> dict[str, Any]:
        """What the next player may do, and who that is."""
        mask = np.array([height < ROWS for height in self.board.heights], np.int8)
        return {"action_mask": mask, "to_play": self.board.player}

    def _obs(self) -> Any:
        mine = self.board.player
        planes = [grid(self.board.stones[mine]), grid(self.board.stones[1 - mine])]
        return np.stack(planes)

    def __str__(self) -> str:
        signs = np.where(grid(self.board.stones[0]), "x", np.where(grid(self.board.stones[1]), "o", "."))
        return "\n".join(" ".join(row) for row in signs)


def grid(stones: int) -> Any:
    """u1 [6, 7], the highest row first."""
    rows = [[stones >> (column * HEIGHT + row) & 1 for column in range(COLUMNS)] for row in range(ROWS)]
    return np.array(rows[::-1], np.uint8)


def make_env() -> gymnasium.Env[Any, Any]:
    """For `envserver --env connect4=examples.connect4:make_env`."""
    return Connect4()


async def main(num_simulations: int = 300, depth: int = 9) -> str:
    """One game of the search (x) against a solver with a horizon (o); the moves."""
    env, solver, moves = Connect4(), Solver(), ""
    _obs, info = env.reset()
    # c1: as in the other game, rollouts are all that says which moves look good.
    config = SearchConfig(num_simulations=num_simulations, leaf="rollout", discount=1.0, rng="frozen", waves=8, c1=5.0)
    while True:
        if env.board.player == 0:
            result = await search_env(env, config, np.random.default_rng(len(moves)), info=info)
            column = int(action_of(env.action_space, result))
        else:
            column = solver.best_moves(env.board, depth)[0]
        moves += str(column)
        _obs, reward, terminated, _truncated, info = env.step(column)
        if terminated:
            print(f"{env}\n{moves}: " + ("a draw" if reward == 0 else f"{'xo'[1 - env.board.player]} wins"))
            return moves


if __name__ == "__main__":
    asyncio.run(main())
