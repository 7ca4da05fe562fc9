"""monitor.csv and metrics.jsonl: read by others, and cut back when a run resumes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from asyncrl.run.row_files import Episode, MetricsFile, MonitorFile, read_metrics, read_monitor


def unexpected(text: str) -> None:
    raise AssertionError(text)


def record(directory: Path, steps: range, resume_step: int | None = None) -> None:
    """An episode per step, and a scalar every other step."""
    monitor = MonitorFile(directory / "monitor.csv", "CartPole-v1", unexpected, resume_step)
    metrics = MetricsFile(directory / "metrics.jsonl", unexpected, resume_step)
    for step in steps:
        monitor.episode(step, step / 2, step, step / 4)
        if step % 2 == 0:
            metrics.scalars(step, {"losses/value_loss": 1 / (step + 1)})
    for file in (monitor, metrics):
        file.close()


def test_counts_are_rows_by_value(tmp_path: Path) -> None:
    """One object a row under the name, values as keys in their order; they read back."""
    metrics = MetricsFile(tmp_path / "metrics.jsonl", unexpected)
    metrics.histogram(7, "async/policy_lag", {10: 1, 0: 31})
    metrics.close()
    assert '"async/policy_lag": {"0": 31, "10": 1}}' in (tmp_path / "metrics.jsonl").read_text()
    (row,) = read_metrics(tmp_path / "metrics.jsonl")
    assert row["async/policy_lag"] == {"0": 31, "10": 1}


def test_the_monitor_is_one_of_stable_baselines(tmp_path: Path) -> None:
    """SB3's own reader finds the rewards, lengths and times, and the environment's name."""
    pytest.importorskip("pandas")
    results = pytest.importorskip("stable_baselines3.common.monitor")
    monitor = MonitorFile(tmp_path / "monitor.csv", "ALE/Pong-v5", unexpected)
    monitor.episode(100, -21.0, 100, 0.5)
    monitor.episode(250, 1.25, 150, 1.0)
    monitor.close()
    frame = results.load_results(str(tmp_path))
    assert frame["r"].tolist() == [-21.0, 1.25]
    assert frame["l"].tolist() == [100, 150]
    assert frame["t"].tolist() == [0.5, 1.0]


def test_the_first_lines_are_as_everybody_expects(tmp_path: Path) -> None:
    """A comment with t_start and env_id, then the columns, r, l and t first."""
    record(tmp_path, range(2))
    lines = (tmp_path / "monitor.csv").read_text().splitlines()
    assert lines[0].startswith('#{"t_start": ')
    assert lines[0].endswith('"env_id": "CartPole-v1"}')
    assert lines[1:] == ["r,l,t,step", "0.0,0,0.0,0", "0.5,1,0.25,1"]


def test_resumed_files_are_those_of_one_run(tmp_path: Path) -> None:
    """Killed at step 30 in the middle of a line, resumed from 20: the rows are those of an uninterrupted run."""
    for name in ("whole", "resumed"):
        (tmp_path / name).mkdir()
    record(tmp_path / "whole", range(40))
    record(tmp_path / "resumed", range(31))
    for file in ("monitor.csv", "metrics.jsonl"):
        path = tmp_path / "resumed" / file
        path.write_bytes(path.read_bytes()[:-3])
    record(tmp_path / "resumed", range(21, 40), resume_step=20)
    whole, resumed = (read_monitor(tmp_path / name / "monitor.csv") for name in ("whole", "resumed"))
    assert resumed == whole
    rows = [list(read_metrics(tmp_path / name / "metrics.jsonl")) for name in ("whole", "resumed")]
    for row in (*rows[0], *rows[1]):
        del row["time"]
    assert rows[0] == rows[1]


def test_a_resumed_monitor_has_its_episodes(tmp_path: Path) -> None:
    """Up to the step, for the means over the last hundred."""
    record(tmp_path, range(10))
    monitor = MonitorFile(tmp_path / "monitor.csv", "CartPole-v1", unexpected, 3)
    assert monitor.resumed[-1] == Episode(1.5, 3, 0.75, 3)
    assert len(monitor.resumed) == 4
    monitor.close()


def test_numbers_that_are_none_come_back(tmp_path: Path) -> None:
    """Every line is JSON that any parser takes, a loss that became NaN too."""
    metrics = MetricsFile(tmp_path / "metrics.jsonl", unexpected)
    metrics.scalars(1, {"a": math.nan, "b": -math.inf, "c": 0.5})
    metrics.event(2, "lane_lost", "lane 3: crash")
    metrics.text(3, "hyperparameters", "nan")
    metrics.close()
    assert "NaN" not in (tmp_path / "metrics.jsonl").read_text()
    first, second, third = read_metrics(tmp_path / "metrics.jsonl")
    assert math.isnan(first["a"])
    assert (first["b"], first["c"]) == (-math.inf, 0.5)
    assert (second["step"], second["event"], second["text"]) == (2, "lane_lost", "lane 3: crash")
    assert third["tag"] == "hyperparameters"


def test_files_that_are_not_there_are_empty(tmp_path: Path) -> None:
    """A run that has written nothing yet has no rows."""
    assert read_monitor(tmp_path / "monitor.csv") == []
    assert list(read_metrics(tmp_path / "metrics.jsonl")) == []
