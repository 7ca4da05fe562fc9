"""A real env server as a child process, for tests."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def served(*envs: str, num_envs: int = 64) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and the address of a server with these `--env` options."""
    options = {"env": envs, "num_envs": num_envs, "listen": ["127.0.0.1:0"]}
    command = [sys.executable, "-m", "envserver.embedded", json.dumps(options)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process, json.loads(process.stdout.readline())["ready"]
        finally:
            process.stdin.close()
            process.wait(20)


@contextmanager
def serving(*envs: str, num_envs: int = 64) -> Iterator[str]:
    """The address of a server with these `--env` options."""
    with served(*envs, num_envs=num_envs) as (_, address):
        yield address
