"""Games of two that were learned by playing against themselves, played against others.

    python -m benchmarks.selfplay tictactoe --games 1000             # trains first
    python -m benchmarks.selfplay connect4 --run runs/connect4

Opponents: random moves; in tic-tac-toe the perfect player, who knows the value of every position and draws among the
best moves; in Connect-4 a search by 200 rollouts. Both sides move first equally often. What plays is the network's
likeliest move, and a search with it.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, cast

import gymnasium
import numpy as np

from asyncrl.config import PPOConfig
from asyncrl.learner.prior_policy import prior_policy
from asyncrl.policy import Policy
from asyncrl.records import Array
from asyncrl.run.checkpoints import load_newest
from asyncrl.run.learning import Learning, Saved
from asyncrl.run.options import resolve
from asyncrl.run.run_dir import RunDir
from asyncrl.run.running import run_to_the_end
from asyncrl.run.session import saved_config
from asyncrl.search import SearchConfig
from asyncrl.search.local import search_env
from asyncrl.wire.spec import LaneSpec
from benchmarks.report import Row, machine, print_table, write_json
from envserver.gym_spec import space_spec
from examples import connect4, tictactoe

AnyEnv = gymnasium.Env[Any, Any]
Move = Callable[[AnyEnv, Any, dict[str, Any]], Awaitable[int]]  # of an environment that stands at these obs and infos

GAMES: Final[dict[str, Callable[[], AnyEnv]]] = {"tictactoe": tictactoe.make_env, "connect4": connect4.make_env}
# What differs from the defaults of `asyncrl train ppo --search exit`.
SETTINGS: Final[dict[str, Any]] = {
    "search": "exit",
    "search_algorithm": "puct",
    "search_rng": "frozen",
    "search_sims_first": 8,
    "search_ramp": 0.25,
    "search_epsilon": 0.25,  # positions that the best moves never lead to
    "gamma": 1.0,
    "gae_lambda": 0.7,
    "num_steps": 16,
    "update_epochs": 8,
    "lanes": 4,
    "learning_rate": 1e-3,
    "ent_coef": 0.0,
    "vf_coef": 1.0,
    "eval_every": 0,
    "final_eval_episodes": 1,
}
# A round of a search costs much the same for few boards as for many: 256 search 1.4 times as many moves a second as 64.
# Minibatches and window are so that each move is learned from as often, and for as long.
OF_GAME: Final[dict[str, dict[str, Any]]] = {
    "tictactoe": {
        "total_timesteps": 300_000,
        "search_sims": 25,
        "num_envs": 64,
        "num_minibatches": 8,
        "search_window": 16,
        "hidden_sizes": [128, 128],
        "activation": "relu",
    },
    "connect4": {
        "total_timesteps": 280_000,
        "search_sims": 50,
        "num_envs": 256,
        "num_minibatches": 32,
        "search_window": 4,
        "network": "examples.board_network:build",
    },
}


# ---------------------------------------------------------------------------------------------------------- players


class Network:
    """A run's network. Implements `Evaluate`, and moves by itself."""

    def __init__(self, folder: RunDir, env: AnyEnv) -> None:
        _algorithm, config = saved_config(folder)
        width = int(cast(gymnasium.spaces.Discrete, env.action_space).n)
        spec = LaneSpec("game", space_spec(env.observation_space), space_spec(env.action_space), mask_size=width)
        learning = Learning(config, spec)
        learning.load(Saved.of(load_newest(folder.checkpoints).parts))
        self._policy: Policy = prior_policy(learning.learner, None, threads=1)

    async def __call__(self, obs: Sequence[Array], mask: Array | None, to_play: Array | None) -> tuple[Array, Array]:
        acted = self._policy.act(obs, mask, np.zeros(len(obs[0]), np.bool_), (), None)
        return acted.kept[0], acted.value

    async def move(self, env: AnyEnv, obs: Any, info: dict[str, Any]) -> int:
        """The likeliest legal one."""
        mask = np.array(info["action_mask"], np.bool_)
        logits, _ = await self([np.asarray(obs)[None]], mask[None], None)
        return int(np.where(mask, logits[0], -np.inf).argmax())


def searcher(config: SearchConfig, network: Network | None, seed: int = 0) -> Move:
    """Looks ahead on copies of the board."""
    rng = np.random.default_rng(seed)

    async def move(env: AnyEnv, obs: Any, info: dict[str, Any]) -> int:
        return (await search_env(env, config, rng, obs=obs, info=info, evaluate=network)).action

    return move


def random_player(seed: int) -> Move:
    rng = random.Random(seed)

    async def move(env: AnyEnv, obs: Any, info: dict[str, Any]) -> int:
        return rng.choice(np.flatnonzero(info["action_mask"]).tolist())

    return move


@cache
def worth(board: tuple[int, ...], player: int) -> int:
    """Of a position of tic-tac-toe, to the player who is to move."""
    if any(all(board[i] == 1 - player for i in line) for line in tictactoe.LINES):
        return -1
    return max((-worth(after, 1 - player) for _, after in moves_of(board, player)), default=0)


def moves_of(board: tuple[int, ...], player: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    for place in range(9):
        if board[place] == -1:
            yield place, (*board[:place], player, *board[place + 1 :])


def perfect_player(seed: int) -> Move:
    """Of tic-tac-toe: any of the best moves."""
    rng = random.Random(seed)

    async def move(env: AnyEnv, obs: Any, info: dict[str, Any]) -> int:
        game = cast(tictactoe.TicTacToe, env.unwrapped)
        values = {place: -worth(after, 1 - game.player) for place, after in moves_of(tuple(game.board), game.player)}
        best = max(values.values())
        return rng.choice([place for place, value in values.items() if value == best])

    return move


# ------------------------------------------------------------------------------------------------------------ games


@dataclass(frozen=True)
class Score:
    """Of the first of two players."""

    won: int
    drawn: int
    lost: int

    def __str__(self) -> str:
        return f"won {self.won}, drawn {self.drawn}, lost {self.lost}"


async def play(make_env: Callable[[], AnyEnv], ours: Move, theirs: Move, num_games: int) -> Score:
    """Every other game theirs is the first move."""
    found: Counter[int] = Counter()
    env = make_env()
    for game in range(num_games):
        obs, info = env.reset()
        players = (ours, theirs) if game % 2 == 0 else (theirs, ours)
        turn, terminated, reward = 0, False, 0.0
        while not terminated:
            action = await players[turn % 2](env, obs, info)
            obs, _reward, terminated, _truncated, info = env.step(action)
            reward = float(_reward) * (1 if players[turn % 2] is ours else -1)
            turn += 1
        found[int(np.sign(reward))] += 1
    return Score(found[1], found[0], found[-1])


async def measure(game: str, folder: RunDir, num_games: int, sims: int) -> list[Row]:
    make_env = GAMES[game]
    network = Network(folder, make_env())
    plan = SearchConfig(num_simulations=sims, discount=1.0, rng="frozen")
    ours: dict[str, tuple[Move, int]] = {
        "network": (network.move, num_games),
        f"network, {sims} sims": (searcher(plan, network), num_games),
    }
    theirs: dict[str, Move] = {"random": random_player(1)}
    if game == "tictactoe":
        theirs["perfect"] = perfect_player(2)
    else:
        rollouts = SearchConfig(num_simulations=200, leaf="rollout", discount=1.0, rng="frozen")
        theirs["200 rollouts"] = searcher(rollouts, None, 3)
    rows: list[Row] = []
    for name, (move, count) in ours.items():
        for against, other in theirs.items():
            score = await play(make_env, move, other, count)
            print(f"{name} v. {against}: {score}", flush=True)
            rows.append(
                Row(f"{game}, {count} games", f"{name} v. {against}", float(score.lost), "lost", note=str(score))
            )
    return rows


def train(game: str, steps: int | None, run_dir: str, seed: int) -> RunDir:
    settings = SETTINGS | OF_GAME[game] | {"run_dir": run_dir, "seed": seed}
    if steps is not None:
        settings["total_timesteps"] = steps
    config = resolve("ppo", env_id=f"{game}=examples.{game}:make_env", **settings)
    assert isinstance(config, PPOConfig)
    ran = run_to_the_end("ppo", config, say=partial(print, flush=True))
    print(f"{ran.result.env_steps:,} moves in {ran.result.wall_s:.0f} s, {ran.result.sps:.0f} a second")
    return RunDir(ran.folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("game", choices=sorted(GAMES))
    parser.add_argument("--run", type=Path, help="a run that was trained; without it one is")
    parser.add_argument("--steps", type=int, help="moves to train for; else what the game takes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--run-dir", default="runs")
    parser.add_argument("--games", type=int, default=200, help="against each opponent")
    parser.add_argument("--sims", type=int, default=25, help="simulations of the search that plays")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    folder = RunDir(options.run) if options.run else train(options.game, options.steps, options.run_dir, options.seed)
    about = machine()
    rows = asyncio.run(measure(options.game, folder, options.games, options.sims))
    from rich.console import Console

    print_table(rows, Console(width=None))
    if options.json is not None:
        write_json(rows, about, options.json)


if __name__ == "__main__":
    main()
