"""Checkpoints written beside the loop: order, the best one, slow and broken disks."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncrl.errors import CheckpointNotSaved
from asyncrl.run.checkpoints import CheckpointStore, load_newest
from asyncrl.run.files import FILES, Files
from asyncrl.run.keeping import Keeper
from asyncrl.run.learning import Saved
from asyncrl.run.manifests import Identity, best_of, readable
from asyncrl.run.progress import Progress
from tests.unit.run.failing_files import FailingFiles

SAVED = Saved({"model/weight": np.arange(3.0)}, {"parameters": []})


async def judge(keeper: Keeper, progress: Progress, score: float) -> None:
    """Kept, evaluated, and better than all before it."""
    path = await keeper.keep(progress, SAVED, hold=True)
    assert path is not None
    await keeper.mark(path, score)


class SlowFiles(Files):
    """Nothing is synced before `may_go`."""

    def __init__(self) -> None:
        self.may_go = threading.Event()
        self.began = threading.Event()

    def sync(self, descriptor: int) -> None:
        self.began.set()
        assert self.may_go.wait(30)
        super().sync(descriptor)


def keeper_in(directory: Path, files: Files = FILES, keep: int = 2) -> tuple[Keeper, list[str]]:
    reports: list[str] = []
    store = CheckpointStore(directory, Identity("ppo", "CartPole-v1", "00"), keep=keep, files=files)
    return Keeper(store, reports.append, lambda: None), reports


def at(number: int, **changed: Any) -> Progress:
    values: dict[str, Any] = {"round": number, "steps": 100 * number, "learner_epoch": 1}
    return Progress(**(values | changed))


async def test_a_slow_disk_delays_nobody(tmp_path: Path) -> None:
    """The loop runs on; what is asked for meanwhile is written afterwards, in order."""
    files = SlowFiles()
    keeper, _ = keeper_in(tmp_path, files, keep=9)
    async with asyncio.TaskGroup() as group:
        for number in (1, 2, 3):
            group.create_task(keeper.keep(at(number), SAVED))
        await asyncio.to_thread(files.began.wait, 30)
        for _ in range(100):
            await asyncio.sleep(0)
        busy = [keeper.is_busy]
        assert keeper.newest is None
        files.may_go.set()
    assert [*busy, keeper.is_busy] == [True, False]
    assert [manifest.step for manifest in readable(tmp_path).values()] == [300, 200, 100]
    assert keeper.newest_step == 300


async def test_a_cancelled_keep_is_finished_in_its_thread(tmp_path: Path) -> None:
    """Nobody waits for it, and the one after it comes after it."""
    files = SlowFiles()
    keeper, _ = keeper_in(tmp_path, files)
    async with asyncio.TaskGroup() as group:
        first = group.create_task(keeper.keep(at(1), SAVED))
        await asyncio.to_thread(files.began.wait, 30)
        first.cancel()
        second = group.create_task(keeper.keep(at(2), SAVED))
        await asyncio.sleep(0.01)
        files.may_go.set()
        await second
    assert [manifest.step for manifest in readable(tmp_path).values()] == [200, 100]
    assert keeper.newest_step == 200


async def test_the_best_is_marked(tmp_path: Path) -> None:
    """With its score; it stays when newer ones push it out."""
    keeper, _ = keeper_in(tmp_path)
    await judge(keeper, at(1), 7.5)
    for number in (2, 3, 4):
        await keeper.keep(at(number), SAVED)
    assert best_of(tmp_path) == (tmp_path / "step_100", 7.5)
    assert sorted(manifest.step for manifest in readable(tmp_path).values()) == [100, 300, 400]


async def test_a_held_one_stays(tmp_path: Path) -> None:
    """While it is evaluated it may fall behind the newest ones; the next that is held takes its place."""
    keeper, _ = keeper_in(tmp_path)
    held = await keeper.keep(at(1), SAVED, hold=True)
    for number in (2, 3, 4):
        await keeper.keep(at(number), SAVED)
    assert held == tmp_path / "step_100"
    assert sorted(manifest.step for manifest in readable(tmp_path).values()) == [100, 300, 400]
    await keeper.keep(at(4), SAVED, hold=True)
    await keeper.keep(at(5), SAVED)
    assert sorted(manifest.step for manifest in readable(tmp_path).values()) == [400, 500]


async def test_a_late_best_is_not_the_newest(tmp_path: Path) -> None:
    """An evaluation of round 1 that ends after rounds 2 to 4 were kept: marked, but nobody resumes from it."""
    keeper, _ = keeper_in(tmp_path)
    for number in (2, 3, 4):
        await keeper.keep(at(number), SAVED)
    await judge(keeper, at(1), 9.0)
    assert load_newest(tmp_path).step == 400
    assert (tmp_path / "LATEST").read_text() == "step_400\n"
    assert best_of(tmp_path) == (tmp_path / "step_100", 9.0)
    assert keeper.newest_step == 400
    await keeper.keep(at(5), SAVED)
    assert sorted(manifest.step for manifest in readable(tmp_path).values()) == [100, 400, 500]


@pytest.mark.parametrize(("mark", "best"), [("step_100 7.5", 7.5), ("step_100 nan", None), ("step_900 7.5", None)])
async def test_a_later_life_has_the_best_to_beat(tmp_path: Path, mark: str, best: float | None) -> None:
    """What the mark says, where there is such a checkpoint and its score is a number; nothing before the first."""
    keeper, _ = keeper_in(tmp_path)
    found = [keeper.best]
    await judge(keeper, at(1), 7.5)
    assert [*found, keeper.best] == [None, 7.5]
    (tmp_path / "BEST").write_text(mark)
    assert keeper_in(tmp_path)[0].best == best


async def test_a_best_that_could_not_be_marked_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told, and the next one need not beat it."""
    keeper, reports = keeper_in(tmp_path)

    def full(path: Path, score: float) -> None:
        raise CheckpointNotSaved("no room")

    monkeypatch.setattr(keeper.store, "mark_best", full)
    await judge(keeper, at(1), 7.5)
    await asyncio.sleep(0)
    assert (keeper.best, reports) == (None, ["no room"])


async def test_a_later_life_is_newer(tmp_path: Path) -> None:
    """A run that went back to round 2 is newer in round 3 than it was in round 9 of the life before."""
    keeper, _ = keeper_in(tmp_path)
    await keeper.keep(at(9), SAVED)
    again, _ = keeper_in(tmp_path)
    await again.keep(at(3, learner_epoch=2), SAVED)
    assert load_newest(tmp_path).step == 300


async def test_a_round_is_saved_once(tmp_path: Path) -> None:
    """The last round, which was due for a checkpoint anyway and turned out to be the best; also that of before."""
    keeper, _ = keeper_in(tmp_path)
    await keeper.keep(at(1), SAVED)
    await judge(keeper, at(1), 3.0)
    await keeper.keep(at(1), SAVED)
    assert [path.name for path in readable(tmp_path)] == ["step_100"]
    again, _ = keeper_in(tmp_path)
    again.resume(tmp_path / "step_100", 100)
    await again.keep(at(1, learner_epoch=2), SAVED)
    assert [path.name for path in readable(tmp_path)] == ["step_100"]
    assert best_of(tmp_path) == (tmp_path / "step_100", 3.0)


async def test_a_full_disk_is_one_report(tmp_path: Path) -> None:
    """Training goes on; when there is room again that is told, too, and the round that was missed is kept."""
    files = FailingFiles(1, for_good=True)
    keeper, reports = keeper_in(tmp_path, files)
    for number in (1, 2):
        await keeper.keep(at(number), SAVED)
    await asyncio.sleep(0)
    assert len(reports) == 1
    assert "No space left" in reports[0]
    assert keeper.newest is None
    files.fail_at = 0
    await keeper.keep(at(2), SAVED)
    await asyncio.sleep(0)
    assert len(reports) == 2
    assert keeper.newest_step == load_newest(tmp_path).step == 200
