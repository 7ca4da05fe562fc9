"""asyncrl eval: from a directory to a mean return."""

from __future__ import annotations

from pathlib import Path

import pytest

from asyncrl import cli
from asyncrl.run.running import run_to_the_end
from tests.unit.run.tiny_training import tiny_config

pytestmark = [pytest.mark.rpc, pytest.mark.timeout(90)]


def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No run there, nothing to play."""
    assert cli.main(["eval", str(tmp_path)]) == 2
    assert "is no run: it has no config.json" in capsys.readouterr().err
    assert cli.main(["eval", str(tmp_path), "--episodes", "0"]) == 2
    assert "--episodes and --num-envs are 1 or more" in capsys.readouterr().err


def test_a_run_is_played_and_filmed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The film is in the run's folder, where the last line says."""
    env = "painted=tests.unit.run.odd_envs:Painted"
    ran = run_to_the_end("ppo", tiny_config(tmp_path, env_id=env, total_timesteps=32))
    assert cli.main(["eval", str(ran.folder), "--episodes", "3", "--sampled", "--video"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[-1] == f"film {ran.folder / 'video' / 'latest.mp4'}"
    assert (ran.folder / "video" / "latest.mp4").stat().st_size > 100
    assert shown[-2].endswith("lengths 10 to 10")


def test_an_environment_without_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """CartPole draws with pygame: status 1, its name, and nothing left; without --video it is played."""
    ran = run_to_the_end("ppo", tiny_config(tmp_path, total_timesteps=32))
    assert cli.main(["eval", str(ran.folder), "--episodes", "3"]) == 0
    assert "over 3 episodes" in capsys.readouterr().out
    assert cli.main(["eval", str(ran.folder), "--episodes", "3", "--video"]) == 1
    errors = capsys.readouterr().err.strip().splitlines()
    assert len([text for text in errors if text.startswith("asyncrl:")]) == 1
    assert "pip install" in errors[-1]
    assert not (ran.folder / "video").exists()
