"""asyncrl train without a terminal: plain lines, a table, the truth about the missing learner."""

from __future__ import annotations

import re

import pytest

from asyncrl import cli

pytestmark = pytest.mark.rpc


def test_training_collects_and_says_what_it_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    """An embedded server, random actions, a limit that is kept, and a report in which the numbers agree."""
    arguments = [
        "train",
        "ppo",
        "--env-id",
        "CartPole-v1",
        "--num-envs",
        "4",
        "--lanes",
        "2",
        "--total-timesteps",
        "600",
    ]
    assert cli.main(arguments) == 0
    shown = capsys.readouterr().out
    assert "No learner in this version yet" in shown
    found = {key: re.search(rf"{key}\D*([\d,.]+)", shown) for key in ("transitions", "episodes", "seconds")}
    assert found["transitions"] is not None
    assert 600 <= int(found["transitions"][1].replace(",", "")) <= 604
    assert found["episodes"] is not None
    assert int(found["episodes"][1]) > 5
    assert "2 of 2 environments" in shown


def test_training_stops_after_its_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    """Time is a limit too, and progress comes in plain lines where there is no terminal."""
    assert cli.main(["train", "--num-envs", "2", "--seconds", "2.5"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"2\.\d s +[\d,]+ transitions +[\d,]+/s", shown)
    assert "\x1b[" not in shown


def test_an_environment_that_does_not_exist_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """The server's own words come through, and status 1."""
    assert cli.main(["train", "--env-id", "NoSuchEnv-v0", "--num-envs", "1"]) == 1
    assert "NoSuchEnv" in capsys.readouterr().err
