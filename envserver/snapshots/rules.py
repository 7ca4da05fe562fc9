"""What the owner of a server says about the snapshots of an alias. Plain data: every process of the server reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from asyncrl.errors import ConfigError

MODES: Final = ("auto", "native", "key_state", "replay")
MODEL: Final = "model:"


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


def check_mode(mode: str, aliases: list[str]) -> None:
    """ConfigError for a mode that there is not."""
    if mode in MODES:
        return
    model = mode.removeprefix(MODEL)
    if not mode.startswith(MODEL) or model not in aliases:
        raise ConfigError(
            f"--snapshots {mode}: choose {', '.join(MODES)} or model:ALIAS with an ALIAS of {', '.join(aliases)}"
        )
