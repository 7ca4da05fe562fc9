"""What the owner says about snapshots."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from asyncrl.errors import ConfigError
from envserver.registry import EnvAlias, Registry
from envserver.snapshots.rules import SnapshotRules, modes_from, read_key

ALIASES = ["a", "b", "light"]


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ([], ["auto", "auto", "auto"]),
        (["replay"], ["replay"] * 3),
        (["b=native"], ["auto", "native", "auto"]),
        (["key_state", "a=model:light", "light=auto"], ["model:light", "key_state", "auto"]),
    ],
)
def test_modes_by_alias(options: list[str], wanted: list[str]) -> None:
    """One for all, and others for some."""
    assert list(modes_from(options, ALIASES).values()) == wanted


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["pickle"], "choose auto, native"),
        (["c=auto"], "none of a, b, light"),
        (["model:c"], "model:ALIAS with an ALIAS of a, b, light"),
        (["a=model:a"], "no model of itself"),
        (["native", "auto"], "another mode for all"),
    ],
)
def test_impossible_modes_are_refused(options: list[str], says: str) -> None:
    """The text says what there is."""
    with pytest.raises(ConfigError, match=says):
        modes_from(options, ALIASES)


def test_rules_travel_to_lanes() -> None:
    """As JSON, with the aliases; the key is in no text for people."""
    rules = SnapshotRules("model:light", 1000, 10, bytes(range(32)))
    registry = Registry([EnvAlias("a", env_id="CartPole-v1", snapshots=rules)])
    (there,) = Registry.from_json(json.loads(json.dumps(registry.to_json())))
    assert there.snapshots == rules
    assert rules.model == "light"
    assert SnapshotRules().model == ""
    assert "key" not in repr(rules)


def test_weak_keys_are_refused(tmp_path: Path) -> None:
    """Too short, readable by others, or not there; two files of the same bytes are the same key."""
    key = tmp_path / "snapshot.key"
    with pytest.raises(ConfigError, match="cannot read"):
        read_key(str(key))
    key.write_bytes(b"x" * 31)
    key.chmod(0o600)
    with pytest.raises(ConfigError, match="31 bytes"):
        read_key(str(key))
    key.write_bytes(b"x" * 32)
    found = read_key(str(key))
    assert len(found) == 32
    assert b"x" * 8 not in found
    key.write_bytes(b"y" * 32)
    assert read_key(str(key)) != found
    if os.name == "posix":
        key.chmod(0o640)
        with pytest.raises(ConfigError, match="chmod 600"):
            read_key(str(key))
