"""What every test gets: the event loop that production uses, a tripwire, and no exception that nobody heard of.

* Loop: uvloop, or asyncio's own with ASYNCRL_UVLOOP=0.
* Tests marked rpc, chaos or sim run with the pickle tripwire armed, here and in every process they start.
* An error that asyncio only logs (a task whose exception nobody took, a callback that raised) fails the test.
* Shortly before a test's timeout the stacks of all threads are written to standard error.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import linecache
import logging
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from asyncrl.client.loop_factory import new_event_loop
from tests.rig.tripwire import sitecustomize as tripwire

STACK_DEPTH = 4
BYTES_FROM_OUTSIDE = ("rpc", "chaos", "sim", "net_root")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "trips: touches the pickle tripwire on purpose")
    config.addinivalue_line("markers", "drawn: looks at the picture of a run")
    config.addinivalue_line("markers", "unheard: leaves an exception to asyncio's log on purpose")
    _keep_short_stacks()
    # How fast the machine is says nothing of the code. The rest is Hypothesis's own profile, another one under CI.
    slow_too = [hypothesis.HealthCheck.too_slow]
    hypothesis.settings.register_profile(
        "any speed", hypothesis.settings(), deadline=None, suppress_health_check=slow_too
    )
    hypothesis.settings.load_profile("any speed")


def _keep_short_stacks() -> None:
    """asyncio's debug mode keeps the stack of each future and handle: of futures the whole one, with its lines, after a
    look at each of its files. That is a quarter of the time of tests that train. The innermost frames say as much;
    their lines are read when somebody prints them, and sources do not change while tests run."""
    whole = traceback.StackSummary.extract

    def innermost(frames: Any, *, limit: int | None = None, **_rest: Any) -> traceback.StackSummary:
        return whole(frames, limit=STACK_DEPTH if limit is None else min(limit, STACK_DEPTH), lookup_lines=False)

    traceback.StackSummary.extract = innermost  # type: ignore[method-assign,assignment]
    linecache.checkcache = lambda filename=None: None


_frozen_modules = 0


def pytest_collection_finish() -> None:
    gc.collect()
    _freeze_imports()


def _freeze_imports() -> None:
    """What was imported stays: no collection looks at it again, which takes a fifth of a second each time. Tests import
    more, such as matplotlib with their first picture."""
    global _frozen_modules
    if len(sys.modules) != _frozen_modules:
        gc.freeze()
        _frozen_modules = len(sys.modules)


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """One factory, hence no suffix on the names of tests."""
    return {"loop": new_event_loop}


def _marked(request: pytest.FixtureRequest) -> bool:
    return any(request.node.get_closest_marker(name) for name in BYTES_FROM_OUTSIDE)


@pytest.fixture(autouse=True)
def armed_tripwire(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Unpickling fails this test, wherever it happens and whoever swallows it."""
    if not _marked(request):
        yield
        return
    log = tmp_path_factory.mktemp("tripwire") / "log"
    monkeypatch.setenv(tripwire.LOG_VARIABLE, str(log))
    tripwire.arm()
    try:
        yield
    finally:
        tripwire.arm(False)
    if log.exists() and not request.node.get_closest_marker("trips"):
        pytest.fail(f"the tripwire was touched:\n{log.read_text()}", pytrace=False)


class _Listener(logging.Handler):
    """Keeps what asyncio logs instead of raising."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        cause = record.exc_info[1] if record.exc_info else None
        # gRPC has one queue for all loops of a process: an event for an earlier test's loop, closed by now, lands here.
        if "PollerCompletionQueue._handle_events" in record.getMessage() and str(cause) == "Event loop is closed":
            return
        self.heard.append(f"{record.getMessage().splitlines()[0]} ({cause!r})")


@pytest.fixture(autouse=True)
def no_unheard_exception(request: pytest.FixtureRequest) -> Iterator[None]:
    """An exception that asyncio only logs fails the test that caused it."""
    listener = _Listener()
    logger = logging.getLogger("asyncio")
    logger.addHandler(listener)
    try:
        yield
        if _marked(request):
            gc.collect()  # a task's exception is found to be unheard of when the task is collected
            _freeze_imports()
    finally:
        logger.removeHandler(listener)
    if listener.heard and not request.node.get_closest_marker("unheard"):
        pytest.fail("asyncio logged what nobody raised:\n" + "\n".join(listener.heard), pytrace=False)


@pytest.fixture(autouse=True)
def no_picture(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs end without their picture, which takes as long as a tiny run, but in tests marked `drawn`."""
    running = sys.modules.get("asyncrl.run.running")
    if running is not None and not request.node.get_closest_marker("drawn"):
        monkeypatch.setattr(running, "plot_runs", lambda runs, path: None)


@pytest.fixture(autouse=True)
def stacks_before_timeout(request: pytest.FixtureRequest) -> Iterator[None]:
    """All threads' stacks on standard error, two seconds before pytest-timeout ends the test."""
    marker = request.node.get_closest_marker("timeout")
    default = float(request.config.getini("timeout") or 0)
    limit = float(marker.args[0]) if marker and marker.args else default
    if limit > 4 and sys.__stderr__ is not None:
        faulthandler.dump_traceback_later(limit - 2, file=sys.__stderr__)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="session", autouse=True)
def what_was_collected_stays() -> None:
    """Thousands of tests and all their modules: every collection would walk over them, which takes most of a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def own_temporary_directory() -> Iterator[None]:
    """A census may count what is left in it: no other process writes there. Short, for the paths of Unix sockets."""
    before, variable = tempfile.tempdir, os.environ.get("TMPDIR")
    with tempfile.TemporaryDirectory(prefix="t", ignore_cleanup_errors=True) as directory:
        tempfile.tempdir = os.environ["TMPDIR"] = directory
        yield
        tempfile.tempdir = before
        if variable is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = variable


@pytest.fixture(scope="session", autouse=True)
def children_find_the_tripwire() -> Iterator[None]:
    """Processes that tests start by any way, multiprocessing too, get the tripwire."""
    path = str(Path(tripwire.__file__).parent)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [path, before]))
    yield
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before
