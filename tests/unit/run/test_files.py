"""Files that are replaced whole, and writes that the system takes in pieces."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from asyncrl.run.files import PIECE_BYTES, Files, replace_file, write_new
from tests.unit.run.failing_files import FailingFiles


def test_a_file_is_old_or_new_whatever_fails(tmp_path: Path) -> None:
    """Every call in turn; what is left over never has the file's name."""
    path = tmp_path / "x"
    outcomes = set()
    for fail_at in range(1, 8):
        path.write_bytes(b"old")
        try:
            replace_file(path, b"new", FailingFiles(fail_at, errno.EIO))
            outcomes.add("kept")
        except OSError:
            outcomes.add("raised")
        assert path.read_bytes() in (b"old", b"new")
    assert outcomes == {"kept", "raised"}
    assert [found.name for found in tmp_path.iterdir()] == ["x"]


class Hesitating(Files):
    """Takes a third of what it is given, and nothing at all at the end."""

    def __init__(self, limit: int = 1 << 60) -> None:
        self.limit = limit
        self.sizes: list[int] = []

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        self.sizes.append(len(data))
        taken = os.write(descriptor, data[: min(-(-len(data) // 3), self.limit)])
        self.limit -= taken
        return taken


def test_a_write_that_takes_a_part_goes_on(tmp_path: Path) -> None:
    """Until everything is there, in pieces of bounded size."""
    files, data = Hesitating(), os.urandom(2 * PIECE_BYTES + 7)
    write_new(files, tmp_path / "x", data)
    assert (tmp_path / "x").read_bytes() == data
    assert max(files.sizes) == PIECE_BYTES


def test_a_write_that_takes_nothing_is_an_error(tmp_path: Path) -> None:
    """Rather than a loop without end; the descriptor is closed."""
    before = len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").exists() else 0
    with pytest.raises(OSError, match="took nothing"):
        write_new(Hesitating(limit=5), tmp_path / "x", bytes(100))
    assert before == (len(list(Path("/proc/self/fd").iterdir())) if before else 0)


def test_what_an_earlier_replacement_left_is_no_obstacle(tmp_path: Path) -> None:
    """The process was killed before its rename."""
    (tmp_path / ".tmp-x").write_bytes(b"half")
    replace_file(tmp_path / "x", b"new")
    assert [(found.name, found.read_bytes()) for found in tmp_path.iterdir()] == [("x", b"new")]
