"""What a tree costs: microseconds a simulation where simulator and evaluator cost next to nothing.

    python -m benchmarks.search_tree [--sims 200] [--json FILE]

`selection and backup` is the tree alone, on a wave that nobody simulates; `whole` is a search with a simulator that
answers from a constant, so that asking, judging and settling are in it. Rows are `roots × actions, waves`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

import numpy as np
import tyro
from rich.console import Console

from asyncrl.records import Array
from asyncrl.search import Expansion, Outcome, Root, SearchConfig, search
from asyncrl.search.descent import Descent
from asyncrl.search.forest import Forest, Growth
from asyncrl.search.selection import make_selection
from benchmarks.report import Row, machine, print_table, write_json

UNIT = "µs/simulation"
SHAPES = ((1, 2, 1), (1, 18, 8), (16, 18, 1), (64, 4, 1), (64, 18, 1), (64, 18, 8), (256, 9, 1))
LIMIT_US = 50.0
Algorithm = Literal["puct", "gumbel"]


@dataclass(frozen=True)
class Options:
    """How much of what."""

    sims: int = 200
    repeats: int = 3
    json: Path | None = None


class Constant:
    """Every step leads on, for nothing."""

    def __init__(self) -> None:
        self._obs = [np.zeros(4, np.float32)]

    async def simulate(self, wave: Sequence[Expansion]) -> list[Outcome]:
        obs = self._obs
        return [Outcome(obs=obs, rewards=(0.0,), kept=True) for _ in wave]

    async def release(self, states: Sequence[int]) -> None:
        return


class Opinion:
    """Random logits and values from a table, in the order in which they are asked for."""

    def __init__(self, num_actions: int) -> None:
        rng = np.random.default_rng(0)
        self._logits, self._values = rng.normal(size=(4096, num_actions)), rng.normal(size=4096)
        self._next = 0

    def rows(self, num: int) -> tuple[Array, Array]:
        first = self._next % (4096 - num)
        self._next += num
        return self._logits[first : first + num], self._values[first : first + num]

    async def __call__(self, obs: Sequence[Array], mask: Array | None, to_play: Array | None) -> tuple[Array, Array]:
        return self.rows(len(obs[0]))


def whole_us(shape: tuple[int, int, int], algorithm: Algorithm, sims: int) -> float:
    """Microseconds a simulation of `search`."""
    num_roots, num_actions, waves = shape
    config = SearchConfig(algorithm=algorithm, num_simulations=sims, waves=waves, rng="frozen")
    roots = [Root(state=row, obs=[np.zeros(4, np.float32)]) for row in range(num_roots)]
    opinion = Opinion(num_actions)
    start = time.perf_counter()
    asyncio.run(search(roots, Constant(), opinion, config, np.random.default_rng(0)))
    return (time.perf_counter() - start) / (num_roots * sims) * 1e6


def tree_us(shape: tuple[int, int, int], algorithm: Algorithm, sims: int) -> float:
    """Microseconds a simulation of selection, growth and backup."""
    num_roots, num_actions, waves = shape
    config = SearchConfig(algorithm=algorithm, num_simulations=sims, waves=waves, rng="frozen")
    forest, opinion, rows = Forest(num_roots, sims + 1, num_actions), Opinion(num_actions), np.arange(num_roots)

    def growth(num: int) -> Growth:
        logits, value = opinion.rows(num)
        zeros = np.zeros(num, np.int64)
        return Growth(logits, np.ones(logits.shape, np.bool_), value, zeros, zeros, [])

    forest.expand(forest.base(rows), growth(num_roots))
    selection = make_selection(forest, config, [np.random.default_rng(row) for row in range(num_roots)])
    descent = Descent(forest, selection, config, np.full(num_roots, sims))
    start = time.perf_counter()
    while descent.left.any():
        for turn in descent.wave().turns:
            new = growth(len(turn.rows))
            forest.expand(forest.base(turn.rows) + turn.leaves, new)
            forest.flat_discount[forest.edge_above(turn.rows, turn.leaves)] = config.discount
            forest.back_up(turn.rows, turn.leaves, new.value)
    return (time.perf_counter() - start) / (num_roots * sims) * 1e6


def main(options: Options) -> None:
    rows: list[Row] = []
    algorithms: tuple[Algorithm, ...] = ("puct", "gumbel")
    for algorithm in algorithms:
        for shape in SHAPES:
            name = "{} × {}, {}".format(*shape)
            for what, measure in (("selection and backup", tree_us), ("whole", whole_us)):
                found = median(measure(shape, algorithm, options.sims) for _ in range(options.repeats))
                note = ("met" if found <= LIMIT_US else "MISSED") if (what, shape[0]) == ("whole", 64) else ""
                rows.append(Row(f"{algorithm}, {options.sims} simulations", f"{name}: {what}", found, UNIT, note=note))
    print_table(rows, Console(width=110))
    if options.json is not None:
        write_json(rows, machine(), options.json)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
