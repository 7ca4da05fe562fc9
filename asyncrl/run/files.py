"""The system calls by which a run keeps what must survive a crash, and the one way to replace a file whole.

A reader of a file written by `replace_file` finds the old content or the new one, never a part of either
(test_a_file_is_old_or_new_whatever_fails).
"""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path

PIECE_BYTES = 4 << 20  # what one call copies or hashes while it holds the interpreter
TEMPORARY = ".tmp-"  # begins the name of whatever is not finished: safe to delete


class Files:
    """Each method is one system call, or as near to one as the platform lets it be; tests make them fail."""

    def make_directories(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def make_directory(self, path: Path) -> None:
        path.mkdir()

    def create(self, path: Path) -> int:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        return os.write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def sync_directory(self, path: Path) -> None:
        if os.name == "nt":  # a directory cannot be opened there; NTFS keeps the order of renames in its journal
            return
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, path: Path, target: Path) -> None:
        path.rename(target)

    def replace(self, path: Path, target: Path) -> None:
        path.replace(target)

    def link(self, path: Path, target: Path) -> None:
        """`target` becomes one more name of the file."""
        target.hardlink_to(path)

    def remove_tree(self, path: Path) -> None:
        shutil.rmtree(path)

    def remove_file(self, path: Path) -> None:
        path.unlink()


FILES = Files()


def write_all(files: Files, descriptor: int, data: bytes | memoryview) -> None:
    """Writes it whole, in pieces."""
    view = memoryview(data).cast("B")
    while view:
        written = files.write(descriptor, view[:PIECE_BYTES])
        if written == 0:
            raise OSError(errno.EIO, "a write took nothing")
        view = view[written:]


def write_new(files: Files, path: Path, data: bytes) -> None:
    """A new file, on the disk when this returns."""
    descriptor = files.create(path)
    try:
        write_all(files, descriptor, data)
        files.sync(descriptor)
    finally:
        files.close(descriptor)


def replace_file(path: Path, data: bytes, files: Files = FILES) -> None:
    """Gives `path` this content at once, or leaves it as it was and raises OSError."""
    temporary = path.with_name(f"{TEMPORARY}{path.name}")
    with suppress(FileNotFoundError):
        files.remove_file(temporary)
    try:
        write_new(files, temporary, data)
        files.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            files.remove_file(temporary)
        raise
    files.sync_directory(path.parent)
