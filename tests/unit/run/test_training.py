"""A training run: how it ends, and what is kept of it."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncrl.client.connecting import connect
from asyncrl.client.one_core import OneCore
from asyncrl.collector.counts import CollectorState
from asyncrl.errors import AsyncRLError, ConnectionFailed, SpecMismatch
from asyncrl.learner.dense_policy import DensePolicy
from asyncrl.learner.loop import LearnerFailed, ThreadWish
from asyncrl.learner.ppo import PPO
from asyncrl.learner.torch_policy import ModelPolicy, TorchPolicy
from asyncrl.records import Unroll
from asyncrl.run import serving as serving_module
from asyncrl.run import training as training_module
from asyncrl.run.checkpoints import Checkpoint, load_newest
from asyncrl.run.learning import Learning, Saved
from asyncrl.run.progress import Progress
from tests.rpc.serving import served, serving
from tests.unit.run.tiny_training import TinyRun, failing_in_the_third, tiny_config

pytestmark = [pytest.mark.rpc, pytest.mark.timeout(90)]


ODD = "tests.unit.run.odd_envs"
ENVS = ["CartPole-v1", f"sleepy={ODD}:slow_to_make", f"nan={ODD}:nan_now_and_then", f"text={ODD}:speaking"]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with serving(*ENVS, num_envs=16) as address:
        yield address


def newest(run: TinyRun) -> Checkpoint:
    return load_newest(run.checkpoints)


def check_kept(run: TinyRun) -> None:
    """The newest checkpoint is of the last whole round, and has the weights of now."""
    checkpoint, training = newest(run), run.training
    assert checkpoint.manifest.info["round"] == training.progress.round
    assert checkpoint.step == training.progress.steps
    assert training.learning is not None
    ours, theirs = training.learning.save(), Saved.of(checkpoint.parts)
    assert all((theirs.arrays[name] == array).all() for name, array in ours.arrays.items())


@pytest.mark.parametrize("mode", ["sync", "lag 2", "async"])
async def test_a_stopped_run_keeps_its_last_round(tmp_path: Path, server: str, mode: str) -> None:
    """Stopped at some round: that round, or the one it is in, is in the checkpoint, and nobody plays at the end."""
    run = TinyRun(tmp_path, tiny_config(tmp_path, mode=mode, total_timesteps=10**6))
    async with run.running(server):
        await run.until(lambda: run.training.progress.round >= 5)
        run.training.stop()
    assert 5 <= run.training.progress.round < 10**6 // 32
    check_kept(run)
    assert run.training.last_eval is None


def watch_acting(patch: pytest.MonkeyPatch, note: Callable[[], None]) -> None:
    """`note` is called wherever a policy of either kind acts."""
    for kind in (DensePolicy, TorchPolicy):
        act = kind.act

        def watched(self: ModelPolicy, *rows: Any, act: Callable[..., Any] = act) -> Any:
            note()
            return act(self, *rows)

        patch.setattr(kind, "act", watched)


@pytest.mark.parametrize(
    ("wish", "on_loop"),
    [
        ({}, True),
        ({"mode": "lag 1"}, False),
        pytest.param({"hidden_sizes": (2048, 2048)}, False, marks=pytest.mark.slow),
    ],
)
async def test_acting_is_on_the_loop_where_nothing_waits(
    tmp_path: Path, server: str, wish: dict[str, Any], on_loop: bool
) -> None:
    """In sync mode with a small network; else a forward would hold up the lanes, or the learner's thread."""
    threads: set[str] = set()

    def note() -> None:
        threads.add(threading.current_thread().name)

    run = TinyRun(tmp_path, tiny_config(tmp_path, total_timesteps=64, **wish))
    with pytest.MonkeyPatch.context() as patch:
        watch_acting(patch, note)
        async with run.running(server):
            await run.until(lambda: run.training.state == "evaluating")
            trained_in = set(threads)
            run.training.stop()
    assert (threading.main_thread().name in trained_in) is on_loop


@pytest.mark.skipif(OneCore.here() is None, reason="there are no cores to choose from")
@pytest.mark.parametrize(
    ("wish", "one_core"),
    [
        ({}, True),
        ({"learner_threads": 2}, False),
        ({"act_threads": 2}, False),
        pytest.param({"hidden_sizes": (2048, 2048)}, False, marks=pytest.mark.slow),
    ],
)
async def test_a_run_that_takes_turns_stays_on_one_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wish: dict[str, Any], one_core: bool
) -> None:
    """Policy and learner where the server is, unless either computes with several threads; then as before."""
    found: set[int] = set()
    update = PPO.update

    def note() -> None:
        if run.training.state == "training":
            found.add(len(os.sched_getaffinity(0)))

    def watched_update(self: PPO, *unrolls: Any) -> Any:
        found.add(len(os.sched_getaffinity(0)))
        return update(self, *unrolls)

    watch_acting(monkeypatch, note)
    monkeypatch.setattr(PPO, "update", watched_update)
    before = os.sched_getaffinity(0)
    run = TinyRun(tmp_path, tiny_config(tmp_path, lanes=1, total_timesteps=64, **wish))
    await run.run()
    assert found == {1 if one_core else len(before)}
    assert os.sched_getaffinity(0) == before


async def test_curves_can_be_thinned(tmp_path: Path, server: str) -> None:
    """A point for each multiple of 100 steps that rounds of 32 pass, and one for the last round."""
    run = TinyRun(tmp_path, tiny_config(tmp_path, total_timesteps=320, log_every=100))
    await run.run(server)
    assert [step for step, row in run.notes.rows if "charts/learning_rate" in row] == [128, 224, 320]


@pytest.mark.parametrize("mode", ["sync", "lag 2", "async"])
async def test_a_run_trains_its_budget(tmp_path: Path, server: str, mode: str) -> None:
    """So many rounds and no more, also where collection is ahead; then it is evaluated and kept."""
    run = TinyRun(tmp_path, tiny_config(tmp_path, mode=mode, total_timesteps=640))
    await run.run(server)
    assert run.training.progress.round == 20
    assert run.training.learner is not None
    assert run.training.learner.standing == (20, run.training.progress.steps)
    assert [row["charts/learning_rate"] > 0 for _, row in run.notes.rows if "charts/learning_rate" in row] == [
        True
    ] * 20
    assert run.training.last_eval is not None
    assert run.training.last_eval[0] == run.training.progress.steps
    check_kept(run)


async def test_a_failing_learner_ends_the_run(tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error comes out bare; checkpoints from before stay the newest."""
    update = PPO.update

    def fails_in_the_third(self: PPO, unrolls: Sequence[Unroll], progress: float) -> dict[str, float]:
        if unrolls[0].round == 3:
            # Rounds take milliseconds here: the first checkpoint is still on its way to the disk.
            ends = time.monotonic() + 20
            while not list(run.checkpoints.glob("step_*/manifest.json")) and time.monotonic() < ends:
                time.sleep(0.01)
            raise ZeroDivisionError("nothing to divide by")
        return update(self, unrolls, progress)

    monkeypatch.setattr(PPO, "update", fails_in_the_third)
    run = TinyRun(tmp_path, tiny_config(tmp_path, checkpoint_every=1))
    with pytest.raises(LearnerFailed, match="round 4: ZeroDivisionError: nothing to divide by"):
        await run.run(server)
    assert 1 <= newest(run).manifest.info["round"] <= 3


@pytest.mark.parametrize("ends", ["is stopped", "breaks"])
async def test_a_learner_that_fails_while_it_is_stopped_keeps_nothing(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """Collection ends, on request or by an error of its own, while the update runs that fails: its error comes out, and
    half trained weights are in no checkpoint."""
    began, may_fail = failing_in_the_third(monkeypatch)
    run = TinyRun(tmp_path)

    async def end() -> None:
        await asyncio.to_thread(began.wait, 30)
        assert run.training.collector is not None
        if ends == "breaks":
            run.training.collector.fail(ConnectionFailed("the fleet is gone"))
        else:
            run.training.stop()
        await asyncio.sleep(0)
        may_fail.set()

    async with asyncio.TaskGroup() as group:
        group.create_task(end())
        with pytest.raises(LearnerFailed, match="round 3: ZeroDivisionError"):
            await run.run(server)
    assert not run.checkpoints.exists()


async def test_a_run_that_loses_its_servers_keeps_its_last_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only server is killed for good: the run ends with an error, and what it learned is there."""

    def impatient(*args: Any, **settings: Any) -> Any:
        return connect(*args, **(settings | {"give_up_s": 1.0, "resumable": False}))

    monkeypatch.setattr(serving_module, "connect", impatient)
    run = TinyRun(tmp_path, tiny_config(tmp_path, total_timesteps=10**6))
    with served("CartPole-v1", num_envs=8) as (process, address):

        async def kill() -> None:
            await run.until(lambda: run.training.progress.round >= 3)
            process.kill()

        async with asyncio.TaskGroup() as group:
            group.create_task(kill())
            with pytest.raises(ConnectionFailed, match="nothing listens"):
                await run.run(address)
    check_kept(run)
    assert run.notes.of_kind("lane_lost")


async def test_stop_while_lanes_are_built(tmp_path: Path, server: str) -> None:
    """Environments that take a minute to make: the run ends at once, with nothing kept and nothing left."""
    run = TinyRun(tmp_path, tiny_config(tmp_path, env_id="sleepy", lanes=1))
    async with run.running(server), asyncio.timeout(15):
        await run.until(lambda: run.training.state == "starting")
        await asyncio.sleep(0.5)
        run.training.stop()
    assert run.training.progress.round == 0
    assert not run.checkpoints.exists()


async def test_stop_before_it_runs(tmp_path: Path) -> None:
    """No server is asked."""
    run = TinyRun(tmp_path)
    run.training.stop()
    await run.run("127.0.0.1:1")


async def test_stop_while_it_is_evaluated(tmp_path: Path, server: str) -> None:
    """At the end, over more episodes than anybody waits for: the round is kept, the evaluation given up."""
    run = TinyRun(tmp_path, tiny_config(tmp_path, total_timesteps=96, final_eval_episodes=10**6))
    async with run.running(server), asyncio.timeout(20):
        await run.until(lambda: run.training.state == "evaluating")
        run.training.stop()
    check_kept(run)
    assert run.training.last_eval is None


async def test_stop_gives_up_the_evaluation_beside_training(tmp_path: Path, server: str) -> None:
    """One that takes longer than the rest of the run does not hold it up."""
    config = tiny_config(tmp_path, total_timesteps=10**6, eval_every=32, eval_episodes=10**6)
    run = TinyRun(tmp_path, config)
    async with run.running(server), asyncio.timeout(20):
        await run.until(lambda: run.training.progress.round >= 5)
        run.training.stop()
    check_kept(run)


async def test_a_finished_run_is_evaluated_again(tmp_path: Path, server: str) -> None:
    """Killed in its last evaluation, it goes on there: no round is trained on."""
    first = TinyRun(tmp_path, tiny_config(tmp_path, total_timesteps=96))
    await first.run(server)
    parts = newest(first).parts
    again = TinyRun(tmp_path, first.config, progress=Progress.of(parts), saved=Saved.of(parts))
    await again.run(server)
    assert again.training.learner is None
    assert again.training.last_eval == first.training.last_eval


@pytest.mark.parametrize("mode", ["sync", "lag 2"])
async def test_episodes_of_a_resumed_run_end_at_its_steps(tmp_path: Path, server: str, mode: str) -> None:
    """Collection was 600 steps ahead of the 256 that were trained on: those are not counted in the life after it."""
    progress = Progress(round=2, steps=256, collector=CollectorState(np.zeros(4, np.int64), [], 2, 856))
    config = tiny_config(tmp_path, mode=mode, num_steps=32, total_timesteps=6 * 128)
    run = TinyRun(tmp_path, config, progress=progress)
    await run.run(server)
    assert run.training.progress.steps == 6 * 128
    steps = run.notes.episode_steps
    assert steps == sorted(steps)
    assert 256 < steps[0] < steps[-1] <= (6 + 2) * 128


async def test_a_hang_is_an_event(tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An update that takes much longer than the others is told of once, while it does; the lanes stay up."""
    update, may_go = PPO.update, threading.Event()

    def hangs_in_the_fifth(self: PPO, unrolls: Sequence[Unroll], progress: float) -> dict[str, float]:
        if unrolls[0].round == 5:
            assert may_go.wait(30)
        return update(self, unrolls, progress)

    monkeypatch.setattr(PPO, "update", hangs_in_the_fifth)
    monkeypatch.setattr(training_module, "ThreadWish", partial(ThreadWish, hang_floor_s=0.2))
    run = TinyRun(tmp_path, tiny_config(tmp_path, total_timesteps=320))
    async with run.running(server):
        await run.until(lambda: run.notes.of_kind("learner_hangs"))
        assert run.training.fleet is not None
        assert run.training.fleet.lanes_up == 2
        may_go.set()
    assert len(run.notes.of_kind("learner_hangs")) == 1
    assert run.training.progress.round == 10


async def test_an_error_after_a_round_ends_the_run(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recorder that raises on the loop, in a callback: not a run that waits for ever."""
    run = TinyRun(tmp_path)

    def broken(step: int, values: Any) -> None:
        raise RuntimeError("no more paper")

    monkeypatch.setattr(run.notes, "scalars", broken)
    with pytest.raises(RuntimeError, match="no more paper"):
        await run.run(server)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"env_id": "NoSuchEnv-v0"}, "does not serve 'NoSuchEnv-v0', but CartPole-v1"),
        ({"env_id": "text"}, "(?i)text"),
        ({"env_id": "nan"}, r"environment \d gave an observation \(leaf 0\) that is NaN or infinite: --nonfinite cut"),
        ({"num_envs": 17}, "17 environments wanted .* 16 of 16 free"),
        (
            {"num_envs": 15, "eval_every": 100},
            "no room for evaluation beside training: 2 environments wanted .* 1 of 16",
        ),
    ],
)
async def test_what_servers_cannot_do_is_said_at_the_start(
    tmp_path: Path, server: str, changed: dict[str, Any], text: str
) -> None:
    """Before the first round, in one line."""
    run = TinyRun(tmp_path, tiny_config(tmp_path, num_minibatches=1, **changed))
    with pytest.raises(AsyncRLError, match=text) as caught:
        await run.run(server)
    assert "\n" not in str(caught.value)
    assert run.training.progress.round == 0


async def test_nan_is_left_out_on_request(tmp_path: Path, server: str) -> None:
    """Two rows of ten, the one into NaN and the one out of it; the event comes once for ten times as many."""
    run = TinyRun(tmp_path, tiny_config(tmp_path, env_id="nan", nonfinite="cut", num_steps=20, total_timesteps=800))
    await run.run(server)
    assert run.training.finished
    assert run.training.progress.steps == 640
    assert 1 <= len(run.notes.of_kind("nonfinite")) <= 3
    losses = [row["losses/policy_loss"] for _, row in run.notes.rows if "losses/policy_loss" in row]
    assert np.isfinite(losses).all()


async def test_servers_of_different_environments_are_refused(tmp_path: Path, server: str) -> None:
    """Two servers that mean different things by one name: said at the start, with the difference."""
    with serving("CartPole-v1=Acrobot-v1", num_envs=16) as other:
        run = TinyRun(tmp_path, tiny_config(tmp_path, num_envs=8, lanes=2, num_minibatches=1))
        with pytest.raises(SpecMismatch, match=r"serves another 'CartPole-v1': .*Acrobot-v1"):
            await run.run([server, other])
    assert run.training.progress.round == 0


async def test_room_for_training_is_enough_without_evaluations(tmp_path: Path, server: str) -> None:
    """The last evaluation makes do with the environments of training."""
    run = TinyRun(tmp_path, tiny_config(tmp_path, num_envs=16, total_timesteps=256, final_eval_episodes=20))
    await run.run(server)
    assert run.training.last_eval is not None
    assert len(run.training.last_eval[1].returns) == 20
    assert not run.notes.events


async def test_nobody_there_is_said_at_once(tmp_path: Path) -> None:
    """A port that nobody listens on."""
    run = TinyRun(tmp_path)
    with pytest.raises(ConnectionFailed):
        await run.run("127.0.0.1:9")


def test_learning_is_made_off_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: str) -> None:
    """A network that takes long to make does not stop the pings."""
    threads: list[str] = []
    made = Learning.__init__

    def watched(self: Learning, *args: Any) -> None:
        threads.append(threading.current_thread().name)
        made(self, *args)

    monkeypatch.setattr(Learning, "__init__", watched)

    async def go() -> None:
        await TinyRun(tmp_path, tiny_config(tmp_path, total_timesteps=32)).run(server)

    asyncio.run(go())
    assert threads
    assert "MainThread" not in threads
