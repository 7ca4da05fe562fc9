"""From a configuration to a result on the disk."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import asyncrl.run
from asyncrl.client.fleet import Fleet
from asyncrl.errors import CheckpointMismatch, ConfigError, ConnectionFailed, RunBusy
from asyncrl.policy import Policy
from asyncrl.run import examining, running
from asyncrl.run.checkpoints import load_newest
from asyncrl.run.evaluation import Evaluation, evaluate
from asyncrl.run.result import Result, read_result
from asyncrl.run.row_files import read_metrics
from asyncrl.run.run_dir import RunDir
from asyncrl.run.running import Ran, run_to_the_end
from tests.rpc.serving import serving
from tests.unit.run.tiny_training import tiny_config

pytestmark = [pytest.mark.rpc, pytest.mark.timeout(90)]


def ran(tmp_path: Path, said: list[str] | None = None, **changed: Any) -> Ran:
    config = tiny_config(tmp_path, "ppo", **({"run_name": "x", "total_timesteps": 96} | changed))
    heard = [] if said is None else said
    return run_to_the_end("ppo", config, say=heard.append)


def steps_of(folder: Path) -> list[int]:
    return [row["step"] for row in read_metrics(RunDir(folder).metrics) if "losses/policy_loss" in row]


def test_train_returns_the_result(tmp_path: Path) -> None:
    """As the file has it; from a thread too, where nobody catches signals."""
    config = tiny_config(tmp_path, total_timesteps=96)
    found: list[Result] = []
    thread = threading.Thread(target=lambda: found.append(asyncrl.run.train(config)))
    thread.start()
    thread.join(60)
    (result,) = found
    written = read_result(tmp_path / result.run / "result.json")
    assert written == dataclasses.asdict(result)
    assert (result.env_steps, result.eval_episodes) == (96, 2)
    assert load_newest(tmp_path / result.run / "checkpoints").step == 96


def test_train_is_imported_when_it_is_asked_for() -> None:
    """`asyncrl.run` alone pulls in no torch; a wrong name is an AttributeError."""
    code = "import sys, asyncrl.run as r; assert 'torch' not in sys.modules; r.train; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        asyncrl.run.trian  # noqa: B018


def test_a_run_at_its_end_stays_as_it_is(tmp_path: Path) -> None:
    """Its result comes back, with a line that says what to pass; with more steps it goes on, its curves too."""
    said: list[str] = []
    first = ran(tmp_path)
    files = {file: file.stat().st_mtime_ns for file in first.folder.glob("checkpoints/**/*")}
    assert ran(tmp_path, said).result == first.result
    assert "pass a larger --total-timesteps" in said[0]
    assert {file: file.stat().st_mtime_ns for file in first.folder.glob("checkpoints/**/*")} == files
    more = ran(tmp_path, said, total_timesteps=192)
    assert more.result.env_steps == 192
    assert any("resumes" in text and "at step 96" in text for text in said)
    assert steps_of(more.folder) == list(range(32, 193, 32))


def test_a_run_killed_before_its_result_gets_it(tmp_path: Path) -> None:
    """All rounds are there, the result is not: it is evaluated again."""
    first = ran(tmp_path)
    RunDir(first.folder).result.unlink()
    again = ran(tmp_path)
    assert again.result.eval_return_mean == first.result.eval_return_mean
    assert steps_of(again.folder) == [32, 64, 96]


def test_a_last_evaluation_that_was_cut_short_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither an older evaluation nor a shorter one of the same weights is the result; the next call evaluates."""

    async def fails_at_the_end(fleet: Fleet, policy: Policy, episodes: int, seed: int) -> Evaluation:
        if episodes == 2:
            raise ConnectionFailed("gone")
        return await evaluate(fleet, policy, episodes, seed)

    monkeypatch.setattr(examining, "evaluate", fails_at_the_end)
    first = ran(tmp_path, eval_every=32, eval_episodes=3)
    evaluated = [row["step"] for row in read_metrics(RunDir(first.folder).metrics) if "eval/episodes" in row]
    assert evaluated
    assert not first.finished
    assert not RunDir(first.folder).result.exists()
    assert (first.result.eval_return_mean is not None) is (96 in evaluated)
    monkeypatch.setattr(examining, "evaluate", evaluate)
    again = ran(tmp_path, eval_every=32, eval_episodes=3)
    assert again.finished
    assert again.result.eval_episodes == 2
    assert read_result(RunDir(first.folder).result) == dataclasses.asdict(again.result)


def test_trouble_at_the_end_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A picture that cannot be drawn costs no result, and a result that cannot be written is no traceback."""
    said: list[str] = []

    def broken(runs: Any, path: Path) -> None:
        raise ZeroDivisionError("no axes")

    monkeypatch.setattr(running, "plot_runs", broken)
    first = ran(tmp_path, said)
    written = read_result(RunDir(first.folder).result)
    assert written == dataclasses.asdict(first.result)
    assert first.result.plot is None
    assert any("plot.png is not drawn: ZeroDivisionError('no axes')" in text for text in said)

    def full(path: Path, result: Result) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(running, "write_result", full)
    second = ran(tmp_path, said, total_timesteps=128)
    assert second.finished
    assert second.result.env_steps == 128
    assert any("result.json cannot be written: No space left on device" in text for text in said)


def test_nobody_listening_costs_nothing(tmp_path: Path) -> None:
    """Every line that is said breaks a pipe; the run is trained, evaluated and written down."""

    def broken(text: str) -> None:
        raise BrokenPipeError

    found = run_to_the_end("ppo", tiny_config(tmp_path, run_name="x", total_timesteps=96), say=broken)
    assert found.finished
    assert load_newest(found.folder / "checkpoints").step == 96


def test_a_damaged_checkpoint_is_passed_over_and_told(tmp_path: Path) -> None:
    """The one before it goes on, and an event says why."""
    first = ran(tmp_path, total_timesteps=160, checkpoint_every=64, keep_checkpoints=9)
    newest = load_newest(first.folder / "checkpoints").path
    (newest / "learner.safetensors").write_bytes(b"not much")
    RunDir(first.folder).result.unlink()
    said: list[str] = []
    again = ran(tmp_path, said, total_timesteps=160, checkpoint_every=64, keep_checkpoints=9)
    assert again.result.env_steps == 160
    assert any("resumes" in text and "at step 160" not in text for text in said)
    events = [row for row in read_metrics(RunDir(again.folder).metrics) if row.get("event") == "checkpoint_damaged"]
    assert [newest.name in row["text"] for row in events] == [True]


def test_a_run_without_checkpoints_begins_anew(tmp_path: Path) -> None:
    """In its folder: the curves are those of the new beginning alone."""
    first = ran(tmp_path)
    RunDir(first.folder).result.unlink()
    for path in first.folder.glob("checkpoints/*"):
        path.rename(tmp_path / path.name)
    said: list[str] = []
    again = ran(tmp_path, said)
    assert "has no checkpoint: it begins anew" in said[0]
    assert steps_of(again.folder) == [32, 64, 96]


def test_nothing_is_left_of_a_run_that_could_not_begin(tmp_path: Path) -> None:
    """No server, a bad address, no such environment; an older directory of that name stays."""
    config = tiny_config(tmp_path, run_name="x")
    with pytest.raises(ConnectionFailed):
        run_to_the_end("ppo", config, "127.0.0.1:9")
    with pytest.raises(ConfigError):
        run_to_the_end("ppo", config, "no address")
    assert not list(tmp_path.iterdir())
    first = ran(tmp_path)
    with pytest.raises(ConnectionFailed):
        run_to_the_end("ppo", dataclasses.replace(config, total_timesteps=192), "127.0.0.1:9")
    assert load_newest(first.folder / "checkpoints").step == 96


def test_other_spaces_are_refused(tmp_path: Path) -> None:
    """A server that means something else by the name: the checkpoint is not taken for its parameters'."""
    first = ran(tmp_path)
    with serving("CartPole-v1=Acrobot-v1", num_envs=8) as address, pytest.raises(CheckpointMismatch):
        run_to_the_end("ppo", tiny_config(tmp_path, run_name="x"), address)
    assert load_newest(first.folder / "checkpoints").step == 96


def test_a_refused_run_stays_as_it_is(tmp_path: Path) -> None:
    """Other spaces under the name, or no room for evaluations: settings, curves and result are those of before."""
    folder = RunDir(ran(tmp_path).folder)
    files = [folder.config, folder.metrics, folder.monitor, folder.result]
    kept = [file.read_bytes() for file in files]
    wish = tiny_config(tmp_path, run_name="x", total_timesteps=192, eval_every=32, gamma=0.5)
    with serving("CartPole-v1=Acrobot-v1", num_envs=8) as address, pytest.raises(CheckpointMismatch):
        run_to_the_end("ppo", wish, address)
    with serving("CartPole-v1", num_envs=4) as address, pytest.raises(ConfigError, match="no room for evaluation"):
        run_to_the_end("ppo", wish, address)
    assert [file.read_bytes() for file in files] == kept


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    """The one that came second changes nothing."""
    first = ran(tmp_path)
    before = (first.folder / "config.json").read_bytes()
    with RunDir(first.folder).lock(), pytest.raises(RunBusy):
        ran(tmp_path, total_timesteps=192)
    assert (first.folder / "config.json").read_bytes() == before
