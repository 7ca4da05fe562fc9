"""The directory of one run: what is where in it, and the lock that keeps two processes from training in one.

* `runs/{env_id}__{exp_name}__{seed}__{unix_time}`, a slash in an environment's name as `_`
  (test_a_directory_is_named_after_the_run).
* One process at a time, for as long as it lives: the lock goes with the process, however that ends
  (test_two_processes_cannot_train_in_one_directory).
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from asyncrl.errors import ConfigError, RunBusy
from asyncrl.run.files import replace_file
from asyncrl.run.recorders import wall_s

LOCK: Final = "lock"
TRIES: Final = 10  # times 20 ms


@dataclass(frozen=True)
class RunDir:
    """Paths of one run. Nothing is made by looking."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def config(self) -> Path:
        return self.path / "config.json"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def monitor(self) -> Path:
        return self.path / "monitor.csv"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def result(self) -> Path:
        return self.path / "result.json"

    @property
    def plot(self) -> Path:
        return self.path / "plot.png"

    @property
    def video(self) -> Path:
        return self.path / "video"

    def write_config(self, config: Mapping[str, Any]) -> None:
        """The settings as they were resolved. Blocks."""
        replace_file(self.config, (json.dumps(config, indent=1) + "\n").encode())

    def read_config(self) -> dict[str, Any]:
        """{} where there is none that can be read."""
        try:
            config = json.loads(self.config.read_bytes())
        except (OSError, ValueError):
            return {}
        return config if isinstance(config, dict) else {}

    def lock(self) -> RunLock:
        """RunBusy: a living process holds it."""
        return RunLock(self.path)

    def is_locked(self) -> bool:
        """Whether a living process trains here. On Windows a look is a try."""
        try:
            with RunLock(self.path, make=False):
                return False
        except RunBusy:
            return True
        except OSError:
            return False


class RunLock:
    """Held from construction to `close`, or to the end of the process."""

    def __init__(self, path: Path, *, make: bool = True) -> None:
        flags = (os.O_RDWR | os.O_CREAT) if make else os.O_RDONLY
        self._descriptor = os.open(path / LOCK, flags, 0o666)
        try:
            _lock(self._descriptor, path, exclusive=make)
            if make:
                os.ftruncate(self._descriptor, 0)
                os.write(self._descriptor, f"{os.getpid()}\n".encode())
        except BaseException:
            os.close(self._descriptor)
            raise

    def close(self) -> None:
        """Idempotent. The file stays: removing it would let two hold locks on two files of one name."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def make_run_dir(parent: Path, env_id: str, exp_name: str, seed: int, name: str = "") -> RunDir:
    """A new directory. ConfigError: there is one of this name, or it cannot be made."""
    path = parent / (name or f"{_plain(env_id)}__{_plain(exp_name)}__{seed}__{int(wall_s())}")
    try:
        parent.mkdir(parents=True, exist_ok=True)
        path = path if name else _free(path)
        path.mkdir()
    except FileExistsError:
        raise ConfigError(f"{path} exists: resume it with --resume {path}, or choose another --run-name") from None
    except OSError as error:
        raise ConfigError(f"no run directory at {path}: {error.strerror or error}; choose another --run-dir") from None
    return RunDir(path)


def run_dirs(parent: Path) -> list[RunDir]:
    """Every run under `parent`, or `parent` itself if it is one; the newest last."""
    if (parent / "config.json").exists():
        return [RunDir(parent)]
    found = [path.parent for path in parent.glob("*/config.json")]
    return [RunDir(path) for path in sorted(found, key=lambda path: (_made_at(path), path.name))]


def _free(path: Path) -> Path:
    """Runs that begin in the same second go to later seconds' names."""
    while path.exists():
        head, _, seconds = path.name.rpartition("__")
        path = path.with_name(f"{head}__{int(seconds) + 1}")
    return path


def _plain(name: str) -> str:
    return re.sub(r"[^\w.+=-]", "_", name)


def _made_at(path: Path) -> float:
    """The time in the directory's name, or that of its configuration."""
    seconds = path.name.rpartition("__")[2]
    return float(seconds) if seconds.isdigit() else (path / "config.json").stat().st_mtime


def _lock(descriptor: int, path: Path, *, exclusive: bool) -> None:
    """A trainer tries for a moment: whoever only looks holds a shared lock, briefly."""
    for last in (*[False] * (TRIES if exclusive else 0), True):
        try:
            _try_lock(descriptor, exclusive=exclusive)
            return
        except OSError:
            if last:
                raise RunBusy(f"{_holder(path)} trains in {path}: stop it, or start another run") from None
        time.sleep(0.02)


def _holder(path: Path) -> str:
    try:
        return f"process {int((path / LOCK).read_text())}"
    except (OSError, ValueError):  # Windows lets nobody read what is locked
        return "another process"


def _try_lock(descriptor: int, *, exclusive: bool) -> None:
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
