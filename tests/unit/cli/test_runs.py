"""asyncrl runs: a table, wide or narrow."""

from __future__ import annotations

from pathlib import Path

import pytest

from asyncrl import cli
from asyncrl.cli.runs import age
from tests.unit.run.run_making import make_run


@pytest.mark.parametrize(("columns", "has_env"), [("160", True), ("80", False)])
def test_runs_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str, has_env: bool
) -> None:
    """A row each with its whole name; what the name says already is left out where there is no room."""
    monkeypatch.setenv("COLUMNS", columns)
    for seed in (1, 2):
        make_run(tmp_path / f"CartPole-v1__ppo__{seed}__179501580{seed}", seed=seed)
    assert cli.main(["runs", str(tmp_path)]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert ("env" in head.split()) is has_env
    assert [row.split()[0] for row in rows] == ["CartPole-v1__ppo__1__1795015801", "CartPole-v1__ppo__2__1795015802"]
    assert all("5.50" in row and "unfinished" in row for row in rows)


def test_no_runs_are_no_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A directory that is empty or not there."""
    assert cli.main(["runs", str(tmp_path / "none")]) == 0
    assert "no runs in" in capsys.readouterr().out


def test_ages_are_short() -> None:
    """In the largest unit."""
    assert [age(seconds) for seconds in (0.4, 59, 61, 7200, 200_000)] == ["0 s", "59 s", "1 min", "2 h", "2 d"]
