"""From options to a server that runs, and its end.

gRPC is imported while the ids of environments are looked up, and after every complaint about the options.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Callable

from envserver.env_ids import EnvIdCheck
from envserver.options import Options, config_from
from envserver.server_log import log_to_stderr


def run(options: Options) -> int:
    """Serves until it is told to stop; the exit status. Raises ConfigError."""
    config = config_from(options)
    log_to_stderr(logging.DEBUG if options.verbose else logging.INFO)
    # A program that starts a server as its child gets the same complaints from its first Open, and a faster start.
    ids = None if config.embedded else EnvIdCheck(config.registry)
    schedule_for_throughput()
    if options.core is not None and sys.platform == "linux":
        os.sched_setaffinity(0, {options.core})
    # The server imports NumPy to read specs. It multiplies no matrices, and OpenBLAS's threads spin while they wait for
    # some (test_the_server_has_no_threads_for_matrices).
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

    from envserver.server import serve

    if ids is not None:
        ids.finish()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(serve(config))


def schedule_for_throughput() -> None:
    """Waking up preempts nobody, in this process and in the lanes, which inherit it: the relay and a lane take turns
    anyway, and each switch between them costs more than it gives. docs/benchmarks.md has the figures. A policy that the
    owner chose stays (test_a_policy_that_the_owner_chose_stays), and where none may be chosen the server starts too."""
    if sys.platform == "linux" and os.sched_getscheduler(0) == os.SCHED_OTHER:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, where it is installed and not switched off."""
    if os.environ.get("ASYNCRL_UVLOOP") == "0":
        return None
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
