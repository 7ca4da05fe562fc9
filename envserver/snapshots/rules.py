"""What the owner of a server says about the snapshots of an alias. Plain data: every process of the server reads it.

Invariant: a key that others can read, or that can be guessed, is refused (test_weak_keys_are_refused).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from asyncrl.errors import ConfigError

MODES: Final = ("auto", "native", "key_state", "replay")
MODEL: Final = "model:"
KEY_BYTES: Final = 32


@dataclass(frozen=True)
class SnapshotRules:
    """How states are captured, how much of them is kept, and the key that signs those that leave.

    `mode`: auto, native (only by the simulator's own means), key_state, replay, or model:ALIAS. `key` is empty where
    none may leave.
    """

    mode: str = "auto"
    max_bytes: int = 512 * 1024 * 1024
    max_count: int = 65_536
    key: bytes = field(default=b"", repr=False)

    @property
    def model(self) -> str:
        """The alias of the model environment; empty where there is none."""
        return self.mode.removeprefix(MODEL) if self.mode.startswith(MODEL) else ""

    def to_json(self) -> dict[str, Any]:
        return {
            "mode": self.mode,
            "max_bytes": self.max_bytes,
            "max_count": self.max_count,
            "key": self.key.hex(),
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> SnapshotRules:
        return SnapshotRules(**{**value, "key": bytes.fromhex(value["key"])})


def modes_from(options: Sequence[str], aliases: Sequence[str]) -> dict[str, str]:
    """By alias: the mode that was given for it, else the one given for all, else auto."""
    modes: dict[str, str] = {}
    for option in options:
        name, equals, mode = option.rpartition("=")
        if equals and name not in aliases:
            raise ConfigError(f"--snapshots {option}: {name!r} is none of {', '.join(aliases)}")
        _check_mode(mode, name, aliases)
        if modes.setdefault(name, mode) != mode:
            raise ConfigError(f"--snapshots {option}: there is another mode for {name or 'all'} already")
    return {alias: modes.get(alias, modes.get("", MODES[0])) for alias in aliases}


def _check_mode(mode: str, name: str, aliases: Sequence[str]) -> None:
    if mode in MODES:
        return
    model = mode.removeprefix(MODEL)
    if not mode.startswith(MODEL) or model not in aliases:
        raise ConfigError(
            f"--snapshots {mode}: choose {', '.join(MODES)} or model:ALIAS with an ALIAS of {', '.join(aliases)}"
        )
    if model == name:
        raise ConfigError(f"--snapshots {name}={mode}: an environment is no model of itself; that is key_state")


def read_key(path: str) -> bytes:
    """What a key file says. Any random bytes will do; they are never sent anywhere."""
    try:
        data = Path(path).read_bytes()
        mode = Path(path).stat().st_mode
    except OSError as error:
        raise ConfigError(f"cannot read --snapshot-key-file {path}: {error.strerror}") from None
    if len(data) < KEY_BYTES:
        raise ConfigError(
            f"{path} has {len(data)} bytes; a key has {KEY_BYTES}: head -c {KEY_BYTES} /dev/urandom > {path}"
        )
    if os.name == "posix" and mode & 0o077:
        raise ConfigError(f"{path} can be read by others: chmod 600 {path}")
    return hashlib.sha256(b"asyncrl/snapshots" + data).digest()
