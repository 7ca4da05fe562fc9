"""Which directory a run has, and whether it goes on from a checkpoint there.

Nothing in a directory is changed before its lock is held, and only a directory that was made here is ever removed. Of a
run that goes on, settings and result stay as they are until `begin`: servers may still refuse it.

Invariants: `auto` goes on where the directory of that name has a checkpoint (test_auto_goes_on_where_there_is_one);
settings that decide what the checkpoint is of cannot change on the way (test_a_changed_model_is_refused), nor can the
size of an update, by which its schedules count (test_a_mode_with_other_batches_is_refused); a run whose checkpoints are
all damaged does not begin anew over them (test_damaged_checkpoints_are_not_written_over); somebody else's run is left
as it is (test_a_busy_run_is_left_alone), and so is one that does not begin
(test_a_run_that_does_not_begin_stays_as_it_is); a run that goes on has no result
(test_a_run_that_goes_on_has_no_result); each life of a run has a higher epoch than those before it, also where none of
them saved anything (test_every_life_has_a_higher_epoch).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from asyncrl.config import RunConfig
from asyncrl.errors import ConfigError
from asyncrl.run import options
from asyncrl.run.checkpoints import Checkpoint, load_newest
from asyncrl.run.files import replace_file
from asyncrl.run.manifests import directories
from asyncrl.run.progress import Progress
from asyncrl.run.run_dir import RunDir, RunLock, make_run_dir

LIVES: Final = "lives.json"


@dataclass
class Session:
    """One life of a run: its directory, locked, and where it goes on from. Close it."""

    folder: RunDir
    algorithm: str
    config: RunConfig
    checkpoint: Checkpoint | None
    progress: Progress
    is_new: bool
    _lock: RunLock = field(repr=False)

    def begin(self) -> None:
        """The run goes on: with these settings, and without the result that it had. Blocks on the disk; ConfigError."""
        with _writing(self.folder):
            _write_settings(self.folder, self.algorithm, self.config)
            self.folder.result.unlink(missing_ok=True)

    def close(self) -> None:
        """Give the lock back; a directory made for a run that never had a round is removed. Blocks on the disk."""
        self._lock.close()
        if self.is_new and not self.progress.round:
            shutil.rmtree(self.folder.path, ignore_errors=True)


def open_session(algorithm: str, config: RunConfig) -> Session:
    """Makes the directory of a new run, or finds that of one that goes on. Blocks on the disk.

    Raises ConfigError where the name is taken, or the run there is of other settings; RunBusy where somebody trains in
    it; NoCheckpoint where none of its checkpoints is whole. Then nothing was changed.
    """
    parent = Path(config.run_dir)
    path = parent / config.run_name if config.run_name else None
    if config.resume not in ("auto", "no"):
        path = run_to_resume(config.resume).path
    if path is not None and config.resume != "no" and RunDir(path).config.exists():
        return _opened(RunDir(path), algorithm, config, is_new=False)
    folder = make_run_dir(parent, config.env_id, algorithm, config.seed, config.run_name)
    return _opened(folder, algorithm, config, is_new=True)


def run_to_resume(path: str) -> RunDir:
    """What `--resume PATH` means."""
    folder = RunDir(Path(path))
    if not folder.config.exists():
        raise ConfigError(
            f"--resume {path}: there is no run in it (no config.json); `asyncrl runs` lists those there are"
        )
    return folder


def saved_config(folder: RunDir) -> tuple[str, RunConfig]:
    """Algorithm and settings of a run."""
    values = folder.read_config()
    if "env_id" not in values:
        raise ConfigError(f"{folder.config} cannot be read as the settings of a run")
    algorithm = str(values.pop("algorithm", "ppo"))
    return algorithm, options.build(algorithm, values, str(folder.config))


def _opened(folder: RunDir, algorithm: str, config: RunConfig, *, is_new: bool) -> Session:
    lock = folder.lock()
    try:
        checkpoint = None
        if not is_new:
            check_settings(folder, algorithm, config)
            checkpoint = newest(folder)
        progress = Progress() if checkpoint is None else Progress.of(checkpoint.parts)
        with _writing(folder):
            if is_new:  # what makes the directory that of a run
                _write_settings(folder, algorithm, config)
            _begin_life(folder, progress)
    except BaseException:
        lock.close()
        if is_new:
            shutil.rmtree(folder.path, ignore_errors=True)
        raise
    return Session(folder, algorithm, config, checkpoint, progress, is_new, lock)


def _write_settings(folder: RunDir, algorithm: str, config: RunConfig) -> None:
    folder.write_config({"algorithm": algorithm, **dataclasses.asdict(config), "resume": "auto"})


@contextlib.contextmanager
def _writing(folder: RunDir) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{folder.path} cannot be written: {error.strerror or error}") from None


def check_settings(folder: RunDir, algorithm: str, config: RunConfig) -> None:
    """ConfigError unless the run in `folder` can go on with these."""
    was_algorithm, was = saved_config(folder)
    if was_algorithm != algorithm:
        raise ConfigError(f"{folder.path} is a run of {was_algorithm}, not of {algorithm}: choose another --run-name")
    for name in config.FIXED:
        if getattr(was, name) != getattr(config, name):
            raise ConfigError(
                f"{folder.path} was begun with {name} {getattr(was, name)!r}, not {getattr(config, name)!r}: "
                f"leave it as it was, or choose another --run-name"
            )
    if was.batch_size != config.batch_size:  # with batch_steps it depends on the mode
        raise ConfigError(
            f"{folder.path} was begun with mode {was.mode!r}, whose updates are of {was.batch_size} steps, and not of "
            f"{config.batch_size} as in {config.mode!r}: leave it as it was, or choose another --run-name"
        )


def newest(folder: RunDir) -> Checkpoint | None:
    """Where the run goes on; None if it never saved anything. NoCheckpoint: nothing that it saved is whole."""
    return load_newest(folder.checkpoints) if directories(folder.checkpoints) else None


def _begin_life(folder: RunDir, progress: Progress) -> None:
    """Env servers know a run by its id and let the highest epoch have its lanes: those of a life that was killed are
    free for the next one at once, whether it left a checkpoint or not."""
    path = folder.path / LIVES
    known = _read(path)
    if isinstance(known.get("run_id"), str):
        progress.run_id = known["run_id"]
    if isinstance(known.get("learner_epoch"), int):
        progress.learner_epoch = max(progress.learner_epoch, known["learner_epoch"])
    # The run counts one more with each fleet that it opens.
    record = {"run_id": progress.run_id, "learner_epoch": progress.learner_epoch + 1}
    replace_file(path, json.dumps(record).encode())


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
