"""Pictures of runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl.errors import ConfigError
from asyncrl.run.plots import plot_runs
from asyncrl.run.run_dir import RunDir
from tests.unit.run.run_making import make_run

PNG = b"\x89PNG\r\n\x1a\n"


def test_runs_are_drawn(tmp_path: Path) -> None:
    """One, several seeds, several settings, and one that has hardly begun."""
    pytest.importorskip("matplotlib")
    seeds = [make_run(tmp_path / f"seed{seed}", seed=seed, scale=seed) for seed in (1, 2)]
    other = make_run(tmp_path / "other", gamma=0.9, num_steps=10)
    for runs in ([seeds[0]], seeds, [*seeds, other]):
        path = tmp_path / "plot.png"
        plot_runs(runs, path)
        assert path.read_bytes().startswith(PNG)
        path.unlink()


def test_lags_are_bars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares of all steps of both seeds, one bar a lag; a run in which no lag was counted has no such picture."""
    pytest.importorskip("matplotlib")
    from matplotlib.axes import Axes

    drawn: list[tuple[list[int], list[float]]] = []
    monkeypatch.setattr(Axes, "bar", lambda self, x, height, **style: drawn.append((x, height)))
    seeds = [make_run(tmp_path / f"seed{seed}", seed=seed, num_steps=40) for seed in (1, 2)]
    plot_runs(seeds, tmp_path / "plot.png")
    assert drawn == [([0, 1, 2], [60 / 80, 10 / 80, 10 / 80])]
    plot_runs([make_run(tmp_path / "short", num_steps=10)], tmp_path / "plot.png")
    assert len(drawn) == 1


def test_evaluations_alone_are_drawn(tmp_path: Path) -> None:
    """No episode ended and no round was recorded; where there is not even an evaluation, that is said."""
    pytest.importorskip("matplotlib")
    run = RunDir(tmp_path)
    run.write_config({"env_id": "x", "algorithm": "ppo"})
    run.metrics.write_text('{"step": 5, "eval/episodic_return": 1.5}\n{"step": 9, "eval/episodic_return": 2}\n')
    plot_runs([run], run.plot)
    assert run.plot.read_bytes().startswith(PNG)
    run.plot.unlink()
    run.metrics.write_text('{"step": 5, "time/wall_s": 1.5}\n')
    with pytest.raises(ConfigError, match="nothing is recorded yet"):
        plot_runs([run], run.plot)


def test_nothing_to_draw_is_said(tmp_path: Path) -> None:
    """A run that has recorded nothing, and no picture of it."""
    pytest.importorskip("matplotlib")
    with pytest.raises(ConfigError, match="nothing is recorded yet"):
        plot_runs([RunDir(tmp_path)], tmp_path / "plot.png")
    assert list(tmp_path.iterdir()) == []


def test_drawing_leaves_no_state(tmp_path: Path) -> None:
    """pyplot, which keeps figures and asks for a display, is not imported; nor is torch."""
    pytest.importorskip("matplotlib")
    make_run(tmp_path / "x")
    code = """
import sys
from pathlib import Path
from asyncrl.run.plots import plot_runs
from asyncrl.run.run_dir import RunDir
path = Path(sys.argv[1])
plot_runs([RunDir(path)], path / "plot.png")
print(sorted({"matplotlib.pyplot", "torch", "tensorboard"} & set(sys.modules)))
"""
    command = [sys.executable, "-c", code, str(tmp_path / "x")]
    finished = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True)
    assert (finished.stdout, finished.stderr) == ("[]\n", "")


def test_without_matplotlib_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is read."""
    for name in ("matplotlib", "matplotlib.figure", "matplotlib.backends", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=r"pip install 'asyncrl\[plot\]'"):
        plot_runs([RunDir(tmp_path)], tmp_path / "plot.png")
