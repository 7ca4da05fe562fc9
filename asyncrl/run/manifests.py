"""What is known of a checkpoint before its parts are read, and which directories are checkpoints.

A manifest is either what was written or an error (test_a_flipped_bit_anywhere_leads_to_the_one_before).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from asyncrl.errors import CheckpointMismatch

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
LATEST: Final = "LATEST"
BEST: Final = "BEST"
_DIRECTORY: Final = re.compile(r"step_(\d+)(?:\.\d+)?")  # .2 and so on: a second one of the same step


@dataclass(frozen=True)
class Identity:
    """What a checkpoint's parameters are of."""

    algorithm: str
    env_id: str
    spec_hash: str  # hexadecimal; of the environment's spaces

    def check(self, found: Identity, where: Path) -> None:
        """CheckpointMismatch unless `found` can go on here. The environment's name may differ, its spaces may not."""
        if found.algorithm != self.algorithm:
            raise CheckpointMismatch(f"{where} is of {found.algorithm}, not of {self.algorithm}")
        if found.spec_hash != self.spec_hash:
            raise CheckpointMismatch(
                f"{where} was trained on {found.env_id} with other spaces than {self.env_id} has here "
                f"(spec {found.spec_hash[:12]}, here {self.spec_hash[:12]})"
            )


@dataclass(frozen=True)
class Manifest:
    """One checkpoint. `serial` orders those of a run: one that returned to its past has steps twice."""

    step: int
    serial: int
    identity: Identity
    info: dict[str, Any]  # JSON; whatever the run wants to find without reading parts
    parts: dict[str, dict[str, Any]]  # name -> kind, bytes, sha256

    def to_bytes(self) -> bytes:
        # Through JSON first: keys that are no strings would sort otherwise when they are read.
        record = json.loads(json.dumps({"format": FORMAT, **asdict(self)}))
        return _render({**record, "sha256": _digest_of(record)})


@dataclass(frozen=True)
class Damage:
    """A checkpoint that was passed over, and why."""

    path: Path
    why: str

    def __str__(self) -> str:
        return f"{self.path.name}: {self.why}"


def read_manifest(path: Path) -> Manifest:
    """OSError or ValueError: it cannot be read, or is not what was written. CheckpointMismatch: of a later format."""
    data = (path / MANIFEST).read_bytes()
    try:
        record = json.loads(data)
        digest = record.pop("sha256")
        whole = digest == _digest_of(record) and data == _render({**record, "sha256": digest})
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        whole = False
    if not whole:
        raise ValueError("the manifest is damaged")
    if record.pop("format") != FORMAT:
        raise CheckpointMismatch(f"{path} was written by another version; this one reads format {FORMAT}")
    try:
        return Manifest(**{**record, "identity": Identity(**record["identity"])})
    except (KeyError, TypeError):
        raise ValueError("the manifest lacks something") from None


def directories(parent: Path) -> list[Path]:
    """What is called as a checkpoint is, in no order."""
    try:
        return [path for path in parent.iterdir() if _DIRECTORY.fullmatch(path.name)]
    except OSError:
        return []


def readable(parent: Path) -> dict[Path, Manifest]:
    """The checkpoints whose manifest can be read, newest first. Their parts may be damaged all the same."""
    found: dict[Path, Manifest] = {}
    for path in directories(parent):
        with suppress(OSError, ValueError, CheckpointMismatch):
            found[path] = read_manifest(path)
    return dict(sorted(found.items(), key=lambda item: -item[1].serial))


def newest_first(parent: Path) -> tuple[list[Path], list[Damage]]:
    """Candidates to load, and those whose manifest is unreadable: nobody knows their age."""
    serials: dict[Path, int] = {}
    damaged: list[Damage] = []
    for path in sorted(directories(parent)):
        try:
            serials[path] = read_manifest(path).serial
        except CheckpointMismatch:
            serials[path] = 1 << 62  # of a later version, hence of a later day; whoever reads it says so
        except (OSError, ValueError) as error:
            damaged.append(Damage(path, str(error)))
    return sorted(serials, key=lambda path: -serials[path]), damaged


def best_of(parent: Path) -> tuple[Path, float] | None:
    """The checkpoint marked as best, and its score; None if there is no legible mark."""
    try:
        name, score = (parent / BEST).read_text(encoding="utf-8").split()
        return (parent / name, float(score)) if _DIRECTORY.fullmatch(name) else None
    except (OSError, ValueError):
        return None


def _digest_of(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(_render(record)).hexdigest()


def _render(record: Mapping[str, Any]) -> bytes:
    return (json.dumps(record, sort_keys=True, indent=1) + "\n").encode()
