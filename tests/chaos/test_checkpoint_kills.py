"""E2: a process that saves checkpoints is killed at any moment, and the newest whole checkpoint loads."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from asyncrl.run.checkpoint_parts import Tensors
from asyncrl.run.checkpoints import CheckpointStore, load_newest
from asyncrl.run.manifests import Identity

pytestmark = pytest.mark.chaos

IDENTITY = Identity("ppo", "CartPole-v1", "00")
SAVER = """
import sys
from pathlib import Path
import numpy as np
from asyncrl.run.checkpoint_parts import Arrays, Tensors
from asyncrl.run.checkpoints import CheckpointStore
from asyncrl.run.manifests import Identity

store = CheckpointStore(Path(sys.argv[1]), Identity("ppo", "CartPole-v1", "00"))
for step in range(int(sys.argv[2]), 1 << 30):
    path = store.save(step, {
        "model": Tensors({"w": np.full(200_000, step, "f4")}),
        "replay": Arrays({"obs": np.full(100_000, step, "i8")}),
        "counters": {"step": step},
    })
    print(step, flush=True)
    if step % 4 == 0:
        store.mark_best(path, float(step))
"""


def kill_while_saving(directory: Path, first: int, delay_s: float) -> int:
    """Saves from step `first` on, is killed `delay_s` after the first save was reported; the last step reported."""
    command = [sys.executable, "-c", SAVER, str(directory), str(first)]
    with subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        reported = int(process.stdout.readline())
        time.sleep(delay_s)
        process.kill()
        rest = process.stdout.read().split("\n")[:-1]  # without a line cut short
    return int(rest[-1]) if rest else reported


def check_kills(directory: Path, kills: int, seed: int) -> int:
    """Kills again and again in one directory; how many checkpoints were found that nobody had reported."""
    chance = random.Random(seed)
    first = 1
    unreported = 0
    for _ in range(kills):
        reported = kill_while_saving(directory, first, chance.uniform(0, 0.06))
        found = load_newest(directory, IDENTITY)
        assert found.step in (reported, reported + 1)
        unreported += found.step > reported
        assert found.damaged == ()
        model = found.parts["model"]
        assert isinstance(model, Tensors)
        assert np.all(model.arrays["w"] == found.step)
        assert found.parts["counters"] == {"step": found.step}
        # One half-written directory, and what a pruning had renamed but not yet removed.
        litter = [path.name for path in directory.iterdir() if path.name.startswith(".tmp")]
        assert len(litter) <= 2, litter
        first = found.step + 1
    store = CheckpointStore(directory, IDENTITY)
    store.save(first, {"counters": {"step": first}})
    assert not list(directory.glob(".tmp*"))
    best = store.best()
    assert best is None or best[0].exists()
    return unreported


def test_E2_killed_while_saving(tmp_path: Path) -> None:
    """25 kills at seeded moments: the newest whole one is the last that was reported, or the one in the making."""
    check_kills(tmp_path, kills=25, seed=1)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_E2_killed_while_saving_200_times(tmp_path: Path) -> None:
    """200 of 200 load."""
    check_kills(tmp_path, kills=200, seed=2)
