"""Checkpoints and evaluations beside training."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncrl.buffers.replay import ReplayState
from asyncrl.client.fleet import Fleet
from asyncrl.errors import ServerRefused
from asyncrl.learner.loop import LearnerFailed
from asyncrl.learner.ppo import PPO
from asyncrl.policy import Policy
from asyncrl.records import Unroll
from asyncrl.run import examining
from asyncrl.run.checkpoints import Checkpoint, load_checkpoint
from asyncrl.run.evaluation import Evaluation
from asyncrl.run.examining import EVAL_SEED, Copied
from asyncrl.run.files import FILES, Files
from asyncrl.run.learning import Saved
from asyncrl.run.manifests import best_of, readable
from asyncrl.run.progress import Progress
from asyncrl.run.serving import Serving
from tests.rpc.serving import serving
from tests.unit.run.tiny_training import TinyRun, failing_in_the_third, tiny_config

pytestmark = [pytest.mark.rpc, pytest.mark.timeout(90)]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with serving("CartPole-v1", num_envs=16) as address:
        yield address


def checkpoints(run: TinyRun) -> list[Checkpoint]:
    """Oldest first."""
    return [load_checkpoint(path) for path in reversed(readable(run.checkpoints))]


class Fingerprints:
    """What an update left behind, by the number of rounds trained on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.of_round: dict[int, float] = {}
        self.steps = 0
        self.steps_at: dict[int, int] = {}
        update = PPO.update

        def watched(ppo: PPO, unrolls: Sequence[Unroll], progress: float) -> dict[str, float]:
            found = update(ppo, unrolls, progress)
            self.steps += sum(unroll.num_valid for unroll in unrolls)
            number = len(self.of_round) + 1
            self.of_round[number] = _fingerprint(ppo.state()[0])
            self.steps_at[number] = self.steps
            return found

        monkeypatch.setattr(PPO, "update", watched)


def _fingerprint(tensors: Any) -> float:
    names = sorted(name for name in tensors if name.startswith("model/"))
    return float(sum(np.asarray(tensors[name], np.float64).sum() for name in names))


@pytest.mark.parametrize("mode", ["sync", pytest.param("lag 3", marks=pytest.mark.slow), "async"])
async def test_a_checkpoint_counts_what_its_weights_have_seen(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Rounds and steps of every checkpoint are those after which the weights were the ones in it."""
    seen = Fingerprints(monkeypatch)
    run = TinyRun(tmp_path, tiny_config(tmp_path, mode=mode, checkpoint_every=1, total_timesteps=1600))
    await run.run(server)
    found = checkpoints(run)
    assert len(found) > 3
    for checkpoint in found:
        number = checkpoint.manifest.info["round"]
        assert _fingerprint(Saved.of(checkpoint.parts).arrays) == seen.of_round[number]
        assert checkpoint.step == seen.steps_at[number]
    assert found[-1].manifest.info["round"] == 50


class SlowFiles(Files):
    """A disk that waits before each new directory until somebody says so."""

    def __init__(self) -> None:
        self.may_go = threading.Event()

    def make_directory(self, path: Path) -> None:
        assert self.may_go.wait(30)
        FILES.make_directory(path)


async def test_a_slow_disk_gets_fewer_checkpoints(tmp_path: Path, server: str) -> None:
    """One is under way for twenty rounds in which nobody waits for it; then the next one, and the last."""
    files = SlowFiles()
    run = TinyRun(tmp_path, tiny_config(tmp_path, checkpoint_every=1, total_timesteps=32 * 60), files=files)
    async with run.running(server):
        await run.until(lambda: run.training.progress.round >= 20)
        files.may_go.set()
    rounds = [checkpoint.manifest.info["round"] for checkpoint in checkpoints(run)]
    assert rounds[0] == 1
    assert rounds[1] >= 20
    assert rounds[-1] == 60


async def more_rounds(run: TinyRun, count: int) -> None:
    goal = run.training.progress.round + count
    await run.until(lambda: run.training.progress.round >= goal)


async def test_minutes_without_a_checkpoint_bring_one(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many rounds before five minutes are over bring none; one after them, and that counts as the beginning."""
    now_s = 1000.0
    monkeypatch.setattr(examining, "_now", lambda: now_s)
    run = TinyRun(tmp_path, tiny_config(tmp_path, checkpoint_every=10**6, total_timesteps=32 * 10**4))
    async with run.running(server):
        await more_rounds(run, 1)
        for number in range(3):
            now_s += 299.0
            await more_rounds(run, 5)
            assert len(readable(run.checkpoints)) == number
            now_s += 2.0
            while len(readable(run.checkpoints)) == number:
                await more_rounds(run, 1)
        run.training.stop()


async def test_the_best_evaluation_is_marked(tmp_path: Path, server: str) -> None:
    """Of all evaluations, the last one too, the highest mean has the mark, and its checkpoint says so."""
    config = tiny_config(tmp_path, eval_every=160, eval_episodes=4, total_timesteps=1600, learning_rate=0.01)
    run = TinyRun(tmp_path, config)
    await run.run(server)
    means = [row["eval/episodic_return"] for _, row in run.notes.rows if "eval/episodic_return" in row]
    assert len(means) >= 2
    best = best_of(run.checkpoints)
    assert best is not None
    assert best[1] == max(means)


async def test_nan_is_never_the_best(tmp_path: Path, server: str) -> None:
    """It is recorded, gets no mark, and does not stand in the way of those that come after it."""
    run = TinyRun(tmp_path, tiny_config(tmp_path, total_timesteps=32))
    await run.run(server)
    training, examiner = run.training, run.training.examiner
    assert training.learning is not None
    assert examiner is not None
    (tmp_path / "checkpoints" / "BEST").unlink()
    examiner.keeper = run.make_keeper(training.learning)
    marks = []
    for number, mean in enumerate([np.nan, 3.0, np.nan, 2.0, 4.0]):
        progress = Progress(round=number, steps=32 * number, learner_epoch=2)
        copied = Copied(training.learning.save(), training.learning.frozen_policy(deterministic=True), progress)
        await examiner._take_down(Evaluation((mean,), (1,)), await examiner._kept(copied))
        best = best_of(run.checkpoints)
        marks.append(None if best is None else best[1])
    assert marks == [None, 3.0, 3.0, 3.0, 4.0]
    assert len([row for _, row in run.notes.rows if "eval/episodic_return" in row]) == 1 + 5


async def test_an_evaluation_holds_no_replay(tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its checkpoint was made of is gone when it begins: rows that are replaced meanwhile need no second place."""
    held: list[int] = []

    async def judged(fleet: Fleet, policy: Policy, episodes: int, seed: int) -> Evaluation:
        gc.collect()
        held.append(sum(isinstance(thing, ReplayState) for thing in gc.get_objects()))
        return Evaluation((float(len(held)),), (1,))

    monkeypatch.setattr(examining, "evaluate", judged)
    values = {"buffer_size": 320, "learning_starts": 32, "eval_every": 160, "total_timesteps": 480}
    run = TinyRun(tmp_path, tiny_config(tmp_path, "dqn", **values))
    await run.run(server)
    assert held == [0] * len(held)
    assert len(held) >= 2
    best = best_of(run.checkpoints)
    assert best is not None
    assert best[1] == len(held)


class Refusing:
    """Servers without room for evaluations, from the `after`th fleet on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
        opened = Serving.fleet
        self.seeds: list[int] = []

        def fleet(of: Serving, on_event: Any = None, **settings: Any) -> AbstractAsyncContextManager[Fleet]:
            self.seeds.append(settings["seed"])
            if len(self.seeds) > after:
                raise ServerRefused("CAPACITY", "somebody else was faster")
            return opened(of, on_event, **settings)

        monkeypatch.setattr(Serving, "fleet", fleet)


async def test_trouble_with_an_evaluation_is_an_event(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run trains its budget, keeps it, and says each time what was wrong; evaluations have seeds of their own."""
    refusing = Refusing(monkeypatch, after=1)
    run = TinyRun(tmp_path, tiny_config(tmp_path, eval_every=320, total_timesteps=960))
    await run.run(server)
    assert run.training.finished
    assert run.training.last_eval is None
    texts = run.notes.of_kind("evaluation_failed")
    assert len(texts) == len(refusing.seeds) - 1 >= 2
    assert all("somebody else was faster" in text for text in texts)
    assert set(refusing.seeds[1:]) == {run.config.seed + EVAL_SEED}
    assert checkpoints(run)[-1].manifest.info["round"] == 30


async def test_a_failed_update_is_not_kept(tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that was due while the update that failed was running: half trained weights, which nobody wants."""
    began, may_fail = failing_in_the_third(monkeypatch)
    run = TinyRun(tmp_path)

    async def ask() -> None:
        await asyncio.to_thread(began.wait, 30)
        training = run.training
        assert training.examiner is not None
        assert training.learner is not None
        training.examiner._checkpoint_is_due = True
        training.examiner.round_ended(0, training.learner)
        await asyncio.sleep(0.01)
        may_fail.set()

    async with asyncio.TaskGroup() as group:
        group.create_task(ask())
        with pytest.raises(LearnerFailed):
            await run.run(server)
    assert not run.checkpoints.exists()
