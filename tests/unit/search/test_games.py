"""Worlds that are solved: trees, tic-tac-toe and Connect-4, and what search makes of them."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from asyncrl.records import Array
from asyncrl.search import Root, SearchConfig, search
from asyncrl.search.local import action_of, search_env
from asyncrl.search.tree import TERMINAL
from examples import connect4, search_lake, search_own_simulator, tictactoe
from tests.unit.search.tictactoe_rules import (
    EMPTY,
    Board,
    Games,
    best,
    exact,
    mover,
    one_of_each_kind,
    over,
    played,
    reachable,
    won,
    worth,
)
from tests.unit.search.toys import Path, Toy, ToySimulator

# ---------------------------------------------------------------------------------------------------- solved trees


class Solved(Toy):
    """A world of three steps whose values are known, and told with an error of `noise`."""

    noise = 0.0

    @functools.cached_property
    def paths(self) -> dict[int, Path]:
        new: list[Path] = [()]
        found = {self.token(()): new[0]}
        while new:
            path = new.pop()
            if len(path) < self.depth:
                after = [self.step(path, a).path for a in range(self.num_actions)]
                found |= {self.token(p): p for p in after}
                new += after
        return found

    def best_return(self, path: Path) -> float:
        if len(path) == self.depth:
            return 0.0
        return max(self.action_value(path, a) for a in range(self.num_actions))

    def action_value(self, path: Path, action: int) -> float:
        step = self.step(path, action)
        sign = 1.0 if self.to_play(path) == self.to_play(step.path) else -1.0
        return step.reward + sign * self.best_return(step.path)

    def value(self, token: int) -> float:
        return self.best_return(self.paths[token]) + self.noise * (2 * random.Random(token).random() - 1)

    def logits(self, token: int) -> list[float]:
        return [0.0] * self.num_actions


def solved(seed: int, players: int = 1, noise: float = 0.0) -> Solved:
    world = Solved(seed, 3, ends=0.0, cuts=0.0, illegal=0.0, depth=3, players=players)
    object.__setattr__(world, "noise", noise)
    return world


def look(world: Solved, num_simulations: int) -> tuple[float, float]:
    """What the action that is played loses against the best, and by how much the root is undervalued."""
    config = SearchConfig(num_simulations=num_simulations, discount=1.0, rng="frozen")
    simulator = ToySimulator(world)
    [result] = asyncio.run(search([world.root()], simulator, world.evaluate, config, np.random.default_rng(0)))
    values = [world.action_value((), a) for a in range(3)]
    return max(values) - values[result.action], max(values) - result.root_value


@pytest.mark.parametrize("players", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_the_best_action_of_solved_trees_is_found(players: int) -> None:
    """Exact leaf values, 16 · A² simulations, actions that differ: the best one in 95 % of random trees."""
    worlds = [solved(seed, players) for seed in range(100)]
    values = [sorted(world.action_value((), a) for a in range(3)) for world in worlds]
    clear = [world for world, (_low, second, first) in zip(worlds, values, strict=True) if first - second > 0.4]
    regrets = np.array([look(world, 16 * 9)[0] for world in clear])
    assert len(regrets) > 40
    assert np.mean(regrets == 0) >= 0.95


def test_the_roots_value_approaches_the_best_return() -> None:
    """It is a mean over what was tried, so it lies below; more simulations bring it closer."""
    gaps = np.array([[look(solved(seed), n)[1] for n in (16, 64, 256)] for seed in range(15)])
    assert gaps.min() > -1e-9
    assert gaps.mean(0)[2] < 0.8 * gaps.mean(0)[1] < 0.64 * gaps.mean(0)[0]


@pytest.mark.slow
def test_errors_of_leaf_values_wash_out() -> None:
    """Leaves that are off by up to 1: enough simulations see the rewards themselves."""
    found = np.array([look(solved(seed, noise=1.0), 2000) for seed in range(8)])
    assert found[:, 0].mean() < 0.02
    assert abs(found[:, 1]).max() < 0.3


# ---------------------------------------------------------------------------------------------------- tic-tac-toe


def find(boards: Sequence[Board], evaluate: Any = exact, seed: int = 0, **settings: Any) -> list[int]:
    """What is played in each of these positions, all of them searched at once."""
    games = Games()
    config = SearchConfig(discount=1.0, rng="frozen", **settings)
    roots = [games.root(board) for board in boards]
    results = asyncio.run(search(roots, games, evaluate, config, np.random.default_rng(seed)))
    assert not games.states
    return [result.action for result in results]


def at(*stones: int) -> Board:
    """The position after these moves."""
    return functools.reduce(played, stones, EMPTY)


def test_the_oracle_knows_the_game() -> None:
    """5478 positions, a draw, and the only replies that do not lose."""
    assert (len(reachable()), worth(EMPTY)) == (5478, 0)
    replies = {0: [4], 4: [0, 2, 6, 8], 1: [0, 2, 4, 7]}
    for opening, expected in replies.items():
        assert best(at(opening)) == expected


@pytest.mark.parametrize("settings", [{}, {"waves": 8}])
def test_no_position_of_tictactoe_is_lost_by_search(settings: dict[str, Any]) -> None:
    """Exact leaves, no prior, 400 simulations: from every kind of position only moves that keep what it is worth."""
    boards = one_of_each_kind()
    wrong = [
        board
        for board, place in zip(boards, find(boards, num_simulations=400, **settings), strict=True)
        if place not in best(board)
    ]
    assert not wrong


def test_known_positions() -> None:
    """x(1,1) o(0,0) x(2,2) is drawn by o(0,2) or o(2,0) alone; x(0,1) o(2,2) is won by x(0,2)."""
    boards = [at(4, 0, 8), at(1, 8)]
    for found in (
        find(boards, num_simulations=400),
        find(boards, None, num_simulations=2000, leaf="rollout"),
    ):
        draw, win = found
        assert draw in (2, 6)
        assert win == 2


@pytest.mark.slow
@pytest.mark.parametrize("seat", [0, 1])
def test_rollouts_do_not_lose_to_minimax(seat: int) -> None:
    """A hundred games from each seat against perfect play that varies: random rollouts, no knowledge, no loss."""
    rng = random.Random(seat)
    boards = [EMPTY] * 100
    for turn in range(9):
        going = [i for i, board in enumerate(boards) if not over(board)]
        if turn % 2 == seat:
            moves = find([boards[i] for i in going], None, turn, num_simulations=1500, leaf="rollout", c1=8.0)
        else:
            moves = [rng.choice(best(boards[i])) for i in going]
        for i, place in zip(going, moves, strict=True):
            boards[i] = played(boards[i], place)
    assert sum(won(board) and 1 - mover(board) != seat for board in boards) == 0


# ---------------------------------------------------------------------------------------------------- the examples


def test_tictactoe_plays_by_the_rules() -> None:
    """Random games on the environment and on the oracle: boards, masks, players, rewards and ends agree."""
    env = tictactoe.make_env()
    for seed in range(60):
        rng, board = random.Random(seed), EMPTY
        obs, info = env.reset()
        while True:
            assert info["action_mask"].tolist() == [stone == -1 for stone in board]
            assert info["to_play"] == mover(board)
            stones = np.array(board).reshape(3, 3)
            np.testing.assert_array_equal(obs, [stones == mover(board), stones == 1 - mover(board)])
            assert env.observation_space.contains(obs)
            place = rng.choice([i for i, stone in enumerate(board) if stone == -1])
            board = played(board, place)
            obs, reward, terminated, truncated, info = env.step(place)
            assert (reward, terminated, truncated) == (float(won(board)), over(board), False)
            if terminated:
                break


def test_illegal_moves_lose() -> None:
    """A taken place, a full column: the mover loses at once, and the boards stay as they were."""
    env = tictactoe.TicTacToe()
    env.reset(options={"board": at(4)})
    _obs, reward, terminated, _truncated, _info = env.step(4)
    assert (reward, terminated, tuple(env.board)) == (-1.0, True, at(4))
    other = connect4.Connect4()
    other.reset(options={"moves": "333333"})
    _obs, reward, terminated, _truncated, _info = other.step(3)
    assert (reward, terminated, other.board.num_free) == (-1.0, True, 36)


def wins_naively(columns: Sequence[Sequence[int]], player: int) -> bool:
    """Four in a row, by looking everywhere."""
    cells = {(c, r) for c, column in enumerate(columns) for r, stone in enumerate(column) if stone == player}
    return any(
        all((c + i * dc, r + i * dr) in cells for i in range(4))
        for c, r in cells
        for dc, dr in ((1, 0), (0, 1), (1, 1), (1, -1))
    )


def test_connect4_plays_by_the_rules() -> None:
    """Random games beside a board of lists: stones, masks, players, wins and draws agree."""
    env = connect4.make_env()
    for seed in range(150):
        rng, player = random.Random(seed), 0
        columns: list[list[int]] = [[] for _ in range(7)]
        obs, info = env.reset()
        while True:
            assert info["action_mask"].tolist() == [len(column) < 6 for column in columns]
            assert info["to_play"] == player
            expected = np.zeros((2, 6, 7))
            for c, stones in enumerate(columns):
                for r, stone in enumerate(stones):
                    expected[int(stone != player), 5 - r, c] = 1
            np.testing.assert_array_equal(obs, expected)
            column = rng.choice([c for c in range(7) if len(columns[c]) < 6])
            columns[column].append(player)
            obs, reward, terminated, truncated, info = env.step(column)
            full = sum(map(len, columns)) == 42
            won_now = wins_naively(columns, player)
            assert (reward, terminated, truncated) == (float(won_now), won_now or full, False)
            player = 1 - player
            if terminated:
                break


def late_position(seed: int, num_free: int) -> str:
    """Random moves to where so many places are free and nobody has won."""
    while True:
        rng, board, moves = random.Random(seed), connect4.Board(), ""
        while board.num_free > num_free:
            open_moves = [c for c in board.legal() if not board.wins_with(c)]
            if not open_moves:
                break
            column = rng.choice(open_moves)
            board.play(column)
            moves += str(column)
        else:
            return moves
        seed += 1_000_003


def negamax(board: connect4.Board) -> int:
    """The solver's definition without any of its cleverness."""
    worth_of = []
    for column in board.legal():
        after = board.copy()
        worth_of.append((board.num_free + 1) // 2 if after.play(column) else -negamax(after))
    return max(worth_of, default=0)


@pytest.mark.parametrize("seed", range(25))
def test_the_solver_is_negamax(seed: int) -> None:
    """Eight free places: windows and tables change no value, from any side."""
    board = connect4.Board(late_position(seed, 8))
    solver = connect4.Solver()
    assert solver.value(board) == negamax(board)
    for column in board.legal():
        after = board.copy()
        if not after.play(column):
            assert solver.outcome(after) == np.sign(negamax(after))  # with what it has seen of the others


def test_a_horizon_sees_what_is_near() -> None:
    """Three in a row with both ends free: a win in three moves, which a horizon of two does not see."""
    solver = connect4.Solver()
    assert solver.best_moves(connect4.Board("334455"), 1) == [2, 6]
    board = connect4.Board("3344")
    assert solver.value(board, 3) > 0
    assert solver.value(board, 2) == 0


async def winning(obs: Sequence[Array], mask: Array | None, to_play: Array | None) -> tuple[Array, Array]:
    """Uniform logits, exact signs of late positions."""
    solver, values = connect4.Solver(), []
    for planes in obs[0]:
        board = connect4.Board()
        board.player = int(planes.sum()) % 2
        for plane, player in zip(planes[:, ::-1], (board.player, 1 - board.player), strict=True):
            board.stones[player] = sum(1 << (c * 7 + r) for r, c in np.argwhere(plane).tolist())
        board.heights = planes.sum((0, 1)).astype(int).tolist()
        values.append(np.sign(solver.value(board)))
    return np.zeros((len(values), 7)), np.array(values, np.float64)


@pytest.mark.slow
async def test_late_positions_of_connect4_are_played_well() -> None:
    """Ten free places, exact leaves: at least 95 % of moves keep what the position is worth."""
    right = 0
    for seed in range(40):
        env, moves = connect4.Connect4(), late_position(seed, 10)
        obs, info = env.reset(options={"moves": moves})
        config = SearchConfig(num_simulations=400, discount=1.0, rng="frozen")
        result = await search_env(env, config, obs=obs, info=info, evaluate=winning)
        board, solver = connect4.Board(moves), connect4.Solver()
        worth_now = np.sign(solver.value(board))
        after = board.copy()
        kept = 1 if after.play(result.action) else -np.sign(solver.value(after))
        right += int(kept == worth_now)
    assert right >= 38


async def test_connect4_finds_the_win_and_stops_the_loss() -> None:
    """Three in a column: whoever moves wins there, or has to stop it; rollouts are enough to see that."""
    config = SearchConfig(num_simulations=600, leaf="rollout", discount=1.0, rng="frozen", waves=8, c1=4.0)
    for moves, column in (("303030", 3), ("30303", 3)):
        env = connect4.Connect4()
        _obs, info = env.reset(options={"moves": moves})
        assert (await search_env(env, config, info=info)).action == column


def test_the_games_can_be_searched_from_any_root() -> None:
    """A root in the middle of a game, the other side to move."""
    board = at(0, 1, 3)  # o to move has to stop the column
    root = Root(state=board, obs=[np.array(board)], mask=np.array(board) == -1, to_play=1)
    config = SearchConfig(num_simulations=300, discount=1.0, rng="frozen")
    [result] = asyncio.run(search([root], Games(), exact, config, np.random.default_rng(0)))
    assert result.action == 6


def shortest(start: int) -> int:
    """Steps to 24, breadth first."""
    frontier, steps = {start}, 0
    while search_own_simulator.GOAL not in frontier:
        frontier = {move(n) for n in frontier for _name, move in search_own_simulator.MOVES}
        steps += 1
    return steps


async def test_the_example_finds_the_shortest_way() -> None:
    """Every start of the example: the way of most visits is as short as any, and nothing is held."""
    for start, result in zip((2, 3, 5, 7, 10), await search_own_simulator.main(), strict=True):
        tree, node, steps = result.tree, 0, 0
        while tree.edge_visits[node].any():
            node = int(tree.child[node, tree.edge_visits[node].argmax()])
            steps += 1
        assert steps == shortest(start)
        assert tree.status[node] == TERMINAL


async def test_the_lake_is_crossed() -> None:
    """The example on ice that does not slip: the goal."""
    assert await search_lake.main(num_simulations=150) == 1.0


async def test_tictactoe_against_itself_is_a_game() -> None:
    """Few simulations: legal moves to an end."""
    moves = await tictactoe.main(num_simulations=20)
    board = at(*moves)
    assert len(set(moves)) == len(moves)
    assert over(board)


@pytest.mark.slow
async def test_tictactoe_against_itself_is_a_draw(capsys: pytest.CaptureFixture[str]) -> None:
    """As the example says: neither side can do better against good play."""
    await tictactoe.main()
    assert capsys.readouterr().out.splitlines()[-1] == "a draw"


async def test_connect4_against_its_solver_is_a_game() -> None:
    """A short look, a near horizon: legal moves to an end."""
    moves = await connect4.main(num_simulations=10, depth=2)
    board = connect4.Board(moves)
    assert board.num_free == 0 or connect4.four_in_a_row(board.stones[1 - board.player])


# ---------------------------------------------------------------------------------------------------- sampled actions


class Aim(gymnasium.Env[Any, Any]):
    """Three shots: choose a side and how far; what is paid is how near it comes to a target on that side."""

    targets = (0.8, -0.3)

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 3, (1,), np.float32)
        self.action_space = spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, (1,), np.float32)])
        self._t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        side, far = int(action[0]), float(action[1][0])
        self._t += 1
        reward = (1.0 if side else 0.5) - abs(far - self.targets[side])
        return np.full(1, self._t, np.float32), reward, self._t == 3, False, {}


async def shots(num_simulations: int, seed: int) -> float:
    env, total, rng = Aim(), 0.0, np.random.default_rng(seed)
    env.reset()
    config = SearchConfig(num_simulations=num_simulations, num_sampled=10, leaf="rollout", rng="frozen", c1=4.0)
    for _ in range(3):
        result = await search_env(env, config, rng)
        action = action_of(env.action_space, result)
        assert env.action_space.contains(action)
        total += env.step(action)[1]
    return total


async def test_search_over_hybrid_actions_beats_its_proposal() -> None:
    """A number and a choice at once: of ten proposals the search takes a far better one than the first."""
    found = np.array([[await shots(n, seed) for n in (0, 100)] for seed in range(8)])
    proposal, searched = found.mean(0)
    assert searched > proposal + 1.0
    assert searched > 1.8  # at best 3


async def test_search_over_forces_beats_its_proposal() -> None:
    """Pendulum, half a second: sampled torques with rollouts against the same torques without."""
    found = []
    for num_simulations in (0, 24):
        env = gymnasium.make("Pendulum-v1")
        total, rng = 0.0, np.random.default_rng(0)
        for seed in range(3):
            env.reset(seed=seed)
            config = SearchConfig(
                num_simulations=num_simulations, num_sampled=8, leaf="rollout", rollout_steps=10, rng="frozen", c1=4.0
            )
            for _ in range(25):
                result = await search_env(env, config, rng)
                total += float(env.step(action_of(env.action_space, result))[1])
        found.append(total)
    assert found[1] > found[0]
