"""CleanRL's ppo.py and ppo_atari.py, run by path from a checkout as they are, with options of their own.

The checkout is `cleanrl/` in the folder that ASYNCRL_PEER_CACHE names. A script prints `SPS:` after each iteration.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from benchmarks.train_peers.counting import StepWindow, TrainSettings, report

CACHE = "ASYNCRL_PEER_CACHE"
FOREVER = 10_000_000  # steps; the run is ended from outside


def script(settings: TrainSettings) -> Path:
    """Raises ImportError where there is no checkout."""
    checkout = Path(os.environ.get(CACHE, "")) / "cleanrl"
    path = checkout / "cleanrl" / ("ppo_atari.py" if settings.atari else "ppo.py")
    if not path.is_file():
        raise ImportError(f"no checkout of vwxyzjn/cleanrl: {CACHE}={os.environ.get(CACHE, '')!r}")
    return path


def env_id(env: str) -> str:
    """CleanRL plays the Atari ids without frame skip; a module before the colon is imported by Gymnasium."""
    if not env.startswith("ALE/"):
        return env
    return f"ale_py:{env.removeprefix('ALE/').partition('-')[0]}NoFrameskip-v4"


@contextmanager
def running(settings: TrainSettings, folder: str) -> Iterator[IO[str]]:
    """The output of the script, which is ended when the block is left."""
    path = script(settings)
    options = {
        "env-id": env_id(settings.env),
        "num-envs": settings.num_envs,
        "num-steps": settings.num_steps,
        "update-epochs": settings.epochs,
        "num-minibatches": settings.minibatches,
        "total-timesteps": FOREVER,
    }
    words = [f"--{name}={value}" for name, value in options.items()]
    here = (str(path.parents[1]), str(Path.cwd()))
    threads = {name: str(settings.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    environment = os.environ | threads | {"PYTHONPATH": os.pathsep.join(here), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-W", "ignore", str(path), "--no-cuda", *words]
    child = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert child.stdout is not None
    try:
        yield child.stdout
    finally:
        child.kill()
        child.stdout.close()
        child.wait()


def train(settings: TrainSettings, window: StepWindow) -> None:
    said: list[str] = []
    iterations = 0
    with tempfile.TemporaryDirectory() as folder, running(settings, folder) as output:
        for line in output:
            if line.startswith("SPS:"):
                iterations += 1
                window.add(iterations * settings.num_envs * settings.num_steps)
            said = [*said[-20:], line]
            if window.over:
                return
    raise RuntimeError(f"CleanRL ended by itself: {''.join(said)}")


if __name__ == "__main__":
    report(train)
