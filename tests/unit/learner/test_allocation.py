"""Page faults of a process that takes and frees the same blocks, counted by the kernel."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys

import pytest

from asyncrl.learner.allocation import keep_freed_memory

PROGRAM = """
import resource, sys, threading
import torch
from asyncrl.learner.allocation import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def work():
    torch.set_num_threads(1)
    x = torch.ones(int(sys.argv[2]) << 18)
    for _ in range(5):
        y = [x * i for i in range(4)]
        del y
    before = faults()
    for _ in range(5):
        y = [x * i for i in range(4)]
        del y
    print(faults() - before)

if sys.argv[1] == "keep":
    keep_freed_memory()
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
@pytest.mark.parametrize("mib", [pytest.param(4, marks=pytest.mark.slow), 28])
def test_freed_memory_is_kept(mib: int) -> None:
    """Twenty blocks in a thread fault whole by default; when they are kept, a quarter at most (seen: none to two)."""
    whole = 20 * 256 * mib
    assert faults_of("default", mib) >= whole / 2
    assert faults_of("keep", mib) <= whole / 4


def test_elsewhere_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another C library has no such settings, and is not asked."""
    monkeypatch.setattr(platform, "libc_ver", lambda: ("musl", "1.2"))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: pytest.fail("asked"))
    keep_freed_memory()


def faults_of(wish: str, mib: int) -> int:
    # glibc's own first threshold, said aloud: it then does not grow with what is freed, by which blocks might stay.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(128 * 1024)}
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM, wish, str(mib)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=55,
    )
    return int(answer.stdout)
