"""Which event loop asyncrl runs on: uvloop where it is installed, unless ASYNCRL_UVLOOP=0."""

from __future__ import annotations

import asyncio
import os


def new_event_loop() -> asyncio.AbstractEventLoop:
    """For `asyncio.Runner(loop_factory=new_event_loop)`.

    >>> with asyncio.Runner(loop_factory=new_event_loop) as runner:
    ...     runner.run(asyncio.sleep(0))
    """
    if os.environ.get("ASYNCRL_UVLOOP", "1") != "0":
        try:
            import uvloop
        except ImportError:
            pass  # Windows, or left out on purpose
        else:
            return uvloop.new_event_loop()
    return asyncio.new_event_loop()
