"""`result.json`: what a run came to, in one small file."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from asyncrl.run.files import replace_file


@dataclass(frozen=True, kw_only=True)
class Result:
    """Of a run that came to its end. None: was not evaluated, is not known."""

    algorithm: str
    env_id: str
    seed: int
    env_steps: int
    wall_s: float
    sps: float
    eval_return_mean: float | None = None
    eval_return_std: float | None = None
    eval_episodes: int = 0
    commit: str | None = None
    checkpoint: str | None = None  # relative to the run's directory
    plot: str | None = None
    run: str = ""  # the name of that directory


def write_result(path: Path, result: Result, **more: Any) -> None:
    """Replaces the file at once. Blocks."""
    replace_file(path, (json.dumps({**asdict(result), **more}, indent=1) + "\n").encode())


def read_result(path: Path) -> dict[str, Any] | None:
    """None: the run has not come to its end, or the file is illegible."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def commit_of(directory: Path) -> str | None:
    """The commit of the source tree, with `+` where files differ from it. Blocks."""
    head = _git(directory, "rev-parse", "HEAD")
    if not head:
        return None
    return head + ("+" if _git(directory, "status", "--porcelain", "--untracked-files=no") else "")


def _git(directory: Path, *arguments: str) -> str:
    try:
        found = subprocess.run(
            ["git", *arguments], cwd=directory, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return found.stdout.strip()
