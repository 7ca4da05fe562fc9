"""Planning without learning: what search alone makes of environments whose best return is known.

    python -m benchmarks.planning                          Taxi, FrozenLake, CliffWalking, Pendulum
    python -m benchmarks.planning --task cartpole --episodes 5

* taxi: exact values at the leaves, 200 simulations: regret against value iteration.
* lake: FrozenLake that does not slip, rollouts at the leaves.
* cartpole: rollouts of each action, no tree.
* cliff: a curve over simulations with exact leaves. There is no bar: exploring next to the cliff costs what it costs.
* pendulum: actions sampled for each state, against the same number of random actions without search.

Environments are copied in this process; their luck is frozen, since they have none but in their first states.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import gymnasium
import numpy as np
import tyro
from rich.console import Console

from asyncrl.records import Array
from asyncrl.search import Evaluate, Propose, SearchConfig, search
from asyncrl.search.local import LocalSimulator, UniformProposals, action_of
from benchmarks.report import Row, machine, print_table, write_json

Task = Literal["taxi", "lake", "cartpole", "cliff", "pendulum"]
GAMMA = 0.99
CLIFF_SIMS = (50, 200, 800)


@dataclass(frozen=True)
class Options:
    """Which of them, and how often."""

    task: Annotated[tuple[Task, ...], tyro.conf.UseAppendAction] = ()
    episodes: int = 20
    json: Path | None = None


class Tabular:
    """Exact values of an environment that has its transitions in a table `P`, and no prior."""

    def __init__(self, env: gymnasium.Env[Any, Any], gamma: float) -> None:
        table = env.unwrapped.P  # type: ignore[attr-defined]
        self.num_actions = len(table[0])
        steps = [[table[s][a][0] for a in range(self.num_actions)] for s in range(len(table))]
        after = np.array([[step[1] for step in row] for row in steps])
        reward = np.array([[step[2] for step in row] for row in steps], np.float64)
        goes_on = np.array([[not step[3] for step in row] for row in steps])
        self.values = np.zeros(len(table))
        for _ in range(2000):
            self.values = (reward + gamma * goes_on * self.values[after]).max(1)

    async def __call__(self, obs: Sequence[Array], mask: Array | None, to_play: Array | None) -> tuple[Array, Array]:
        return np.zeros((len(obs[0]), self.num_actions)), self.values[obs[0]]


async def play(
    make: Callable[[], gymnasium.Env[Any, Any]],
    num_episodes: int,
    config: SearchConfig,
    evaluate: Evaluate | Propose | None = None,
) -> tuple[Array, Array]:
    """Returns f8 [episodes] and first observations of episodes that are searched side by side, seeds 0, 1, …"""
    envs = [make() for _ in range(num_episodes)]
    last: list[Any] = [env.reset(seed=seed)[0] for seed, env in enumerate(envs)]
    first, returns = np.array(last), np.zeros(num_episodes)
    simulator, rng, going = LocalSimulator(envs[0]), np.random.default_rng(0), list(range(num_episodes))
    while going:
        roots = [simulator.root(envs[i], last[i]) for i in going]
        results = await search(roots, simulator, evaluate, config, rng)
        await simulator.release([int(root.state) for root in roots])  # type: ignore[call-overload]
        still: list[int] = []
        for i, result in zip(going, results, strict=True):
            env = envs[i]
            last[i], reward, terminated, truncated, _info = env.step(action_of(env.action_space, result))
            returns[i] += float(reward)
            if not (terminated or truncated):
                still.append(i)
        going = still
    return returns, first


async def taxi(num_episodes: int) -> list[Row]:
    def make() -> gymnasium.Env[Any, Any]:
        return gymnasium.make("Taxi-v4")

    config = SearchConfig(num_simulations=200, discount=GAMMA, rng="frozen")
    returns, first = await play(make, num_episodes, config, Tabular(make(), GAMMA))
    regret = Tabular(make(), 1.0).values[first] - returns
    note = f"n = 200, {int((np.abs(regret) < 1e-9).sum())} of {num_episodes} without regret"
    return [
        Row("taxi", "mean return", float(returns.mean()), "", note="mean over all 300 starts at best: 7.93"),
        Row("taxi", "largest regret", float(regret.max()), "", note=note),
    ]


async def lake(num_episodes: int) -> list[Row]:
    config = SearchConfig(num_simulations=200, leaf="rollout", discount=GAMMA, rng="frozen", rollout_steps=100)
    returns, _first = await play(lambda: gymnasium.make("FrozenLake-v1", is_slippery=False), num_episodes, config)
    return [Row("lake", "goals", float(returns.sum()), f"of {num_episodes}", note="n = 200")]


async def cartpole(num_episodes: int) -> list[Row]:
    config = SearchConfig(
        algorithm="rollouts", num_simulations=200, leaf="rollout", discount=GAMMA, rng="frozen", rollout_steps=200
    )
    returns, _first = await play(lambda: gymnasium.make("CartPole-v1"), num_episodes, config)
    note = f"n = 200, {int((returns == 500).sum())} of {num_episodes} at 500"
    return [Row("cartpole", "mean return", float(returns.mean()), "", note=note)]


async def cliff(num_episodes: int) -> list[Row]:
    """Every episode begins in the same state, and the search has no noise: one episode is all of them."""
    rows: list[Row] = []
    for sims in CLIFF_SIMS:

        def make() -> gymnasium.Env[Any, Any]:
            return gymnasium.wrappers.TimeLimit(gymnasium.make("CliffWalking-v1"), 100)

        for leaf, evaluate in (("exact", Tabular(make(), GAMMA)), ("rollout", None)):
            kind: Literal["evaluate", "rollout"] = "rollout" if evaluate is None else "evaluate"
            config = SearchConfig(
                num_simulations=sims, discount=GAMMA, rng="frozen", leaf=kind, rollout_steps=50, c1=1.25
            )
            returns, _first = await play(make, 1, config, evaluate)
            rows.append(Row("cliff", f"{leaf} leaves, n = {sims}", float(returns[0]), "", note="at best −13"))
    return rows


async def pendulum(num_episodes: int) -> list[Row]:
    def make() -> gymnasium.Env[Any, Any]:
        return gymnasium.make("Pendulum-v1", max_episode_steps=60)

    num_episodes = min(num_episodes, 5)
    rows: list[Row] = []
    for sims in (0, 16, 64):
        config = SearchConfig(
            num_simulations=sims, num_sampled=8, leaf="rollout", rollout_steps=20, discount=GAMMA, rng="frozen"
        )
        returns, _first = await play(make, num_episodes, config, UniformProposals(make().action_space))
        name = f"8 actions a state, n = {sims}" if sims else "its own proposal"
        rows.append(Row("pendulum", name, float(returns.mean()), "", note=f"60 steps, {num_episodes} episodes"))
    return rows


TASKS: dict[Task, Callable[[int], Awaitable[list[Row]]]] = {
    "taxi": taxi,
    "lake": lake,
    "cartpole": cartpole,
    "cliff": cliff,
    "pendulum": pendulum,
}
DEFAULT: tuple[Task, ...] = ("taxi", "lake", "cliff", "pendulum")


async def measure(task: Task, num_episodes: int) -> list[Row]:
    start = time.perf_counter()
    rows = await TASKS[task](num_episodes)
    return [*rows, Row(task, "time", time.perf_counter() - start, "s")]


def main(options: Options) -> None:
    rows: list[Row] = []
    for task in options.task or DEFAULT:
        found = asyncio.run(measure(task, options.episodes))
        print_table(found, Console(width=100))
        rows += found
    if options.json is not None:
        write_json(rows, machine(), options.json)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
