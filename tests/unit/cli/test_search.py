"""asyncrl search, and asyncrl eval --search: from options to a table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from asyncrl import cli
from asyncrl.cli.search import Search, plan_of
from asyncrl.run.options import resolve
from asyncrl.run.running import run_to_the_end
from asyncrl.search import Expansion, Outcome
from asyncrl.search.remote import RemoteSimulator
from tests.unit.run.tiny_training import tiny_config

pytestmark = [pytest.mark.rpc, pytest.mark.timeout(90)]

LAKE = ["search", "--env-id", "FrozenLake-v1", "--env-kwargs", '{"is_slippery": false}', "--rng", "frozen"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["search"], "--env-id is missing"),
        (["search", "--env-id", "CartPole-v1", "--sims", "0"], "--sims and --waves are 1 or more"),
        (["search", "--env-id", "CartPole-v1", "--num-sampled", "-1"], "--num-sampled is 0 or more"),
        (["search", "--env-id", "CartPole-v1", "--episodes", "0"], "--episodes and --num-envs are 1 or more"),
        (["search", "--env-id", "CartPole-v1", "--algorithm", "best-of", "--leaf", "zero"], "it has no other --leaf"),
        (["search", "--env-id", "CartPole-v1", "--leaf", "zero", "--rollout-steps", "9"], "is for --leaf rollout"),
        (["search", "--leaf", "nowhere", "--rollout-steps", "1000"], "is for --leaf rollout"),
        (["search", "--env-id", "CartPole-v1", "--rollout-steps", "10001"], "1 to 10000 are possible"),
        (["search", "--env-id", "CartPole-v1", "--rollout-steps", "0"], "1 to 10000 are possible"),
        (["eval", "nowhere", "--sims", "9", "--search-servers", "a:1"], "--sims, --search-servers: for --search puct"),
        (["search", "--env-id", "CartPole-v1", "--gamma", "2"], "--gamma 2: a discount lies between 0 and 1"),
        (["search", "--env-id", "CartPole-v1", "--search-servers", "a:1"], "--search-servers need --servers"),
        (["eval", "nowhere", "--search", "puct", "--search-servers", "a:1"], "--search-servers need --servers"),
        (["search", "--leaf", "nowhere"], "or the directory of a run, which this is not"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 2, before anything is started."""
    assert cli.main(arguments) == 2
    assert why in capsys.readouterr().err


def test_the_lake_is_crossed_without_a_network(capsys: pytest.CaptureFixture[str]) -> None:
    """Three episodes by rollouts: a line for each, and what they cost."""
    assert cli.main([*LAKE, "--sims", "150", "--episodes", "3", "--num-envs", "3"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("return 1.00") == 3
    assert "1.00 ± 0.00 over 3 episodes" in shown
    assert "failed: none" in shown
    assert all(cost in shown for cost in ("simulations", "simulations/s", "steps of simulators", "seconds"))


def test_the_best_of_rollouts_is_a_plan_too(capsys: pytest.CaptureFixture[str]) -> None:
    """No tree, and every simulation of a step is under way at once."""
    short = ["--env-id", "CartPole-v1", "--env-kwargs", '{"max_episode_steps": 60}']
    arguments = ["search", *short, "--algorithm", "best-of", "--rng", "frozen", "--rollout-steps"]
    assert cli.main([*arguments, "10", "--sims", "16", "--waves", "16", "--episodes", "1", "--num-envs", "1"]) == 0
    shown = capsys.readouterr().out
    assert "over 1 episodes" in shown
    assert "8.5 of" in shown, "two frames for each state: the rollout from itself, and sixteen at once"


def test_a_search_that_found_nothing_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 1, and by what name everything failed: what was played has nothing to do with a search."""

    async def fail(_simulator: RemoteSimulator, wave: Sequence[Expansion]) -> list[Outcome]:
        return [Outcome("unsupported") for _ in wave]

    monkeypatch.setattr(RemoteSimulator, "simulate", fail)
    arguments = ["search", "--env-id", "CartPole-v1", "--leaf", "zero", "--sims", "2", "--episodes", "1"]
    assert cli.main(arguments) == 1
    assert re.search(r"none came back \(\d+ unsupported\)", capsys.readouterr().err)


def test_a_run_without_a_value_is_no_judge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One of DQN, whose replay is not loaded to say so: by eval and by search."""
    config = resolve("dqn", env_id="CartPole-v1", num_envs=2, total_timesteps=64, run_dir=str(tmp_path), track=False)
    ran = run_to_the_end("dqn", config)
    run = str(ran.folder)
    assert cli.main(["eval", run, "--search", "puct", "--episodes", "1"]) == 2
    assert "DQN has action values alone" in capsys.readouterr().err
    assert cli.main(["search", "--leaf", run, "--episodes", "1"]) == 2
    assert "DQN has action values alone" in capsys.readouterr().err


def test_a_run_is_searched_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By eval and by search, with its discount and its environment; another environment is refused."""
    ran = run_to_the_end("ppo", tiny_config(tmp_path, total_timesteps=32, gamma=0.9, host="auto"))
    run = str(ran.folder)
    how = ["--sims", "6", "--rng", "frozen", "--episodes", "2", "--num-envs", "2"]
    assert cli.main(["eval", run, "--search", "gumbel", *how]) == 0
    assert "over 2 episodes" in capsys.readouterr().out
    assert cli.main(["search", "--leaf", run, *how]) == 0
    assert "CartPole-v1, puct, 6 simulations" in capsys.readouterr().out
    assert cli.main(["search", "--leaf", run, "--env-id", "Acrobot-v1", *how]) == 2
    assert "is a run of CartPole-v1, not of Acrobot-v1" in capsys.readouterr().err
    assert cli.main(["search", "--leaf", run, "--env-kwargs", '{"sutton_barto_reward": true}', *how]) == 2
    assert "has the --env-kwargs of its run" in capsys.readouterr().err
    assert cli.main(["search", "--leaf", run, "--num-sampled", "2", *how]) == 2
    assert "leave num_sampled at 0" in capsys.readouterr().err
    assert cli.main(["eval", run, "--search", "puct", "--video", *how]) == 2
    assert "leave out --sampled and --video" in capsys.readouterr().err


@pytest.mark.parametrize(("leaf", "span"), [("", 1.0), ("runs/some", 1.0), ("rollout", 1e-8), ("zero", 1e-8)])
def test_a_critics_small_differences_are_not_magnified(leaf: str, span: float) -> None:
    """Where a network judges, of `asyncrl eval` or of `--leaf RUN`; returns of rollouts and zeros are as published."""
    assert plan_of(Search(env_id="x"), "gumbel", leaf, 0.9).min_span == span
