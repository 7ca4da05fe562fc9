"""asyncrl train without a terminal: from options to the last lines."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from asyncrl import cli
from asyncrl.cli import train
from asyncrl.config import PPOConfig
from asyncrl.run import options

pytestmark = pytest.mark.rpc


def test_every_setting_is_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    """With its own help, not that of its neighbour."""
    with pytest.raises(SystemExit):
        train.parse("ppo", ["--help"])
    shown = capsys.readouterr().out
    for field in dataclasses.fields(PPOConfig):
        assert f"--{field.name.replace('_', '-')}" in shown


def test_the_command_line_wins(tmp_path: Path) -> None:
    """Over the file, which wins over the preset; `--mode lag 2` is one value."""
    file = tmp_path / "mine.yaml"
    file.write_text("gamma: 0.5\nnum_envs: 2\n")
    arguments = ["--preset", "zoo-cartpole", "--config", str(file), "--num-envs", "16", "--mode", "lag", "2"]
    wanted = train.parse("ppo", arguments)
    expected = options.resolve("ppo", preset_name="zoo-cartpole", config=file, num_envs=16, mode="lag 2")
    assert train.config_of(wanted) == expected


def test_presets_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """By name, nothing else."""
    assert cli.main(["train", "ppo", "--preset", "list"]) == 0
    assert "zoo-cartpole" in capsys.readouterr().out.split()


def test_the_end_says_where_things_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run of three rounds: every path that it names is there, and the numbers agree with result.json."""
    arguments = ["--num-envs", "8", "--lanes", "2", "--num-steps", "32", "--total-timesteps", "800", "--seed", "3"]
    arguments += [
        "--eval-every",
        "500",
        "--eval-episodes",
        "4",
        "--final-eval-episodes",
        "6",
        "--run-dir",
        str(tmp_path),
    ]
    assert cli.main(["train", *arguments]) == 0
    shown = capsys.readouterr().out
    named = {
        line.split()[0]: Path(line.split()[1]) for line in shown.splitlines() if line[:4] in ("run ", "mode", "plot")
    }
    assert set(named) == {"run", "model", "plot"}
    assert all(path.exists() for path in named.values())
    result = json.loads((named["run"] / "result.json").read_text())
    assert (result["env_steps"], result["eval_episodes"], result["seed"]) == (768, 6, 3)
    assert f"{result['eval_return_mean']:.2f}" in shown
    assert "\x1b[" not in shown
    assert cli.main(["eval", str(named["run"]), "--episodes", "6", "--num-envs", "6"]) == 0
    # Other environments side by side, the same policy.
    assert "over 6 episodes" in capsys.readouterr().out


def test_an_environment_that_does_not_exist_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The server's own words come through, status 1, and no directory stays."""
    assert cli.main(["train", "--env-id", "NoSuchEnv-v0", "--num-envs", "1", "--run-dir", str(tmp_path)]) == 1
    assert "NoSuchEnv" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
