"""Windows: a lane process by exec, and the job object that ends it together with whatever it started.

It has not been exercised on Windows. A job object is closed by the system when its owner dies, in whatever
way, and the limit set here makes that kill the job's processes.
"""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Final

from envserver.child_process import child_environment

_KILL_ON_JOB_CLOSE: Final = 0x2000
_EXTENDED_LIMIT_INFORMATION: Final = 9


class _BasicLimits(ctypes.Structure):
    _fields_ = (
        ("per_process_user_time_limit", ctypes.c_int64),
        ("per_job_user_time_limit", ctypes.c_int64),
        ("limit_flags", ctypes.c_uint32),
        ("minimum_working_set_size", ctypes.c_size_t),
        ("maximum_working_set_size", ctypes.c_size_t),
        ("active_process_limit", ctypes.c_uint32),
        ("affinity", ctypes.c_size_t),
        ("priority_class", ctypes.c_uint32),
        ("scheduling_class", ctypes.c_uint32),
    )


class _ExtendedLimits(ctypes.Structure):
    _fields_ = (
        ("basic", _BasicLimits),
        ("io_counters", ctypes.c_uint64 * 6),
        ("process_memory_limit", ctypes.c_size_t),
        ("job_memory_limit", ctypes.c_size_t),
        ("peak_process_memory_used", ctypes.c_size_t),
        ("peak_job_memory_used", ctypes.c_size_t),
    )


class Job:
    """A job object that kills what is in it when it is closed."""

    def __init__(self) -> None:
        self._kernel: Any = ctypes.WinDLL("kernel32", use_last_error=True)  # type: ignore[attr-defined,unused-ignore]
        self._kernel.CreateJobObjectW.restype = ctypes.c_void_p
        self._handle: int | None = self._kernel.CreateJobObjectW(None, None)
        limits = _ExtendedLimits()
        limits.basic.limit_flags = _KILL_ON_JOB_CLOSE
        self._check(
            self._kernel.SetInformationJobObject(
                ctypes.c_void_p(self._handle), _EXTENDED_LIMIT_INFORMATION, ctypes.byref(limits), ctypes.sizeof(limits)
            )
        )

    def add(self, process_handle: int) -> None:
        self._check(
            self._kernel.AssignProcessToJobObject(ctypes.c_void_p(self._handle), ctypes.c_void_p(process_handle))
        )

    def terminate(self) -> None:
        if self._handle is not None:
            self._kernel.TerminateJobObject(ctypes.c_void_p(self._handle), 1)

    def close(self) -> None:
        if self._handle is not None:
            self._kernel.CloseHandle(ctypes.c_void_p(self._handle))
            self._handle = None

    def _check(self, succeeded: int) -> None:
        if not succeeded:
            raise OSError(ctypes.get_last_error(), "job object")  # type: ignore[attr-defined,unused-ignore]


def start_lane(lane: socket.socket, log_fd: int, secrets: Sequence[str]) -> tuple[subprocess.Popen[bytes], Job]:
    """The process gets its socket through standard input, because a share is made for one process id."""
    job = Job()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "envserver.exec_lane"],
            stdin=subprocess.PIPE,
            stdout=log_fd,
            stderr=log_fd,
            env=child_environment(secrets, os.environ),
        )
    except OSError:
        job.close()
        raise
    # It waits for its standard input to end, so nothing that it starts can be outside the job.
    job.add(int(process._handle))  # type: ignore[attr-defined,unused-ignore]
    assert process.stdin is not None
    with process.stdin:
        process.stdin.write(lane.share(process.pid))  # type: ignore[attr-defined,unused-ignore]
    return process, job
