"""Tic-tac-toe as an environment for two, and a search that needs no network to hold its own.

    python -m examples.tictactoe                          # the search against itself: a draw
    envserver --env tictactoe=examples.tictactoe:make_env --num-envs 64

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

LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


class TicTacToe(gymnasium.Env[Any, Any]):
    """Nine places, three in a row win. A move onto a taken place loses the game at once.

    Observations u1 [2, 3, 3]: the stones of the player to move, and the other's. Infos: `action_mask` and `to_play`.
    """

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 1, (2, 3, 3), np.uint8)
        self.action_space = spaces.Discrete(9)
        self.board = [-1] * 9  # -1: free, otherwise whose stone
        self.player = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """An empty board. `options={"board": [...]}`: a position, with player 0 to move where stones are even."""
        super().reset(seed=seed)
        self.board = list((options or {}).get("board", [-1] * 9))
        self.player = (9 - self.board.count(-1)) % 2
        return self._obs(), self.infos()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        mover, place = self.player, int(action)
        illegal = self.board[place] != -1
        if not illegal:
            self.board[place] = mover
        won = not illegal and any(all(self.board[i] == mover for i in line) for line in LINES)
        self.player = 1 - mover
        reward = -1.0 if illegal else float(won)
        return self._obs(), reward, illegal or won or -1 not in self.board, False, self.infos()

    def infos(self) -> dict[str, Any]:
        """What the next player may do, and who that is."""
        mask = np.array([place == -1 for place in self.board], np.int8)
        return {"action_mask": mask, "to_play": self.player}

    def _obs(self) -> Any:
        board = np.array(self.board).reshape(3, 3)
        return np.stack([board == self.player, board == 1 - self.player]).astype(np.uint8)

    def __str__(self) -> str:
        signs = ["xo."[stone] for stone in self.board]
        return "\n".join(" ".join(signs[row : row + 3]) for row in (0, 3, 6))


def make_env() -> gymnasium.Env[Any, Any]:
    """For `envserver --env tictactoe=examples.tictactoe:make_env`."""
    return TicTacToe()


async def main(num_simulations: int = 400) -> list[int]:
    """One game of the search against itself; the moves."""
    env = TicTacToe()
    _obs, info = env.reset()
    # Nobody says which moves look good, and rollouts are noisy: with less exploration (c1) replies go unseen.
    config = SearchConfig(num_simulations=num_simulations, leaf="rollout", discount=1.0, rng="frozen", c1=5.0)
    moves: list[int] = []
    while True:
        result = await search_env(env, config, np.random.default_rng(len(moves)), info=info)
        moves.append(int(action_of(env.action_space, result)))
        _obs, reward, terminated, _truncated, info = env.step(moves[-1])
        print(f"{env}   {result.num_simulations} simulations, worth {result.root_value:+.2f} to the mover\n")
        if terminated:
            print("a draw" if reward == 0 else f"{'xo'[1 - env.player]} wins")
            return moves


if __name__ == "__main__":
    asyncio.run(main())
