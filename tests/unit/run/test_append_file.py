"""Files that grow: whole records, patience with the disk, and cutting back."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from asyncrl.run import append_file
from asyncrl.run.append_file import AppendFile, keep_lines


class Disk:
    """os.write with `room` bytes left."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room = 1 << 30
        self._write = os.write
        monkeypatch.setattr(os, "write", self.write)

    def write(self, descriptor: int, data: memoryview) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = self._write(descriptor, data[: self.room])
        self.room -= taken
        return taken


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def test_what_was_half_written_is_taken_back(tmp_path: Path, disk: Disk) -> None:
    """The disk is full in the middle of a record: the file ends with the record before."""
    reports: list[str] = []
    file = AppendFile(tmp_path / "x", reports.append)
    file.write(b"first\n")
    file.flush()
    disk.room = 3
    file.write(b"second\n")
    file.flush()
    assert (tmp_path / "x").read_bytes() == b"first\n"


def test_records_wait_for_the_disk(tmp_path: Path, disk: Disk) -> None:
    """One report of trouble, one of its end, and every record in order."""
    reports: list[str] = []
    file = AppendFile(tmp_path / "x", reports.append)
    disk.room = 2
    for number in range(5):
        file.write(f"{number}\n".encode())
        file.flush()
    assert len(reports) == 1
    assert "No space left" in reports[0]
    disk.room = 1 << 20
    file.write(b"5\n")
    file.close()
    assert (tmp_path / "x").read_text().split() == list("012345")
    assert len(reports) == 2


def test_waiting_records_are_bounded(tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest are given up, and the second report says how many."""
    monkeypatch.setattr(append_file, "LIMIT", 3)
    reports: list[str] = []
    file = AppendFile(tmp_path / "x", reports.append)
    disk.room = 0
    for number in range(5):
        file.write(f"{number}\n".encode())
        file.flush()
    disk.room = 1 << 20
    file.flush()
    file.close()
    assert (tmp_path / "x").read_text().split() == ["2", "3", "4"]
    assert "2 records are lost" in reports[1]


def test_a_vanished_file_is_trouble(tmp_path: Path) -> None:
    """Writing to a file that nobody can see is not writing."""
    reports: list[str] = []
    file = AppendFile(tmp_path / "x", reports.append)
    (tmp_path / "x").unlink()
    file.write(b"1\n")
    file.flush()
    assert "vanished" in reports[0]
    file.close()
    file.close()


def test_a_resumed_file_ends_at_the_step(tmp_path: Path) -> None:
    """Lines past it, lines that are none and a line cut short go; the rest stays as it was."""
    path = tmp_path / "x"
    path.write_bytes(b"1\n2\nnoise\n5\n3\n\xff\n4")
    assert keep_lines(path, lambda line: int(line) <= 4) == ["1\n", "2\n", "3\n"]
    assert path.read_bytes() == b"1\n2\n3\n"
