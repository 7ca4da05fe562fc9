"""Training runs as processes of their own, one at a time: ours is watched through its files, a peer prints JSON."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.running import ROOT, RunFailed, interpreters, run
from benchmarks.train_peers.counting import StepWindow, TrainSettings
from benchmarks.train_workloads import Peer, Subject, checkout_of

WITHIN_S = 300.0  # for the start and the slowest of the runs
DRAIN_S = 60.0
POLL_S = 0.1
NAME = "bench"
COMMAND = "import sys; from asyncrl.cli import main; sys.exit(main())"


@dataclass(frozen=True)
class TrainRun:
    """What a run gave: SPS, None where it is absent or failed and then why; `figures` by name."""

    sps: float | None
    why: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)


# --------------------------------------------------------------------------------------------------------------- ours


def run_ours(subject: Subject, settings: TrainSettings, more: Sequence[str] = ()) -> TrainRun:
    """Until the window closes, or for a whole run until it ends."""
    window = StepWindow(settings.warmup_s, math.inf if subject.whole else settings.seconds)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / NAME
        where = (f"--run-dir={folder}", f"--run-name={NAME}")
        with _running([subject.algorithm, *subject.options, *where, *more], Path(folder) / "output") as child:
            for row in _rows(path / "metrics.jsonl", child):
                if "charts/SPS" in row:
                    window.add(int(row["step"]), float(row["time"]))
                if window.over:
                    break
        said = (Path(folder) / "output").read_text(errors="replace")[-2000:]
        figures = _figures(path / "result.json") if subject.whole else {}
    if window.sps is None or (subject.whole and not figures):
        return TrainRun(window.sps, f"failed: {said}")
    return TrainRun(window.sps, figures=figures)


@contextmanager
def _running(options: Sequence[str], output: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`asyncrl train`, which is drained when the block is left."""
    command = [sys.executable, "-c", COMMAND, "train", *options]
    with output.open("wb") as file:
        child = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT)
    try:
        yield child
    finally:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(DRAIN_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _rows(path: Path, child: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
    """The rows of a growing file, as long as the child lives."""
    end = time.monotonic() + WITHIN_S
    at = 0
    alive = True
    while alive and time.monotonic() < end:
        alive = child.poll() is None
        text = path.read_bytes()[at:] if path.exists() else b""
        whole = text.rpartition(b"\n")[0]
        at += len(whole) + 1 if whole else 0
        yield from map(json.loads, whole.splitlines())
        time.sleep(POLL_S)


def _figures(path: Path) -> dict[str, float]:
    if not path.exists():
        return {}
    result = json.loads(path.read_text())
    wanted = ("env_steps", "wall_s", "eval_return_mean", "eval_return_std", "eval_episodes")
    return {name: float(result[name]) for name in wanted if result.get(name) is not None}


# -------------------------------------------------------------------------------------------------------------- peers


@cache
def interpreter_with(needs: tuple[str, ...]) -> str | None:
    """The first of this interpreter and those in ASYNCRL_PEER_PYTHON that has them all, in these versions."""
    pairs = [(name, start) for name, _, start in (need.partition("==") for need in needs)]
    check = (
        f"import sys; from importlib.metadata import version; "
        f"sys.exit(not all(version(name).startswith(start) for name, start in {pairs!r}))"
    )
    for python in interpreters():
        if subprocess.run([python, "-c", check], capture_output=True, check=False).returncode == 0:
            return python
    return None


def run_peer(peer: Peer, settings: TrainSettings, variant: str, threads: int) -> TrainRun:
    python, checkout = interpreter_with(peer.needs), checkout_of(peer)
    if python is None or (checkout is not None and not checkout.is_dir()):
        return TrainRun(None, f"absent; {peer.get}")
    settings = replace(settings, variant=variant, threads=threads)
    try:
        result = run(peer.module, asdict(settings), python, WITHIN_S)
    except RunFailed as error:
        return TrainRun(None, f"failed: {error}")
    if result.get("sps") is None:
        return TrainRun(None, f"absent: {result.get('absent', 'it counted nothing')}")
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    return TrainRun(float(result["sps"]), why=versions)
