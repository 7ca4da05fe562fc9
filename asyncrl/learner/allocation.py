"""`keep_freed_memory`: what one minibatch frees on the CPU, the next one gets, without asking the kernel in between.

By default glibc gives larger blocks back at once, and a fresh one costs a page fault for each 4 KiB: a quarter of an
update on large minibatches. A thread other than the first takes its memory from an arena of 64 MiB pieces, which come
and go with a block of 30 (the first layer's input of a minibatch of frames): a sixth of an update. So all threads have
the first one's arena. Elsewhere than on glibc nothing happens.

Invariant: blocks of some MiB that are freed and taken again cause no page faults (test_freed_memory_is_kept).
"""

from __future__ import annotations

import ctypes
import platform
from typing import Final

KEPT_BYTES: Final = 256 * 1024 * 1024  # at most
LARGEST_BYTES: Final = 32 * 1024 * 1024  # of a block that is kept; glibc's own limit

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8


def keep_freed_memory() -> None:
    """Of the whole process, from now on. Threads that run already stay with the arena that they have."""
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_MMAP_THRESHOLD, LARGEST_BYTES)
    libc.mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
    libc.mallopt(_M_ARENA_MAX, 1)
