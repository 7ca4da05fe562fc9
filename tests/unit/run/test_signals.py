"""Stop signals, sent to this process and to others."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading

import pytest

from asyncrl.client.loop_factory import new_event_loop
from asyncrl.run.signals import STOP_SIGNALS, StopSignals

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="sends POSIX signals")


def child(body: str, grace_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    """A process whose `s` is a StopSignals that prints; `body` sends signals with `kill()`."""
    code = f"""
import os, signal, time
from asyncrl.run.signals import StopSignals
def kill(number=signal.SIGTERM):
    os.kill(os.getpid(), number)
with StopSignals(lambda text: print(text, flush=True), lambda: print("cursor", flush=True), {grace_s}) as s:
{body}
print("whole")
"""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("number", STOP_SIGNALS)
@pytest.mark.parametrize("factory", [new_event_loop, asyncio.new_event_loop])
def test_the_first_signal_is_told(number: signal.Signals, factory: object) -> None:
    """On uvloop and on asyncio's own loop, while that waits for something else."""
    heard: list[str] = []

    async def wait() -> None:
        over = asyncio.Event()
        with signals.heard_by(over.set):
            asyncio.get_running_loop().call_later(0.02, os.kill, os.getpid(), number)
            async with asyncio.timeout(20):
                await over.wait()

    with StopSignals(heard.append) as signals:
        before = signals.caught
        with asyncio.Runner(loop_factory=factory) as runner:  # type: ignore[arg-type]
            runner.run(wait())
        assert [before, signals.caught] == [False, True]
    assert len(heard) == 1
    assert heard[0].startswith(f"{number.name}: stops")


def test_a_signal_before_the_listener_is_kept() -> None:
    """It is told as soon as somebody listens, and not again to the next."""
    told: list[int] = []
    with StopSignals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        with signals.heard_by(lambda: told.append(1)):
            assert told == [1]


def test_a_signal_that_cannot_be_told_is_heard() -> None:
    """Its terminal or pipe is gone: whoever listens is called, and nothing is raised where the process is just now."""
    told: list[int] = []
    for gone in (BrokenPipeError(), OSError(5, "Input/output error"), ValueError("I/O operation on closed file")):

        def say(text: str, error: Exception = gone) -> None:
            raise error

        with StopSignals(say) as signals, signals.heard_by(lambda: told.append(1)):
            os.kill(os.getpid(), signal.SIGTERM)
            assert signals.caught
    assert told == [1, 1, 1]


def test_handlers_are_given_back() -> None:
    """Those of before, whatever happened; in another thread they are never touched."""
    before = [signal.getsignal(number) for number in STOP_SIGNALS]

    def elsewhere() -> None:
        with StopSignals():
            assert [signal.getsignal(number) for number in STOP_SIGNALS] == before

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    with StopSignals():
        assert [signal.getsignal(number) for number in STOP_SIGNALS] != before
        os.kill(os.getpid(), signal.SIGINT)
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before


def test_the_second_signal_ends_at_once() -> None:
    """With the status that a shell gives it; the terminal is given back first."""
    found = child("    kill()\n    kill(signal.SIGINT)\n    print('never')")
    assert found.returncode == 128 + signal.SIGINT
    assert found.stdout.splitlines()[1:] == ["cursor"]


def test_a_run_that_does_not_end_is_cut_short() -> None:
    """Status 1, and a line that says why; also where the terminal hangs."""
    found = child("    kill()\n    time.sleep(60)", 0.2)
    assert found.returncode == 1
    assert found.stdout.splitlines()[1] == "cursor"
    assert "cut short" in found.stdout.splitlines()[2]
    assert child("    kill()\n    s._at_once = lambda: time.sleep(60)\n    time.sleep(60)", 0.2).returncode == 1


def test_a_run_that_ends_in_time_is_whole() -> None:
    """The timer is gone with the context."""
    found = child("    kill()\n    time.sleep(0.05)", 1.0)
    assert (found.returncode, found.stdout.splitlines()[-1]) == (0, "whole")
