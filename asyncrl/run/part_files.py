"""The parts of a checkpoint as files of its directory: written and hashed, and found as they were written.

A part of blocks is a directory: a file for each block, and an index with its key, size and SHA-256. A block that an
earlier checkpoint has under the same key is not written again: it gets one more name for the file that is there, where
the file system can do that. So a save costs what has changed; and where such a file is damaged on the disk, so are all
checkpoints that share it.

Invariants: what was written is what is read, or an error (test_blocks_come_back_as_they_were,
test_a_flipped_bit_in_a_block_is_seen); blocks that are there already are not written
(test_only_blocks_that_changed_are_written), and are written where files cannot be linked
(test_blocks_are_written_where_links_fail).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from asyncrl.run.checkpoint_parts import SUFFIXES, Blocks, Part, Plain, kind_of, read_part, write_part
from asyncrl.run.files import PIECE_BYTES, Files, write_all
from asyncrl.run.manifests import Manifest

_PART_NAME: Final = re.compile(r"(?!manifest$)[a-z0-9_]+")
_INDEX: Final = "index.json"


@dataclass(frozen=True)
class BlockEntry:
    """A block in an index."""

    key: str
    num_bytes: int
    sha256: str


Known = Mapping[str, tuple[Path, BlockEntry]]  # blocks that are on the disk, by key


class _PartFile:
    """A new file that hashes what it is given."""

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self._descriptor = files.create(path)
        self._sha256 = hashlib.sha256()
        self.num_bytes = 0

    def write(self, data: bytes | memoryview) -> int:
        write_all(self._files, self._descriptor, data)
        self._sha256.update(data)
        self.num_bytes += len(data)
        return len(data)

    def flush(self) -> None:
        """Nothing is held back."""

    def sync(self) -> None:
        self._files.sync(self._descriptor)

    def close(self) -> None:
        self._files.close(self._descriptor)

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()


def save_part(files: Files, directory: Path, name: str, part: Part, known: Known) -> dict[str, Any]:
    """What the manifest says of it. `known`: blocks of this part that earlier checkpoints have."""
    if not _PART_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a part")
    kind = kind_of(part)
    path = directory / f"{name}{SUFFIXES[kind]}"
    if isinstance(part, Blocks):
        files.make_directory(path)
        entries = [
            _save_block(files, path / str(i), part, i, known) if key else None for i, key in enumerate(part.keys)
        ]
        index = {"blocks": [None if entry is None else asdict(entry) for entry in entries]}
        file = _write(files, path / _INDEX, index)
        files.sync_directory(path)
    else:
        file = _write(files, path, part)
    return {"kind": kind, "num_bytes": file.num_bytes, "sha256": file.sha256}


def load_part(directory: Path, name: str, kind: str, num_bytes: int, sha256: str) -> Part:
    """OSError or ValueError: it is not what was written. Blocks are checked here, and kept on the disk until wanted."""
    if not _PART_NAME.fullmatch(name) or kind not in SUFFIXES:
        raise ValueError(f"{name!r} is no part that this version knows")
    path = directory / f"{name}{SUFFIXES[kind]}"
    if kind != "blocks":
        return read_part(kind, _read(path, num_bytes, sha256))
    entries = _read_index(path, num_bytes, sha256)
    for i, entry in enumerate(entries):
        if entry is not None:
            _read(path / str(i), entry.num_bytes, entry.sha256)
    keys = tuple("" if entry is None else entry.key for entry in entries)
    return Blocks(keys, lambda block: (path / str(block)).read_bytes())


def known_blocks(checkpoints: Iterable[tuple[Path, Manifest]], name: str) -> Known:
    """The blocks that these checkpoints have in the part of this name."""
    known: dict[str, tuple[Path, BlockEntry]] = {}
    for directory, manifest in checkpoints:
        found = manifest.parts.get(name, {})
        if found.get("kind") != "blocks":
            continue
        path = directory / f"{name}{SUFFIXES['blocks']}"
        with suppress(OSError, ValueError):  # a damaged one has nothing to give
            for i, entry in enumerate(_read_index(path, found["num_bytes"], found["sha256"])):
                if entry is not None:
                    known.setdefault(entry.key, (path / str(i), entry))
    return known


def _save_block(files: Files, path: Path, blocks: Blocks, number: int, known: Known) -> BlockEntry:
    key = blocks.keys[number]
    if key in known:
        there, entry = known[key]
        with suppress(OSError):  # no links here, too many of them, or it has gone: it is written
            if there.stat().st_size == entry.num_bytes:
                files.link(there, path)
                return entry
    file = _PartFile(files, path)
    try:
        file.write(blocks.read(number))
        file.sync()
    finally:
        file.close()
    return BlockEntry(key, file.num_bytes, file.sha256)


def _write(files: Files, path: Path, part: Plain) -> _PartFile:
    file = _PartFile(files, path)
    try:
        write_part(part, file)
        file.sync()
    finally:
        file.close()
    return file


def _read_index(path: Path, num_bytes: int, sha256: str) -> list[BlockEntry | None]:
    try:
        index = json.loads(_read(path / _INDEX, num_bytes, sha256))["blocks"]
        return [None if entry is None else BlockEntry(**entry) for entry in index]
    except (KeyError, TypeError):
        raise ValueError(f"{path.name} has no index") from None


def _read(path: Path, num_bytes: int, sha256: str) -> bytearray:
    """ValueError: it is not what was written."""
    if path.stat().st_size != num_bytes:
        raise ValueError(f"{path.name} has {path.stat().st_size} bytes, not {num_bytes}")
    data = bytearray(num_bytes)
    view, begin = memoryview(data), 0
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while begin < num_bytes:
            count = file.readinto(view[begin : begin + PIECE_BYTES])
            if not count:
                raise ValueError(f"{path.name} ends early")
            digest.update(view[begin : begin + count])
            begin += count
    if digest.hexdigest() != sha256:
        raise ValueError(f"{path.name} is not what was written")
    return data
