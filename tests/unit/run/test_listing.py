"""How runs stand, from their files alone."""

from __future__ import annotations

from pathlib import Path

from asyncrl.run.listing import list_runs, summarise
from asyncrl.run.result import Result, write_result
from asyncrl.run.run_dir import RunDir
from tests.unit.run.run_making import make_run


def test_a_run_lives_is_at_its_end_or_is_unfinished(tmp_path: Path) -> None:
    """The lock says it lives, the result that it is at its end; rows without either: it was stopped, or it crashed."""
    run = make_run(tmp_path / "x", seed=7)
    with run.lock():
        assert summarise(run).state == "running"
    found = summarise(run)
    assert (found.state, found.env_id, found.algorithm, found.seed) == ("unfinished", "CartPole-v1", "ppo", 7)
    assert (found.step, found.mean_return, found.eval_return, found.sps) == (100, 5.5, 1.0, 100.0)
    ended = Result(algorithm="ppo", env_id="CartPole-v1", seed=7, env_steps=128, wall_s=1, sps=50, eval_return_mean=9.5)
    write_result(run.result, ended)
    found = summarise(run)
    assert (found.state, found.step, found.eval_return, found.sps) == ("finished", 128, 9.5, 50)
    assert 0 <= found.age_s < 60


def test_a_run_without_rows_is_new(tmp_path: Path) -> None:
    """And whatever it has not written is not known."""
    RunDir(tmp_path).write_config({})
    (found,) = list_runs(tmp_path)
    assert (found.state, found.env_id, found.seed, found.step, found.mean_return) == ("new", "?", None, 0, None)
