"""What OpenMP is told, and that it is told in time."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

SCRIPT = """
import json, os, sys
before = "torch" in sys.modules
import asyncrl.learner
after = "torch" in sys.modules
print(json.dumps([before, after, {name: os.environ.get(name) for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}]))
"""


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({}, {"GOMP_SPINCOUNT": "20000", "OMP_WAIT_POLICY": None}),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, {"GOMP_SPINCOUNT": None, "OMP_WAIT_POLICY": "ACTIVE"}),
        ({"GOMP_SPINCOUNT": "7"}, {"GOMP_SPINCOUNT": "7", "OMP_WAIT_POLICY": None}),
        ({"KMP_BLOCKTIME": "1"}, {"GOMP_SPINCOUNT": None, "OMP_WAIT_POLICY": None}),
    ],
)
def test_who_waits_sleeps_unless_told_otherwise(told: dict[str, str], expected: dict[str, str | None]) -> None:
    """In a process of its own: set by the room that imports torch, before it does, and never over what the user set."""
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME")
    environment = {name: value for name, value in os.environ.items() if name not in names} | told
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [False, False, expected]
