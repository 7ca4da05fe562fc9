"""Which directory a run has, and whether it goes on from a checkpoint there.

Invariants: `auto` goes on where the directory of that name has a checkpoint (test_auto_goes_on_where_there_is_one);
settings that decide what the checkpoint is of cannot change on the way (test_a_changed_model_is_refused).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from asyncrl.config import PPOConfig
from asyncrl.errors import ConfigError, NoCheckpoint
from asyncrl.run import options
from asyncrl.run.checkpoints import Checkpoint, load_newest
from asyncrl.run.run_dir import RunDir, make_run_dir

# With another of these the weights would not fit, or what they mean would change.
FIXED: Final = (
    "env_id",
    "num_envs",
    "network",
    "hidden_sizes",
    "activation",
    "share_trunk",
    "gru_size",
    "use_sde",
    "normalize_obs",
    "normalize_reward",
)


@dataclass(frozen=True)
class Session:
    """A run's directory, and where it goes on from."""

    folder: RunDir
    checkpoint: Checkpoint | None


def open_session(algorithm: str, config: PPOConfig) -> Session:
    """Makes the directory of a new run, or finds that of one that goes on. Blocks on the disk.

    Raises ConfigError where the name is taken, or the run there is of other settings.
    """
    parent = Path(config.run_dir)
    path = parent / config.run_name if config.run_name else None
    if config.resume not in ("auto", "no"):
        path = Path(config.resume)
        if not RunDir(path).config.exists():
            raise ConfigError(f"--resume {path}: there is no run in it (no config.json)")
    if path is not None and config.resume != "no" and RunDir(path).config.exists():
        return _go_on(RunDir(path), algorithm, config)
    folder = make_run_dir(parent, config.env_id, algorithm, config.seed, config.run_name)
    folder.write_config({"algorithm": algorithm, **dataclasses.asdict(config)})
    return Session(folder, None)


def saved_config(folder: RunDir) -> tuple[str, PPOConfig]:
    """Algorithm and settings of a run."""
    values = folder.read_config()
    algorithm = str(values.pop("algorithm", "ppo"))
    return algorithm, options.build(values, str(folder.config))


def _go_on(folder: RunDir, algorithm: str, config: PPOConfig) -> Session:
    was_algorithm, was = saved_config(folder)
    if was_algorithm != algorithm:
        raise ConfigError(f"{folder.path} is a run of {was_algorithm}, not of {algorithm}: choose another --run-name")
    for name in FIXED:
        if getattr(was, name) != getattr(config, name):
            raise ConfigError(
                f"{folder.path} was begun with {name} {getattr(was, name)!r}, not {getattr(config, name)!r}: "
                f"choose another --run-name, or begin anew with --resume no and another name"
            )
    folder.write_config({"algorithm": algorithm, **dataclasses.asdict(config)})
    try:
        return Session(folder, load_newest(folder.checkpoints))
    except NoCheckpoint:
        return Session(folder, None)
