"""Where a run stands, through a checkpoint and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from asyncrl.collector.counts import CollectorState
from asyncrl.run.checkpoints import CheckpointStore, load_newest
from asyncrl.run.manifests import Identity
from asyncrl.run.progress import Progress


def test_progress_reads_back(tmp_path: Path) -> None:
    """Everything but the carries: environments are made anew, and those begin anew with them."""
    collector = CollectorState(np.array([5, 2**35]), [np.ones((2, 3), np.float32)], 7, 1234)
    progress = Progress(7, 1200, 3.5, 2, "abc", np.array([0, 4]), collector)
    CheckpointStore(tmp_path, Identity("ppo", "x", "00")).save(1200, progress.parts())
    again = Progress.of(load_newest(tmp_path).parts)
    for name in ("round", "steps", "elapsed_s", "learner_epoch", "run_id"):
        assert getattr(again, name) == getattr(progress, name)
    assert again.incarnations is not None
    assert again.incarnations.tolist() == [0, 4]
    assert again.collector is not None
    assert again.collector.act_steps.tolist() == [5, 2**35]
    assert (again.collector.round, again.collector.steps, again.collector.carry) == (7, 1234, [])


def test_a_run_that_never_began_reads_back() -> None:
    """Without arrays."""
    again = Progress.of(Progress(run_id="x").parts())
    assert (again.round, again.run_id, again.incarnations, again.collector) == (0, "x", None, None)


def test_serials_grow_with_rounds_and_lives() -> None:
    """A later life counts more than any round of an earlier one."""
    found = [Progress(round=number, learner_epoch=epoch).serial for epoch in (1, 2) for number in (0, 1, 10**6)]
    assert found == sorted(set(found))


def test_what_was_collected_ahead_is_of_the_run_without_rounds_alone() -> None:
    """Whole rounds that nobody trained on are collected again; without rounds collection goes on where it was."""
    state = CollectorState(np.zeros(2, np.int64), [], 3, 960)
    assert Progress(steps=640, collector=state).collected_step(None) == 960
    assert Progress(steps=640, collector=state).collected_step(2) == 640
    assert Progress(steps=640).collected_step(None) == 640
