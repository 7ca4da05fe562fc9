"""The curve of a policy by how far it looks ahead."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from asyncrl.run.run_dir import RunDir
from asyncrl.run.running import run_to_the_end
from asyncrl.run.session import saved_config
from benchmarks.search_curve import RANDOM, Options, Point, draw, played_before, point, rows_of
from tests.unit.run.tiny_training import tiny_config

POINT = Point(4, (1.0, 3.0), env_steps=10, simulator_steps=50, wall_s=0.2, searching_s=0.1, failures=0)


def test_a_point_tells_all_that_it_cost() -> None:
    """Simulations, steps of the environment and of simulators, time: none of them alone is a fair comparison."""
    (row,) = rows_of([POINT], "game")
    assert (row.name, row.value) == ("4 simulations", 2.0)
    assert row.note == "± 1.00; 10 steps, 5.0 of simulators each, 20.00 ms each, 0 failed"


def test_a_curve_is_drawn_against_each_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three panels, with chance as a line in each."""
    from matplotlib import figure

    drawn: list[figure.Figure] = []
    monkeypatch.setattr(figure.Figure, "savefig", lambda self, *_args, **_more: drawn.append(self))
    alone = replace(POINT, sims=0, simulator_steps=10, wall_s=0.1)
    draw([replace(POINT, sims=RANDOM), alone, POINT], "game", tmp_path / "curve.png")
    panels = {axis.get_xlabel(): [np.asarray(line.get_xdata()) for line in axis.lines] for axis in drawn[0].axes}
    costs = {name: lines[0].tolist() for name, lines in panels.items()}
    assert costs == {
        "simulations for each action": [0, 4],
        "milliseconds for each action": [10, 20],
        "simulator steps for each action": [1, 5],
    }
    assert all("random actions" in axis.get_legend_handles_labels()[1] for axis in drawn[0].axes)


def test_only_points_of_the_same_curve_are_not_played_again(tmp_path: Path) -> None:
    """Another title, or another number of episodes, is another curve."""
    path = tmp_path / "curve.json"
    assert played_before(path, "game", 2) == {}
    path.write_text(json.dumps({"title": "game", "points": [vars(POINT)]}))
    assert played_before(path, "game", 2)[4].simulator_steps == 50
    assert played_before(path, "game", 3) == {}
    assert played_before(path, "another", 2) == {}


@pytest.mark.rpc
@pytest.mark.timeout(90)
def test_points_are_played(tmp_path: Path) -> None:
    """By chance and by the policy a step is a step; with three simulations it is up to four."""
    ran = run_to_the_end("ppo", tiny_config(tmp_path, total_timesteps=320, host="auto"))
    folder = RunDir(ran.folder)
    algorithm, config = saved_config(folder)
    options = Options(ran.folder, episodes=2, num_envs=2)
    for sims in (RANDOM, 0, 3):
        found = asyncio.run(point(folder, config, algorithm, options, sims))
        assert len(found.returns) == 2
        assert found.env_steps == sum(found.returns)  # CartPole pays 1 a step
        extra = found.simulator_steps - found.env_steps
        assert 0 < extra <= 3 * found.env_steps if sims > 0 else not extra
        assert found.wall_s > 0
