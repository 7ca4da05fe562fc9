"""Run directories: names, contents, and one trainer at a time."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl.errors import ConfigError, RunBusy
from asyncrl.run.run_dir import RunDir, RunLock, make_run_dir, run_dirs

HOLDER = """
import sys
from pathlib import Path
from asyncrl.run.run_dir import RunDir
lock = RunDir(Path(sys.argv[1])).lock()
print("held", flush=True)
sys.stdin.read()
"""


def test_a_directory_is_named_after_the_run(tmp_path: Path) -> None:
    """Environment, experiment, seed and time; a slash becomes a line, and the next run of the second gets another."""
    runs = [make_run_dir(tmp_path / "runs", "ALE/Pong-v5", "ppo", 7) for _ in range(3)]
    assert len({run.name for run in runs}) == 3
    for run in runs:
        assert re.fullmatch(r"ALE_Pong-v5__ppo__7__\d{10}", run.name)
        assert run.path.parent == tmp_path / "runs"


def test_a_name_of_ones_own_is_taken_once(tmp_path: Path) -> None:
    """The second one is told how to resume."""
    assert make_run_dir(tmp_path, "CartPole-v1", "ppo", 1, "mine").path == tmp_path / "mine"
    with pytest.raises(ConfigError, match="--resume"):
        make_run_dir(tmp_path, "CartPole-v1", "ppo", 1, "mine")


def test_a_place_that_cannot_be_is_a_mistake(tmp_path: Path) -> None:
    """A file where the directory should be."""
    (tmp_path / "runs").write_text("")
    with pytest.raises(ConfigError):
        make_run_dir(tmp_path / "runs" / "x", "CartPole-v1", "ppo", 1)


def test_two_processes_cannot_train_in_one_directory(tmp_path: Path) -> None:
    """The second is told who holds it; the lock goes when the process is killed."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    root = Path(__file__).parents[3]
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert RunDir(tmp_path).is_locked()
        with pytest.raises(RunBusy, match=f"process {holder.pid} trains in"):
            RunDir(tmp_path).lock()
        holder.kill()
    assert not RunDir(tmp_path).is_locked()
    with RunDir(tmp_path).lock():
        assert RunDir(tmp_path).is_locked()
    assert not RunDir(tmp_path).is_locked()


def test_looking_does_not_make_anything(tmp_path: Path) -> None:
    """A run that nobody ever locked is not locked, and has no lock file after the look."""
    assert not RunDir(tmp_path).is_locked()
    assert list(tmp_path.iterdir()) == []


def test_lookers_do_not_keep_each_other_out(tmp_path: Path) -> None:
    """Two who only look share the lock, and a trainer waits a moment for them."""
    RunDir(tmp_path).lock().close()
    with RunLock(tmp_path, make=False):
        assert not RunDir(tmp_path).is_locked()
    lock = RunDir(tmp_path).lock()
    lock.close()
    lock.close()


def test_the_configuration_comes_back(tmp_path: Path) -> None:
    """As it was written; nothing where there is nothing legible."""
    run = RunDir(tmp_path)
    assert run.read_config() == {}
    run.write_config({"seed": 1, "hidden_sizes": [64, 64], "target_kl": None})
    assert run.read_config() == {"seed": 1, "hidden_sizes": [64, 64], "target_kl": None}
    run.config.write_text("[1]")
    assert run.read_config() == {}


def test_runs_are_listed_from_old_to_new(tmp_path: Path) -> None:
    """By the time in their names, other directories left out; one run's directory is that run."""
    for name in ("b__ppo__1__1000000002", "a__ppo__1__1000000003", "c__ppo__1__1000000001"):
        (tmp_path / name).mkdir()
        RunDir(tmp_path / name).write_config({})
    (tmp_path / "other").mkdir()
    assert [run.name[0] for run in run_dirs(tmp_path)] == ["c", "b", "a"]
    one = tmp_path / "b__ppo__1__1000000002"
    assert run_dirs(one) == [RunDir(one)]
