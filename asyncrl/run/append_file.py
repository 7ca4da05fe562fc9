"""Files that only grow, record by record, and survive a disk that refuses.

* A record is in the file whole or not at all, also after a write that stopped midway
  (test_what_was_half_written_is_taken_back).
* While the disk refuses, records wait here, `LIMIT` of them, and trouble is reported once
  (test_records_wait_for_the_disk, test_waiting_records_are_bounded).
* `keep_lines` leaves what a run had written up to a step, and drops a line that a kill cut short
  (test_a_resumed_file_ends_at_the_step).
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from asyncrl.run.files import replace_file

LIMIT: Final = 200_000  # records that wait for a disk


class AppendFile:
    """Blocks on the disk: for one thread off the loop. `report` hears of trouble and of its end."""

    def __init__(self, path: Path, report: Callable[[str], None]) -> None:
        self.path = path
        self.lost = 0  # records given up because too many waited
        self._report = report
        self._waiting: deque[bytes] = deque(maxlen=LIMIT)
        self._troubled = False
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        self._size = os.lseek(self._descriptor, 0, os.SEEK_END)

    def write(self, record: bytes) -> None:
        """Takes a record for the next flush."""
        if len(self._waiting) == LIMIT:
            self.lost += 1
        self._waiting.append(record)

    def flush(self) -> None:
        """Hands what waits to the system; what it does not take waits on."""
        if not self._waiting:
            return
        data = b"".join(self._waiting)
        try:
            if not self.path.exists():
                raise FileNotFoundError(f"{self.path} has vanished")
            self._write(data)
        except OSError as error:
            if not self._troubled:
                self._report(f"{self.path.name} cannot be written: {error.strerror or error}; records are held back")
            self._troubled = True
            return
        self._waiting.clear()
        if self._troubled:
            self._report(
                f"{self.path.name} is written again" + (f"; {self.lost} records are lost" if self.lost else "")
            )
        self._troubled = False

    def close(self) -> None:
        """Idempotent."""
        if self._descriptor < 0:
            return
        self.flush()
        os.close(self._descriptor)
        self._descriptor = -1

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError:
            os.ftruncate(self._descriptor, self._size)
            os.lseek(self._descriptor, self._size, os.SEEK_SET)
            raise
        self._size += len(data)


def keep_lines(path: Path, keep: Callable[[str], bool]) -> list[str]:
    """Rewrites the file with the whole lines for which `keep` is true, and gives them. ValueError in it: not kept."""
    kept: list[str] = []
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        for line in file:
            try:
                if line.endswith("\n") and keep(line):
                    kept.append(line)
            except (ValueError, LookupError, TypeError):
                continue
    replace_file(path, "".join(kept).encode())
    return kept
