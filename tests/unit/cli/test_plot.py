"""asyncrl plot: where the picture goes, and what is no run."""

from __future__ import annotations

from pathlib import Path

import pytest

from asyncrl import cli
from tests.unit.run.run_making import make_run


def test_one_run_has_its_picture_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several have theirs here, or where one says."""
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    run = make_run(tmp_path / "runs" / "one")
    make_run(tmp_path / "runs" / "two", seed=2)
    assert cli.main(["plot", str(run.path)]) == 0
    assert cli.main(["plot", "runs"]) == 0
    assert cli.main(["plot", "runs/one", "runs/two", "--out", "x.png"]) == 0
    assert capsys.readouterr().out.split() == [str(run.plot), "plot.png", "x.png"]
    assert all(path.stat().st_size > 1000 for path in (run.plot, tmp_path / "plot.png", tmp_path / "x.png"))


@pytest.mark.parametrize("arguments", [[], ["nothing"], ["run", "--out", "nowhere/x.png"]])
def test_mistakes_have_an_answer(
    tmp_path: Path, arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No run, no such run, no such place: one line and status 2."""
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "run")
    assert cli.main(["plot", *arguments]) == 2
    assert capsys.readouterr().err.count("\n") == 1
