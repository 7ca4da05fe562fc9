"""Curves of long runs, out of the files that runs leave."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from asyncrl.run.run_dir import RunDir
from benchmarks.long_runs import ROWS, Point, points, report

EPISODES = [(-20.0, 100), (-18.0, 250), (-10.0, 251), (-6.0, 700), (4.0, 1000)]  # return, step


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    """One run of pong-dqn."""
    folder = tmp_path / "pong-dqn__1"
    folder.mkdir()
    lines = [f"{ret},10,1.0,{step}" for ret, step in EPISODES]
    (folder / "monitor.csv").write_text("\n".join(["#{}", "r,l,t,step", *lines]) + "\n")
    rows = [{"step": 500, "time": 1.0, "eval/episodic_return": 3.0}, {"step": 1000, "time": 2.0, "time/wall_s": 7.25}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_a_point_is_of_the_episodes_of_its_interval(parent: Path) -> None:
    """An interval ends with the step that it is named after; one without an episode has no point."""
    found = points(RunDir(parent / "pong-dqn__1"), 250)
    assert found == [
        Point(250, fmean([-20.0, -18.0]), 2),
        Point(500, -10.0, 1),
        Point(750, -6.0, 1),
        Point(1000, 4.0, 1),
    ]


@pytest.mark.parametrize(
    ("asked", "bar", "returns", "met"),
    [
        ("last interval at least", -13.9, [-20.0, -13.9], True),
        ("last interval at least", -13.9, [-10.0, -14.0], False),
        ("rises", 0.0, [1.0, 2.0, 3.0], True),
        ("rises", 0.0, [1.0, 3.0, 2.0], False),
        ("rises", 0.0, [1.0, 1.0], False),
    ],
)
def test_what_is_asked_of_a_curve(asked: str, bar: float, returns: list[float], met: bool) -> None:
    """Where it ends, or that no interval is worse than the one before."""
    row = replace(ROWS["pong-dqn"], asked=asked, bar=bar)  # type: ignore[arg-type]
    assert row.met([Point(number, each, 1) for number, each in enumerate(returns)]) is met


def test_a_run_that_has_not_ended_meets_nothing(parent: Path) -> None:
    """Its curve is reported, with evaluations and wall time; the verdict waits for the end."""
    (seed,) = report(ROWS["pong-dqn"], parent)["seeds"]
    assert (seed["env_steps"], seed["wall_s"], seed["eval_return"], seed["met"]) == (1000, 7.2, [(500, 3.0)], False)
    (parent / "pong-dqn__1" / "result.json").write_text(json.dumps({"commit": "abc"}))
    (seed,) = report(replace(ROWS["pong-dqn"], interval=250), parent)["seeds"]
    assert (seed["commit"], seed["met"]) == ("abc", True)
