"""asyncrl train without a terminal: from options to the last lines."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
from tyro._docstrings import get_field_docstring

from asyncrl import cli
from asyncrl.cli import train
from asyncrl.config import ALGORITHMS, PPOConfig
from asyncrl.run import options

pytestmark = pytest.mark.rpc


def test_every_setting_is_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    """By its own name."""
    with pytest.raises(SystemExit):
        train.parse("ppo", ["--help"])
    shown = capsys.readouterr().out
    for field in dataclasses.fields(PPOConfig):
        assert f"--{field.name.replace('_', '-')}" in shown


@pytest.mark.parametrize("algorithm", list(ALGORITHMS))
def test_every_setting_has_its_help_text(
    algorithm: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own, not that of its neighbour: the comment behind it, as whoever reads the sources sees it."""
    monkeypatch.setenv("COLUMNS", "300")
    with pytest.raises(SystemExit):
        train.parse(algorithm, ["--help"])
    lines = " ".join(line.strip("│ ") for line in capsys.readouterr().out.splitlines())
    shown = {part.split()[0].rstrip(","): part for part in re.split(r" --(?!no-)", " ".join(lines.split()))}
    config = options.config_type(algorithm)
    for field in dataclasses.fields(config):
        text = get_field_docstring(config, field.name, ())
        assert text, f"{field.name} has no comment"
        assert f" {text} (" in shown[field.name.replace("_", "-")]


def test_the_command_line_wins(tmp_path: Path) -> None:
    """Over the file, which wins over the preset; `--mode lag 2` is one value."""
    file = tmp_path / "mine.yaml"
    file.write_text("gamma: 0.5\nnum_envs: 2\n")
    arguments = ["--preset", "zoo-cartpole", "--config", str(file), "--num-envs", "16", "--mode", "lag", "2"]
    wanted = train.parse("ppo", arguments)
    expected = options.resolve("ppo", preset_name="zoo-cartpole", config=file, num_envs=16, mode="lag 2")
    assert train.config_of("ppo", wanted) == expected


def test_presets_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """By name, nothing else."""
    assert cli.main(["train", "ppo", "--preset", "list"]) == 0
    assert "zoo-cartpole" in capsys.readouterr().out.split()


@pytest.mark.drawn
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


def test_a_path_to_resume_brings_its_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Algorithm too, if none is given; the command line wins over them. The run goes on to the larger budget."""
    first = ["a2c", "--num-envs", "2", "--num-steps", "8", "--total-timesteps", "64", "--final-eval-episodes", "2"]
    first += ["--lanes", "1", "--seed", "5", "--no-track", "--run-dir", str(tmp_path), "--run-name", "x"]
    assert cli.main(["train", *first]) == 0
    folder = str(tmp_path / "x")
    wanted = train.config_of("a2c", train.parse("a2c", ["--resume", folder, "--total-timesteps", "128"]))
    assert isinstance(wanted, PPOConfig)
    assert (wanted.num_envs, wanted.seed, wanted.num_minibatches, wanted.total_timesteps) == (2, 5, 1, 128)
    assert train.split(["--resume", folder])[0] == "a2c"
    capsys.readouterr()
    assert cli.main(["train", "--resume", folder, "--total-timesteps", "128"]) == 0
    assert "128 steps in" in capsys.readouterr().out
    assert cli.main(["train", "ppo", "--resume", folder]) == 2
    assert f"--resume {folder} is a run of a2c, not of ppo" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--resume", "nowhere"], "there is no run in it"),
        (["--preset", "strat"], "did you mean 'start'"),
        (["--config", "nowhere.yaml"], "--config nowhere.yaml: No such file"),
        (["pppo"], "did you mean 'ppo'"),
        (["--mode", "lagg"], "sync, lag N"),
        (["--servers", "host"], "host"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], text: str
) -> None:
    """Status 2, and no directory."""
    assert cli.main(["train", *arguments, *([] if arguments == ["pppo"] else ["--run-dir", str(tmp_path)])]) == 2
    errors = capsys.readouterr().err.strip()
    assert text in errors
    assert "\n" not in errors
    assert not list(tmp_path.iterdir())


def test_an_unknown_key_of_a_file_names_the_nearest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As an unknown option does."""
    (tmp_path / "mine.yaml").write_text("learning_rat: 1\n")
    assert cli.main(["train", "--config", str(tmp_path / "mine.yaml")]) == 2
    assert "did you mean 'learning_rate'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        train.parse("ppo", ["--learning-rat", "1"])
    assert "--learning-rate" in capsys.readouterr().err
