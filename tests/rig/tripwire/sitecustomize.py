"""A tripwire under everything that turns bytes into code: unpickling and unmarshalling raise, and leave a note.

Put this directory on the PYTHONPATH of a process, and its interpreter imports this module before anything else. In
the test process `tests/conftest.py` arms it for tests that exchange bytes with other processes. A trip raises
`Tripped` where it happens and adds a line to the file ASYNCRL_TRIPWIRE_LOG, so that one which somebody swallows
is found too. Standard library only: every spawned process pays for this import.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import pickle
import sys
import traceback
from collections.abc import Callable
from typing import Any

LOG_VARIABLE = "ASYNCRL_TRIPWIRE_LOG"
# The import system reads its own caches with marshal; they never come from a peer.
_MAY_UNMARSHAL = (
    "_frozen_importlib_external",
    "importlib._bootstrap_external",
    "zipimport",
    "_pytest.assertion.rewrite",
)

armed = False


class Tripped(RuntimeError):
    """Somebody was about to run what a peer or a file may have written."""


def _trip(what: str) -> None:
    if not armed:
        return
    text = f"{what} in process {os.getpid()}"
    path = os.environ.get(LOG_VARIABLE)
    if path:
        stack = "".join(traceback.format_stack(limit=8)[:-2])
        with contextlib.suppress(OSError), open(path, "a") as log:  # noqa: PTH123 - before pathlib is needed
            log.write(f"{text}\n{stack}\n")
    raise Tripped(f"{text}: bytes must never become code")


def _guarded(function: Callable[..., Any], what: str) -> Callable[..., Any]:
    def wire(*args: Any, **kwargs: Any) -> Any:
        _trip(what)
        return function(*args, **kwargs)

    return wire


def _guarded_marshal(function: Callable[..., Any], what: str) -> Callable[..., Any]:
    def wire(*args: Any, **kwargs: Any) -> Any:
        if sys._getframe(1).f_globals.get("__name__") not in _MAY_UNMARSHAL:
            _trip(what)
        return function(*args, **kwargs)

    return wire


class _Unpickler(pickle.Unpickler):
    """Every Unpickler, those of cloudpickle, torch and multiprocessing too: they derive from it or call `loads`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _trip("pickle.Unpickler")
        super().__init__(*args, **kwargs)


def install() -> None:
    """Put the wires in place; they are slack until `armed` is set. Idempotent."""
    if pickle.Unpickler is _Unpickler:
        return
    pickle.loads = _guarded(pickle.loads, "pickle.loads")
    pickle.load = _guarded(pickle.load, "pickle.load")
    pickle.Unpickler = _Unpickler  # type: ignore[misc]
    pickle._Unpickler.load = _guarded(pickle._Unpickler.load, "pickle._Unpickler")  # type: ignore[method-assign]
    marshal.loads = _guarded_marshal(marshal.loads, "marshal.loads")
    marshal.load = _guarded_marshal(marshal.load, "marshal.load")


def arm(on: bool = True) -> None:
    global armed
    armed = on


install()
if __name__ == "sitecustomize":
    arm()
