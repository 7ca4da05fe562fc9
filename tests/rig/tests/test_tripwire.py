"""The tripwire works here, in child processes, through every door, and for those who swallow its error."""

from __future__ import annotations

import io
import marshal
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rig.processes import child_environment
from tests.rig.tripwire import sitecustomize as tripwire

# A trip on purpose: the fixture of conftest must not fail these tests for it.
pytestmark = [pytest.mark.rpc, pytest.mark.trips]

DATA = pickle.dumps([1, 2])
DOORS = {
    "pickle.loads": lambda: pickle.loads(DATA),  # noqa: S301
    "pickle.load": lambda: pickle.load(io.BytesIO(DATA)),  # noqa: S301
    "pickle.Unpickler": lambda: pickle.Unpickler(io.BytesIO(DATA)).load(),  # noqa: S301
    "pickle._Unpickler": lambda: pickle._Unpickler(io.BytesIO(DATA)).load(),
    "marshal.loads": lambda: marshal.loads(marshal.dumps(3)),  # noqa: S302
    "marshal.load": lambda: marshal.load(io.BytesIO(marshal.dumps(3))),  # noqa: S302
}


@pytest.mark.parametrize("door", DOORS)
def test_every_door_is_wired(door: str) -> None:
    """Each way from bytes to objects raises and leaves a note; disarmed it works as ever."""
    with pytest.raises(tripwire.Tripped, match="never become code"):
        DOORS[door]()
    note = Path(os.environ[tripwire.LOG_VARIABLE]).read_text()
    assert note.startswith(f"{door} in process {os.getpid()}")
    tripwire.arm(False)
    assert DOORS[door]() in ([1, 2], 3)


def test_those_who_imported_before_and_derive_are_wired() -> None:
    """cloudpickle has its own names for the same functions, and multiprocessing, too."""
    cloudpickle = pytest.importorskip("cloudpickle")
    from multiprocessing.reduction import ForkingPickler

    with pytest.raises(tripwire.Tripped):
        cloudpickle.loads(DATA)
    with pytest.raises(tripwire.Tripped):
        ForkingPickler.loads(DATA)


def test_children_are_wired_and_can_import() -> None:
    """A child trips without being asked, its imports still work, and the note tells of an error it swallowed."""
    code = (
        "import contextlib, pickle, json, email.mime.text, numpy\n"
        "with contextlib.suppress(Exception): pickle.loads(b'N.')\n"
        "print('alive')"
    )
    child = subprocess.run(
        [sys.executable, "-c", code], env=child_environment(), capture_output=True, text=True, check=True
    )
    assert child.stdout == "alive\n"
    assert "pickle.loads in process" in Path(os.environ[tripwire.LOG_VARIABLE]).read_text()
