"""The import contracts of pyproject.toml, run over a small copy of the house with one bad import at a time."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = [
    *("cli", "run", "learner", "collector", "conformance", "search", "client", "buffers", "wire"),
    *("vector", "sb3", "registration", "params", "policy", "gym_spaces", "records", "config", "errors"),
]
GOOD = {
    "asyncrl/__init__.py": "from importlib import import_module",
    "asyncrl/cli/main.py": "from asyncrl import vector, run, errors",
    "asyncrl/learner/ppo.py": "import torch\nfrom asyncrl.policy import x",
    "asyncrl/client/lane.py": "import grpc.aio, grpc_health\nfrom asyncrl.wire import tensors",
    "asyncrl/wire/tensors.py": "import numpy, google.protobuf\nfrom asyncrl import errors",
    "envserver/server.py": "import grpc, gymnasium\nfrom asyncrl import errors\nfrom asyncrl.wire.tensors import x",
}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("house")
    shutil.copy(ROOT / "pyproject.toml", root)
    for room in ROOMS:
        (root / "asyncrl" / room).mkdir(parents=True)
        (root / "asyncrl" / room / "__init__.py").touch()
    (root / "envserver").mkdir()
    (root / "envserver" / "__init__.py").touch()
    for path, text in GOOD.items():
        (root / path).write_text(text)
    return root


def broken_contracts(root: Path) -> list[str]:
    """The names of the contracts that do not hold, cut at the first colon or comma."""
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    ran = subprocess.run(command, cwd=root, capture_output=True, text=True, env={"PATH": "", "COLUMNS": "200"})
    assert "kept" in ran.stdout, ran.stdout + ran.stderr
    return re.findall(r"^(.+?)(?:[:,].*)? BROKEN", ran.stdout, re.MULTILINE)


def test_the_house_as_designed_keeps_every_contract(house: Path) -> None:
    """The house as designed keeps every contract."""
    assert broken_contracts(house) == []


@pytest.mark.parametrize(
    ("path", "text", "contracts"),
    [
        ("asyncrl/wire/bad.py", "import asyncio", ["asyncrl.wire needs numpy and protobuf only"]),
        ("asyncrl/wire/bad.py", "from asyncrl import client", ["layers of asyncrl"]),
        ("asyncrl/learner/bad.py", "from asyncrl.collector import x", ["layers of asyncrl"]),
        ("asyncrl/errors/bad.py", "import asyncrl.wire.tensors", ["layers of asyncrl"]),
        ("asyncrl/new_room.py", "", ["layers of asyncrl"]),
        ("asyncrl/collector/bad.py", "def f():\n    import torch", ["torch is imported by asyncrl.learner alone"]),
        ("envserver/bad.py", "from torch import nn", ["torch is imported by asyncrl.learner alone"]),
        ("asyncrl/vector/bad.py", "import grpc.aio", ["gRPC is imported on the training side by asyncrl.client alone"]),
        ("envserver/bad.py", "from asyncrl import client", ["envserver imports asyncrl.wire and asyncrl.errors"]),
    ],
)
def test_one_bad_import_breaks_its_contract(house: Path, path: str, text: str, contracts: list[str]) -> None:
    """One bad import breaks its contract."""
    bad = house / path
    bad.write_text(text)
    try:
        assert broken_contracts(house)[:1] == contracts
    finally:
        bad.unlink()
