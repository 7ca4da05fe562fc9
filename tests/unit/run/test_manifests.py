"""Manifests: what was written or an error; which directories are checkpoints, and in which order."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from asyncrl.errors import CheckpointMismatch
from asyncrl.run.manifests import MANIFEST, Identity, Manifest, best_of, newest_first, read_manifest, readable

IDENTITY = Identity("ppo", "CartPole-v1", "ab" * 32)


def make(path: Path, step: int, serial: int) -> Manifest:
    path.mkdir()
    part = {"kind": "json", "num_bytes": 2, "sha256": "00"}
    manifest = Manifest(step, serial, IDENTITY, {"wall_s": 1.5, "nan": [float("inf")]}, {"model": part})
    (path / MANIFEST).write_bytes(manifest.to_bytes())
    return manifest


def test_a_manifest_comes_back(tmp_path: Path) -> None:
    """Every field of it; keys that were no strings are strings."""
    manifest = make(tmp_path / "step_7", 7, 3)
    assert read_manifest(tmp_path / "step_7") == manifest
    odd = Manifest(1, 1, IDENTITY, {"rates": {10: 1, 9: 2}}, {})
    (tmp_path / "step_7" / MANIFEST).write_bytes(odd.to_bytes())
    assert read_manifest(tmp_path / "step_7").info == {"rates": {"10": 1, "9": 2}}


def test_the_manifest_is_for_people_too(tmp_path: Path) -> None:
    """Indented JSON with the step, the identity and each part's size and digest."""
    make(tmp_path / "step_7", 7, 3)
    text = (tmp_path / "step_7" / MANIFEST).read_text()
    record = json.loads(text)
    assert (record["format"], record["step"], record["identity"]["env_id"]) == (1, 7, "CartPole-v1")
    assert record["parts"]["model"]["num_bytes"] == 2
    assert text.count("\n") > 10


@pytest.mark.parametrize("harm", [0, 1, 7])
def test_any_flipped_bit_is_noticed(tmp_path: Path, harm: int) -> None:
    """In every byte, in digits and names and blanks alike."""
    make(tmp_path / "step_7", 7, 3)
    file = tmp_path / "step_7" / MANIFEST
    data = file.read_bytes()
    for position in range(len(data)):
        file.write_bytes(data[:position] + bytes([data[position] ^ (1 << harm)]) + data[position + 1 :])
        with pytest.raises(ValueError, match="damaged"):
            read_manifest(tmp_path / "step_7")


def test_newer_is_what_was_saved_later(tmp_path: Path) -> None:
    """By serial, not by step or name; what is unreadable comes with a reason, and other directories not at all."""
    for name, step, serial in (("step_9", 9, 1), ("step_10", 10, 2), ("step_5", 5, 3), ("step_5.2", 5, 4)):
        make(tmp_path / name, step, serial)
    for name in ("step_6", ".tmp-step_8", "steps", "step_7x"):
        (tmp_path / name).mkdir()
    paths, damaged = newest_first(tmp_path)
    assert [path.name for path in paths] == ["step_5.2", "step_5", "step_10", "step_9"]
    assert [path.name for path in readable(tmp_path)] == ["step_5.2", "step_5", "step_10", "step_9"]
    assert [damage.path.name for damage in damaged] == ["step_6"]
    assert newest_first(tmp_path / "none") == ([], [])


def test_a_later_format_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not readable, but it must not be passed over unseen either."""
    make(tmp_path / "step_2", 2, 9)
    monkeypatch.setattr("asyncrl.run.manifests.FORMAT", 2)
    make(tmp_path / "step_1", 1, 1)
    monkeypatch.undo()
    assert [path.name for path in newest_first(tmp_path)[0]] == ["step_1", "step_2"]
    with pytest.raises(CheckpointMismatch):
        read_manifest(tmp_path / "step_1")


@pytest.mark.parametrize("text", ["", "step_1", "../step_1 1.0", "step_1 high", "step_1 1.0 2.0"])
def test_an_illegible_mark_is_none(tmp_path: Path, text: str) -> None:
    """Neither a wrong name nor a wrong score is believed."""
    (tmp_path / "BEST").write_text(text)
    assert best_of(tmp_path) is None


def test_a_mark_has_a_name_and_a_score(tmp_path: Path) -> None:
    """To the last bit."""
    (tmp_path / "BEST").write_text(f"step_5.2 {0.1 + 0.2!r}\n")
    assert best_of(tmp_path) == (tmp_path / "step_5.2", 0.1 + 0.2)
