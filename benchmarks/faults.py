"""PPO on CartPole over four env servers, one lane killed every few seconds: does it learn all the same?

    python -m benchmarks.faults [--every 5] [--steps 300000] [--mode sync] [--seed 1]

Prints one JSON object: the mean return of the last evaluation, what was killed, lost and replaced.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from asyncrl.run.options import resolve
from asyncrl.run.row_files import read_metrics
from asyncrl.run.run_dir import RunDir
from asyncrl.run.running import run_to_the_end

NUM_SERVERS = 4


@contextmanager
def env_server(num_envs: int) -> Iterator[tuple[int, str]]:
    """Its process id and its address."""
    options = {"env": ["CartPole-v1"], "num_envs": num_envs, "listen": ["127.0.0.1:0"]}
    with subprocess.Popen(
        [sys.executable, "-m", "envserver.embedded", json.dumps(options)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.pid, json.loads(process.stdout.readline())["ready"]
        finally:
            process.stdin.close()


def lanes_of(server: int) -> list[int]:
    """Processes below the server's nursery."""
    return [lane for nursery in _children(server) for lane in _children(nursery)]


def _children(pid: int) -> list[int]:
    try:
        return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


class Killer(threading.Thread):
    """One lane every so many seconds, of any server."""

    def __init__(self, servers: list[int], every_s: float, seed: int) -> None:
        super().__init__(daemon=True)
        self.killed = 0
        self.over = threading.Event()
        self._servers, self._every_s, self._rng = servers, every_s, random.Random(seed)

    def run(self) -> None:
        while not self.over.wait(self._every_s):
            lanes = [lane for server in self._servers for lane in lanes_of(server)]
            if lanes:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._rng.choice(lanes), signal.SIGKILL)
                    self.killed += 1


def measure(every_s: float, steps: int, mode: str, seed: int) -> dict[str, Any]:
    """One run; what came of it."""
    with ExitStack() as stack:
        run_dir = stack.enter_context(tempfile.TemporaryDirectory())
        servers = [stack.enter_context(env_server(8)) for _ in range(NUM_SERVERS)]
        config = resolve(
            "ppo",
            preset_name="start",
            lanes=2 * NUM_SERVERS,
            total_timesteps=steps,
            mode=mode,
            seed=seed,
            track=False,
            run_dir=run_dir,
        )
        killer = Killer([pid for pid, _ in servers], every_s, seed)
        killer.start()
        began = time.monotonic()
        ran = run_to_the_end("ppo", config, [address for _, address in servers])
        took = time.monotonic() - began
        killer.over.set()
        rows = list(read_metrics(RunDir(ran.folder).metrics))
    last = [row for row in rows if "async/restarts" in row][-1]
    return {
        "mode": mode,
        "mean_return": ran.result.eval_return_mean,
        "episodes": ran.result.eval_episodes,
        "steps": ran.result.env_steps,
        "seconds": round(took, 1),
        "killed": killer.killed,
        "lost_events": sum(row.get("event") == "lane_lost" for row in rows),
        "lanes_replaced": int(last["async/restarts"]),
        "steps_in_flight_lost": int(last["async/lost_steps"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two kills")
    parser.add_argument("--steps", type=int, default=300_000)
    parser.add_argument("--mode", default="sync")
    parser.add_argument("--seed", type=int, default=1)
    wish = parser.parse_args()
    print(json.dumps(measure(wish.every, wish.steps, wish.mode, wish.seed)))


if __name__ == "__main__":
    main()
