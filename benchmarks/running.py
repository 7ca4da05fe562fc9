"""Measured runs as processes of their own, one at a time: start, wait, read the JSON they print."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measuring import RunSettings

ROOT = Path(__file__).resolve().parents[1]
START_S = 180.0  # beyond its own seconds, what a run may take to start and to end
PEER_START_S = 60.0

SUBJECT = "asyncrl"
MODULES = {
    SUBJECT: "benchmarks.lanes_run",
    "inline": "benchmarks.ceilings.inline_loop",
    "inline-placed": "benchmarks.ceilings.inline_loop",
    "env-only": "benchmarks.ceilings.env_only",
    "grpc-echo": "benchmarks.ceilings.grpc_echo",
}
PEERS = {
    "gym-async": ("benchmarks.peers.gym_async", "gymnasium"),
    "sb3-subproc": ("benchmarks.peers.sb3_subproc", "stable_baselines3"),
    "envpool": ("benchmarks.peers.envpool_threads", "envpool"),
    "ray": ("benchmarks.peers.ray_actors", "ray"),
}


class RunFailed(Exception):
    """A measured run ended without a result."""


def run(
    module: str, settings: dict[str, Any], python: str = sys.executable, start_s: float = START_S
) -> dict[str, Any]:
    """The JSON object that `module` prints; raises RunFailed with the end of what it said instead."""
    within_s = settings["seconds"] * 2 + start_s
    # Thread pools of NumPy would fight the processes for the cores.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [python, "-m", module, json.dumps(settings)]
    child = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        said, complaint = child.communicate(timeout=within_s)
    except BaseException as error:
        os.killpg(child.pid, signal.SIGKILL)  # it may have processes of its own
        child.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise RunFailed(f"{module}: no result within {within_s:.0f} s") from None
        raise
    lines = [line for line in said.splitlines() if line.startswith("{")]
    if child.returncode or not lines:
        raise RunFailed(f"{module}: status {child.returncode}\n{complaint.strip()[-2000:]}")
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def run_ours(name: str, settings: RunSettings) -> dict[str, Any]:
    """asyncrl itself or a ceiling."""
    if name in ("grpc-echo", "env-only"):
        settings = replace(settings, seconds=min(settings.seconds, 5.0))
    if name == "inline":  # wherever the kernel puts its threads; `inline-placed` has the places of ours
        settings = replace(settings, core=None, alone=False)
    return run(MODULES[name], json.loads(settings.to_json()))


# -------------------------------------------------------------------------------------------------------------- peers


def interpreters() -> list[str]:
    """This one and those in ASYNCRL_PEER_PYTHON, separated as in PATH."""
    return [sys.executable, *(path for path in os.environ.get("ASYNCRL_PEER_PYTHON", "").split(os.pathsep) if path)]


@cache
def interpreter_for(package: str) -> str | None:
    """The first interpreter that has it."""
    check = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    for python in interpreters():
        if subprocess.run([python, "-c", check], capture_output=True, check=False).returncode == 0:
            return python
    return None


@dataclass(frozen=True)
class PeerRun:
    """Steps per second of one peer; None where it is absent or failed, and then why."""

    steps_per_s: float | None
    why: str = ""


def peer_counts(name: str, counts: tuple[int, ...]) -> tuple[int, ...]:
    """Numbers of environments to try. Ray: eight per core, because starting more takes longer than measuring."""
    most = 8 * (os.cpu_count() or 1) if name == "ray" else max(counts)
    return tuple(count for count in counts if count <= most) or counts[:1]


def run_peer(name: str, env: str, num_envs: int, seconds: float) -> PeerRun:
    module, package = PEERS[name]
    python = interpreter_for(package)
    if python is None:
        return PeerRun(None, f"absent: no interpreter with {package}")
    try:
        result = run(module, {"env": env, "num_envs": num_envs, "seconds": seconds}, python, PEER_START_S)
    except RunFailed as error:
        return PeerRun(None, f"failed: {error}")
    if "absent" in result:
        return PeerRun(None, f"absent: {result['absent']}")
    return PeerRun(float(result["steps_per_s"]))


def middle(values: list[float]) -> float:
    return float(median(values))
