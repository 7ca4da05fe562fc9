"""What a run's policy returns as a function of how far it looks ahead.

    python -m benchmarks.search_curve RUN [--sims 0 4 16 50 200] [--episodes 10] [--rng resample] [--plot curve.png]

Each point plays the same number of episodes from the same seeds. It is told, and drawn, against simulations for each
action, against seconds for each action, and against steps of a simulator for each action: a search that is better for
the same number of environment steps has taken more of everything else. 0 simulations is the policy by itself (its
likeliest action); random actions are the other end. With `--json` a run that was broken off goes on: points that the
file has are not played again.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro

from asyncrl.client.fleet import Fleet
from asyncrl.config import RunConfig
from asyncrl.keyed_noise import uniform
from asyncrl.policy import Acted
from asyncrl.records import Array
from asyncrl.run.checkpoints import load_newest
from asyncrl.run.evaluation import Evaluation, evaluate
from asyncrl.run.examining import EVAL_SEED
from asyncrl.run.playing import PlayWish, play_run
from asyncrl.run.run_dir import RunDir
from asyncrl.run.searching_play import SearchPlayWish, play_by_search
from asyncrl.run.serving import serving
from asyncrl.run.session import saved_config
from asyncrl.search.config import CRITIC_SPAN, SearchConfig
from benchmarks.report import Report, Row, machine, print_table

RANDOM = -1  # simulations, of the point that acts at random


@dataclass(frozen=True)
class Options:
    """What is played."""

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    sims: tuple[int, ...] = (0, 4, 16, 50, 200)
    episodes: int = 10
    num_envs: int = 10
    algorithm: Literal["gumbel", "puct"] = "gumbel"
    rng: Literal["resample", "frozen", "open_loop"] = "resample"
    waves: int = 16
    min_span: Annotated[float, tyro.conf.arg(help="see SearchConfig.min_span")] = CRITIC_SPAN
    servers: str | None = None
    search_servers: str | None = None
    json: Path | None = None
    plot: Path | None = None


@dataclass(frozen=True)
class Point:
    """One row: `sims` simulations for each action."""

    sims: int
    returns: tuple[float, ...]
    env_steps: int
    simulator_steps: int  # those of simulations and those that were played
    wall_s: float
    searching_s: float
    failures: int

    @property
    def mean(self) -> float:
        return float(np.mean(self.returns))

    @property
    def error(self) -> float:
        """Of the mean."""
        return float(np.std(self.returns, ddof=1) / np.sqrt(len(self.returns))) if len(self.returns) > 1 else 0.0

    @property
    def name(self) -> str:
        if self.sims == RANDOM:
            return "random actions"
        return f"{self.sims} simulations" if self.sims else "the policy alone"


class Random:
    """A policy: any allowed action."""

    def __init__(self, num_actions: int, dtype: np.dtype[Any]) -> None:
        self._num_actions, self._dtype = num_actions, dtype

    def act(
        self, obs: Sequence[Array], mask: Array | None, first: Array, carry: Sequence[Array], keys: Array | None
    ) -> Acted:
        rows = len(first)
        assert keys is not None
        scores = uniform(17, keys, self._num_actions)
        action = np.where(mask, scores, -1.0).argmax(1) if mask is not None else scores.argmax(1)
        zeros = np.zeros(rows, np.float32)
        return Acted([action.astype(self._dtype)], zeros, zeros, 0)


async def by_chance(config: RunConfig, options: Options, seed: int) -> Evaluation:
    settings: dict[str, Any] = {"auto_reset": False, "seed": seed, "host": config.host}
    num_envs = min(options.num_envs, options.episodes)
    async with (
        serving(config, options.servers, None, num_envs) as found,
        found.fleet(num_envs=num_envs, **settings) as fleet,
    ):
        return await evaluate(fleet, _random_policy(fleet), options.episodes, seed)


def _random_policy(fleet: Fleet) -> Random:
    assert fleet.spec is not None
    (node,) = fleet.spec.action.nodes
    if node.start:
        raise SystemExit("actions that do not begin at 0 are not drawn here")
    return Random(node.n, node.dtype)


async def point(folder: RunDir, config: RunConfig, algorithm: str, options: Options, sims: int) -> Point:
    seed = config.seed + EVAL_SEED
    began = time.perf_counter()
    if sims > 0:
        plan = SearchConfig(
            algorithm=options.algorithm,
            num_simulations=sims,
            waves=options.waves,
            min_span=options.min_span,
            rng=options.rng,
            discount=config.gamma,
            gumbel_scale=0.0,
        )
        wish = SearchPlayWish(
            plan=plan,
            episodes=options.episodes,
            num_envs=options.num_envs,
            seed=seed,
            checkpoint=(algorithm, load_newest(folder.checkpoints)),
            search_servers=options.search_servers,
        )
        played = await play_by_search(config, wish, options.servers)
        found, simulated = played.evaluation, played.counts.steps
        wall_s, searching_s, failures = played.wall_s, played.stats.searching_s, played.stats.failures.total()
    else:
        by_policy = PlayWish(episodes=options.episodes, num_envs=options.num_envs)
        if sims == RANDOM:
            found = await by_chance(config, options, seed)
        else:
            found = await play_run(folder, by_policy, options.servers)
        wall_s, searching_s, simulated, failures = time.perf_counter() - began, 0.0, 0, 0
    steps = sum(found.lengths)
    return Point(sims, found.returns, steps, steps + simulated, wall_s, searching_s, failures)


def rows_of(points: Sequence[Point], title: str) -> list[Row]:
    rows: list[Row] = []
    for each in points:
        note = (
            f"± {each.error:.2f}; {each.env_steps:,} steps, "
            f"{each.simulator_steps / each.env_steps:.1f} of simulators each, "
            f"{1e3 * each.wall_s / each.env_steps:.2f} ms each, {each.failures} failed"
        )
        rows.append(Row(title, each.name, each.mean, "return", note=note))
    return rows


def draw(points: Sequence[Point], title: str, path: Path) -> None:
    """Mean returns with their errors, against each of the three costs of an action."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    played = [each for each in points if each.sims != RANDOM]
    figure, axes = plt.subplots(1, 3, figsize=(13, 4), sharey=True)
    costs = {
        "simulations for each action": [float(each.sims) for each in played],
        "milliseconds for each action": [1e3 * each.wall_s / each.env_steps for each in played],
        "simulator steps for each action": [each.simulator_steps / each.env_steps for each in played],
    }
    for axis, (label, values) in zip(axes, costs.items(), strict=True):
        axis.errorbar(values, [each.mean for each in played], [each.error for each in played], marker="o", capsize=3)
        for chance in (each for each in points if each.sims == RANDOM):
            axis.axhline(chance.mean, color="tab:gray", linestyle=":", label="random actions")
        if min(values) == 0:
            axis.set_xscale("symlog", linthresh=1)
            axis.set_xlim(-0.3, 1.5 * max(values))
        else:
            axis.set_xscale("log")
        axis.set_xticks(values, [f"{value:.3g}" for value in values])
        axis.minorticks_off()
        axis.set_xlabel(label)
        axis.legend(loc="best")
    axes[0].set_ylabel(f"mean return of {len(played[0].returns)} episodes")
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)


def played_before(path: Path | None, title: str, episodes: int) -> dict[int, Point]:
    """Points of the same title and as many episodes that the file has: they are not played again."""
    if path is None or not path.exists():
        return {}
    document = json.loads(path.read_text())
    found = [Point(**each) for each in document["points"]] if document["title"] == title else []
    return {each.sims: each for each in found if len(each.returns) == episodes}


def main() -> None:
    options = tyro.cli(Options, description=(__doc__ or "").partition("\n")[0])
    folder = RunDir(options.run)
    algorithm, config = saved_config(folder)
    of = f"{options.run.name} at {load_newest(folder.checkpoints).path.name}"
    title = f"{config.env_id}, {options.algorithm}, rng {options.rng}, span {options.min_span:g}, {of}"
    about, points = machine(), list[Point]()
    console = Report("", "", None, None, False, 130).console()
    known = played_before(options.json, title, options.episodes)
    for sims in (RANDOM, *options.sims):
        points.append(known.get(sims) or asyncio.run(point(folder, config, algorithm, options, sims)))
        print_table(rows_of(points[-1:], title), console)
        if options.json is not None:
            document = {"machine": about, "title": title, "points": [vars(each) for each in points]}
            options.json.write_text(json.dumps(document, indent=1) + "\n")
    print_table(rows_of(points, title), console)
    if options.plot is not None:
        draw(points, title, options.plot)


if __name__ == "__main__":
    main()
