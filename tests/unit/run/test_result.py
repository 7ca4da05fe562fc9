"""result.json comes back, and a commit is one of git's."""

from __future__ import annotations

import subprocess
from pathlib import Path

from asyncrl.run.result import Result, commit_of, read_result, write_result

RESULT = Result(algorithm="ppo", env_id="CartPole-v1", seed=1, env_steps=500, wall_s=2.0, sps=250.0)


def test_a_result_comes_back(tmp_path: Path) -> None:
    """With more fields where the run has more to say; nothing where there is no legible file."""
    path = tmp_path / "result.json"
    assert read_result(path) is None
    write_result(path, RESULT, lost_steps=0)
    found = read_result(path)
    assert found is not None
    assert (found["env_steps"], found["eval_return_mean"], found["lost_steps"]) == (500, None, 0)
    path.write_text("{")
    assert read_result(path) is None


def test_a_commit_says_whether_files_differ_from_it(tmp_path: Path) -> None:
    """None outside of a repository, a plus after an edit."""
    assert commit_of(tmp_path / "nowhere") is None
    git = ["git", "-c", "user.name=x", "-c", "user.email=x", "-C", str(tmp_path)]
    (tmp_path / "file").write_text("a")
    for command in (["init", "-q"], ["add", "file"], ["commit", "-qm", "x"]):
        subprocess.run([*git, *command], check=True)
    commit = commit_of(tmp_path)
    assert commit is not None
    assert len(commit) == 40
    (tmp_path / "file").write_text("b")
    assert commit_of(tmp_path) == f"{commit}+"
