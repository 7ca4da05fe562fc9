"""Rooms import where torch, or torch and gRPC, are not installed. In processes of their own: this one may have both."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
IMPORT_ALL = """
import importlib, pathlib, sys
blocked, *names = sys.argv[1:]
sys.modules.update(dict.fromkeys(blocked.split(",")))  # None in sys.modules: importing it raises ModuleNotFoundError
for name in names:
    importlib.import_module(name)
"""


def modules_of(room: str) -> list[str]:
    """Every module of a room, or the room itself if it is one module; empty if it does not exist."""
    folder = ROOT.joinpath(*room.split("."))
    if folder.with_suffix(".py").exists():
        return [room]
    paths = (path.relative_to(ROOT).with_suffix("") for path in sorted(folder.rglob("*.py")) if path.stem != "__main__")
    return [".".join(path.parts).removesuffix(".__init__") for path in paths]


def import_without(blocked: str, names: list[str]) -> str:
    command = [sys.executable, "-c", IMPORT_ALL, blocked, *names]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stderr


@pytest.mark.parametrize(
    "room",
    [
        *("envserver", "asyncrl.errors", "asyncrl.wire", "asyncrl.client", "asyncrl.policy", "asyncrl.collector"),
        *("asyncrl.buffers", "asyncrl.search", "asyncrl.gym_spaces", "asyncrl.vector", "asyncrl.conformance"),
    ],
)
def test_a_room_imports_without_torch(room: str) -> None:
    """Every module of the room imports where torch is absent."""
    names = modules_of(room)
    if not names:
        pytest.skip(f"there is no {room} yet")
    assert import_without("torch", names) == ""


@pytest.mark.parametrize("name", ["asyncrl", "asyncrl.errors", "asyncrl.gym_spaces", "asyncrl.registration"])
def test_a_light_module_imports_without_torch_and_grpc(name: str) -> None:
    """Neither torch nor gRPC is pulled in by what every program imports first."""
    names = ["asyncrl"] if name == "asyncrl" else modules_of(name)
    if not names:
        pytest.skip(f"there is no {name} yet")
    assert import_without("torch,grpc", names) == ""


def test_the_wire_needs_numpy_and_protobuf_alone() -> None:
    """Neither Gymnasium nor gRPC is imported by what both machines share."""
    assert import_without("torch,grpc,grpc_health,gymnasium", modules_of("asyncrl.wire")) == ""


def test_what_is_blocked_cannot_be_imported() -> None:
    """The blocking works, so that the tests above can fail."""
    assert "ModuleNotFoundError" in import_without("json", ["json"])
