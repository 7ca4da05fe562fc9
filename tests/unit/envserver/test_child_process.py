"""How processes of the env server are started, and how their end is called."""

from __future__ import annotations

import os
import sys

import pytest

from envserver.child_process import cause_of, child_environment
from envserver.launching import NurseryLauncher
from tests.unit.envserver.watching import environment
from tests.unit.envserver.wild_env import (
    registry,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


async def test_tokens_are_scrubbed(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the environment of the nursery and of what it forks: variables by prefix, and those that are named."""
    monkeypatch.setenv("ASYNCRL_TOKEN_FILE", "/run/token")
    monkeypatch.setenv("ASYNCRL_TOKEN", "s3cret")
    monkeypatch.setenv("MY_PASSWORD", "s3cret")
    monkeypatch.setenv("KEPT", "yes")
    launcher = NurseryLauncher(registry(), secrets=["MY_PASSWORD"])
    try:
        handle = await launcher.start()
        for pid in (handle.pid, launcher.nursery_pid):
            assert pid is not None
            variables = environment(pid)
            assert not any("TOKEN" in name or "PASSWORD" in name for name in variables)
            assert (variables["KEPT"], variables["OMP_NUM_THREADS"]) == ("yes", os.environ.get("OMP_NUM_THREADS", "1"))
    finally:
        await launcher.close()


def test_an_owners_number_of_threads_is_kept() -> None:
    """One thread is the default, not a rule."""
    made = child_environment([], {"OMP_NUM_THREADS": "4", "asyncrl_token": "x"})
    assert made["OMP_NUM_THREADS"] == "4"
    assert made["MKL_NUM_THREADS"] == "1"
    assert "asyncrl_token" not in made


@pytest.mark.parametrize(
    ("code", "cause"),
    [(0, "exit(0)"), (3, "exit(3)"), (-9, "crash(SIGKILL)"), (-11, "crash(SIGSEGV)"), (-63, "crash(63)")],
)
def test_causes(code: int, cause: str) -> None:
    """Signals by their name where they have one."""
    assert cause_of(code) == cause
