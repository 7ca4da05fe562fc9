"""Children that are scripts of a line or two."""

from __future__ import annotations

import asyncio
import sys
from collections import deque

import pytest

from asyncrl.client import child_process
from asyncrl.client.child_process import LINE_BYTES, ChildProcess

pytestmark = [pytest.mark.rpc, pytest.mark.timeout(60)]


async def started(script: str) -> tuple[ChildProcess, deque[str]]:
    log: deque[str] = deque(maxlen=3)
    return await ChildProcess.start([sys.executable, "-c", script], log), log


async def test_a_child_says_a_line_and_ends_when_it_is_asked() -> None:
    """Its first line, whatever follows; its last words, which come behind the end of its standard input."""
    script = "import sys; print('ready', flush=True); print('more', flush=True); sys.stdin.read(); sys.exit('bye')"
    child, log = await started(script)
    assert await child.first_line() == b"ready"
    await child.end()
    assert child.returncode == 1
    assert list(log) == ["bye"]


async def test_a_child_that_says_nothing_has_an_empty_line() -> None:
    """What it says on standard error is kept, the newest lines; its status is that of the process."""
    child, log = await started("import sys; [print(i, file=sys.stderr) for i in range(5)]; sys.exit(7)")
    assert await child.first_line() == b""
    assert await child.wait() == 7
    await child.end()
    assert list(log) == ["2", "3", "4"]


async def test_a_line_without_end_takes_no_more_memory_than_others() -> None:
    """Of standard error the end of it is kept; on standard output it is what was said when the child ended."""
    long = 3 * LINE_BYTES
    child, log = await started(f"import sys; print('x' * {long}, file=sys.stderr); sys.stdout.write('y' * {long})")
    assert len(await child.first_line()) <= LINE_BYTES
    await child.wait()
    await child.end()
    assert len(log) == 1
    assert len(log[0]) <= LINE_BYTES


async def test_a_child_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while; and at once, when whoever waits for it is cancelled."""
    monkeypatch.setattr(child_process, "STOP_S", 0.1)
    deaf = "import time; print('ready', flush=True); time.sleep(60)"
    child, _log = await started(deaf)
    await child.first_line()
    await child.end()
    assert child.returncode == -9
    monkeypatch.setattr(child_process, "STOP_S", 60.0)
    child, _log = await started(deaf)
    await child.first_line()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await child.end()
    assert await child.wait() == -9
