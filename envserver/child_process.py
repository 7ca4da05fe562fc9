"""What all processes of an env server's own have in common: how they are started, and how their end is called.

Invariant: no token of the server reaches a child's environment (test_tokens_are_scrubbed).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Final

from envserver.descendants import MARKER, NO_LANE
from envserver.registry import Registry

# One message of the nursery's control socket.
CONTROL_BYTES: Final = 4096
SECRET_PREFIX: Final = "ASYNCRL_TOKEN"
# A lane is one of many processes on its machine: more threads in one would only disturb the others.
_ONE_THREAD: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def child_environment(secrets: Sequence[str], parent: Mapping[str, str] | None = None) -> dict[str, str]:
    """The parent's environment without tokens and the variables named in `secrets`; thread pools of size one
    unless its owner chose a size."""
    inherited = os.environ if parent is None else parent
    kept = {
        name: value
        for name, value in inherited.items()
        if not name.upper().startswith(SECRET_PREFIX) and name not in secrets
    }
    return {**dict.fromkeys(_ONE_THREAD, "1"), **kept}


def configuration(registry: Registry) -> bytes:
    """What a lane or nursery has to be told: the aliases, and where this process finds modules."""
    return json.dumps({"path": sys.path, "registry": registry.to_json()}).encode()


def start_nursery(control_fd: int, registry: Registry, secrets: Sequence[str]) -> subprocess.Popen[bytes]:
    """By exec (vfork inside): the server itself has threads and gRPC, and never forks."""
    # A file, not a pipe: a pipe could fill up, and the event loop would wait for the child to read.
    with tempfile.TemporaryFile() as told:
        told.write(configuration(registry))
        told.seek(0)
        return subprocess.Popen(
            [sys.executable, "-m", "envserver.nursery", str(control_fd)],
            stdin=told,
            stdout=2,
            pass_fds=(control_fd,),
            env={**child_environment(secrets), MARKER: NO_LANE},
            start_new_session=True,
        )


def start_lane(lane_fd: int, log_fd: int, death_fd: int, secrets: Sequence[str]) -> subprocess.Popen[bytes]:
    """A lane process by exec, on POSIX."""
    return subprocess.Popen(
        [sys.executable, "-m", "envserver.exec_lane", str(lane_fd), str(death_fd)],
        stdin=subprocess.DEVNULL,
        stdout=log_fd,
        stderr=log_fd,
        pass_fds=(lane_fd, death_fd),
        env=child_environment(secrets),
        start_new_session=True,
    )


def cause_of(exit_code: int) -> str:
    """`exit(1)`, `crash(SIGSEGV)`; from an exit code as `subprocess` has it."""
    if exit_code >= 0:
        return f"exit({exit_code})"
    try:
        return f"crash({signal.Signals(-exit_code).name})"
    except ValueError:
        return f"crash({-exit_code})"


def kill_group(pid: int) -> None:
    """SIGKILL for a lane and what it started; a lane that has not come to its setsid yet is no group."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)
