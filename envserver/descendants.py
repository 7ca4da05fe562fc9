"""What lanes start: whose a process is, and how much memory a lane has with all of it. By /proc; elsewhere nothing is
found.

A process that leaves its lane's group (`Popen(start_new_session=True)`, a daemon) is out of reach of a signal to the
group. It has the lane's marker all the same, in the environment that it was started with: exec takes it along, and
fork too, because the lane writes it in the place where /proc shows it. Only who starts a program with an environment
of their own making takes it away.

Invariants: by fork or exec, the marker is found (test_what_left_the_group_dies_with_its_lane); memory of children in
whatever session counts (test_memory_counts_what_a_process_started).
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Final

MARKER: Final = "ASYNCRL_LANE"
# Of the nursery, and of what starts while it imports the environments: these belong to no lane.
NO_LANE: Final = "0" * 10
# A lane with more processes than this is measured by the first of them: the server's event loop waits for it.
MOST_MEASURED: Final = 64

_PR_SET_CHILD_SUBREAPER: Final = 36


def adopt_orphans() -> None:
    """Those below this process become its children. Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def mark_as_lane() -> None:
    """In a process that was forked with a marker: it says that this is a lane, by its pid, in as many characters."""
    own = f"{os.getpid():0{len(NO_LANE)}}"
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    place = libc.getenv(MARKER.encode())
    if place and len(ctypes.string_at(place)) == len(own):
        ctypes.memmove(place, own.encode(), len(own))  # what /proc shows, here and in forks
    os.environ[MARKER] = own  # what programs get


def lane_of(pid: int) -> int | None:
    """The pid of the lane that a process was started by; 0 where it was none, None where nobody knows."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        value = next(each for each in variables if each.startswith(MARKER.encode() + b"="))
        return int(value.partition(b"=")[2])
    except (OSError, StopIteration, ValueError):
        return None


def children(pid: int) -> list[int]:
    """Of all its threads. One that ends meanwhile may hide others: whoever needs all of them looks again."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208  # no paths wanted; this is in the server's tick
            found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_bytes().split())
    except OSError:
        pass
    return found


def memory_of(pid: int) -> int:
    """Resident bytes of a process and all below it; pages that they share count for each of them."""
    pages, left, todo = 0, MOST_MEASURED, [pid]
    while todo and left:
        each = todo.pop(0)
        pages += _resident_pages(each)
        todo += children(each)
        left -= 1
    return pages * os.sysconf("SC_PAGE_SIZE") if pages else 0


def _resident_pages(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
