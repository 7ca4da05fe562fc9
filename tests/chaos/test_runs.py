"""Rows E: training runs that are stopped, killed twice, or learn from lanes that die all the time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncrl.records import Unroll
from asyncrl.run.checkpoints import load_newest
from asyncrl.run.result import read_result
from asyncrl.run.row_files import read_metrics
from asyncrl.run.run_dir import RunDir
from tests.rig.census import descendants
from tests.rig.processes import EnvServerProcess, child_environment
from tests.rpc.serving import serving
from tests.unit.run.odd_networks import STUCK_VARIABLE
from tests.unit.run.tiny_training import TinyRun, tiny_config

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(120)]

SIGNALS = [signal.SIGTERM, signal.SIGINT]
STATUS_S = 25.0


@contextmanager
def training(
    run_dir: Path, *options: str, env: str = "CartPole-v1", **variables: str
) -> Iterator[subprocess.Popen[str]]:
    """`asyncrl train ppo` as a process that leads a group, as a terminal starts it."""
    command = [sys.executable, "-m", "asyncrl", "train", "ppo", "--env-id", env, "--run-dir", str(run_dir)]
    command += ["--run-name", "x", "--num-envs", "4", "--lanes", "2", "--num-steps", "16", "--no-track"]
    command += ["--total-timesteps", "100000000", "--eval-envs", "2", *options]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=child_environment(PYTHONUNBUFFERED="1", **variables),
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        with contextlib.suppress(ValueError):  # it was read to its end
            process.communicate()


def rows(run_dir: Path) -> list[dict[str, Any]]:
    return list(read_metrics(RunDir(run_dir / "x").metrics))


def until(condition: Any, process: subprocess.Popen[str]) -> None:
    ends = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < ends
        time.sleep(0.01)


def ended(process: subprocess.Popen[str], within_s: float = STATUS_S, gone_s: float = 0.3) -> tuple[int, str, str]:
    """Status, output and errors; `gone_s` later nothing below it is left."""
    below = list(descendants(process.pid))
    out, errors = process.communicate(timeout=within_s)
    ends = time.monotonic() + gone_s
    while left := [pid for pid in below if _runs(pid)]:
        assert time.monotonic() < ends, left
        time.sleep(0.01)
    return process.returncode, out, errors


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def is_at(run_dir: Path, moment: str) -> bool:
    """Whether the run has come to one of the moments that the test below is about."""
    checkpoints = run_dir / "x" / "checkpoints"
    match moment:
        case "made":
            return (run_dir / "x" / "lives.json").exists()
        case "training":
            return any("losses/policy_loss" in row for row in rows(run_dir))
        case "kept":
            return any(checkpoints.glob("step_*/manifest.json"))
    raise AssertionError(moment)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 17))])
@pytest.mark.parametrize("moment", ["made", "training", pytest.param("kept", marks=pytest.mark.slow)])
def test_E1_a_signal_ends_with_a_checkpoint(tmp_path: Path, moment: str, seed: int) -> None:
    """At a seeded time after a moment, the signal to the whole group as Ctrl-C is: status 0, the last round kept.

    Checkpoints are written and evaluations played all the while.
    """
    rng = random.Random(f"{moment} {seed}")
    number = rng.choice(SIGNALS)
    options = ["--checkpoint-every", "256", "--eval-every", "256", "--eval-episodes", "20"]
    with training(tmp_path, *options) as process:
        until(lambda: is_at(tmp_path, moment), process)
        time.sleep(rng.uniform(0, 2.0))
        (os.killpg if rng.random() < 0.5 else os.kill)(process.pid, number)
        status, out, errors = ended(process)
    assert status == 0, (out, errors)
    assert f"{number.name}: stops after this round" in out
    assert "Traceback" not in errors
    if not (tmp_path / "x").exists():
        assert moment == "made"
        assert "nothing is kept" in out
        return
    newest = load_newest(tmp_path / "x" / "checkpoints")
    trained = [row["step"] for row in rows(tmp_path) if "losses/policy_loss" in row]
    assert newest.step == trained[-1]
    assert newest.manifest.info["round"] == len(trained)
    assert f"--resume {tmp_path / 'x'}" in out
    assert read_result(tmp_path / "x" / "result.json") is None


def test_E1_a_signal_before_there_is_a_run(tmp_path: Path) -> None:
    """While torch is imported: status 0, and no directory."""
    with training(tmp_path) as process:
        until(lambda: "libtorch" in Path(f"/proc/{process.pid}/maps").read_text(), process)
        process.send_signal(signal.SIGTERM)
        status, _, errors = ended(process)
    assert status == 0, errors
    assert not list(tmp_path.iterdir())


def test_E1_a_signal_while_lanes_are_built(tmp_path: Path) -> None:
    """Environments that take a minute to make."""
    with training(tmp_path, env="sleepy=tests.unit.run.odd_envs:slow_to_make") as process:
        until(lambda: is_at(tmp_path, "made"), process)
        time.sleep(1.0)
        process.send_signal(signal.SIGTERM)
        status, out, errors = ended(process)
    assert status == 0, errors
    assert "nothing is kept" in out
    assert not list(tmp_path.iterdir())


def test_E1_a_signal_in_the_last_evaluation(tmp_path: Path) -> None:
    """Over more episodes than anybody waits for: the run is at its end, but without a result."""
    options = ["--final-eval-episodes", "100000000", "--total-timesteps", "256"]
    with training(tmp_path, *options) as process:
        until(lambda: is_at(tmp_path, "kept"), process)
        time.sleep(1.0)
        process.send_signal(signal.SIGINT)
        status, _, errors = ended(process)
    assert status == 0, errors
    assert load_newest(tmp_path / "x" / "checkpoints").step == 256


def test_E1_the_second_signal_ends_at_once(tmp_path: Path) -> None:
    """An update that takes for ever is not waited for; the checkpoint of before stays, and no server is left."""
    stuck = tmp_path / "stuck"
    options = ["--network", "tests.unit.run.odd_networks:sticking", "--update-epochs", "1", "--num-minibatches", "1"]
    with training(tmp_path, *options, "--checkpoint-every", "64", **{STUCK_VARIABLE: str(stuck)}) as process:
        # That of round 2 is left out if the disk was still busy with that of round 1.
        until(lambda: stuck.exists() and is_at(tmp_path, "kept"), process)
        kept = load_newest(tmp_path / "x" / "checkpoints").step
        process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        # Below `StopSignals`' own patience: that a round which does not end is cut short would pass for this.
        # The server sees the end of its standard input.
        status, _, errors = ended(process, 10.0, gone_s=20.0)
    assert status == 128 + signal.SIGTERM, errors
    assert kept <= load_newest(tmp_path / "x" / "checkpoints").step <= 128


def test_E5_a_loss_that_is_not_finite_ends_with_one_line(tmp_path: Path) -> None:
    """A learning rate that blows the weights up: status 1, one line, and checkpoints of before."""
    with training(tmp_path, "--learning-rate", "1e30", "--checkpoint-every", "64", "--max-grad-norm", "0") as process:
        out, errors = process.communicate(timeout=60)
    assert process.returncode == 1, (out, errors)
    lines = [text for text in errors.splitlines() if text.startswith("asyncrl: ")]
    assert len(lines) == 1
    assert "NonFinite" in lines[0] or "NaN" in lines[0] or "nan" in lines[0]
    assert "Traceback" not in errors


def test_E8_a_killed_run_has_its_lanes_back_at_once(tmp_path: Path) -> None:
    """SIGKILL before the first checkpoint on a server with room for one run: the next life goes on at once."""
    with serving("CartPole-v1", num_envs=4) as address:
        options = ["--servers", address, "--eval-every", "0", "--checkpoint-every", "0"]
        with training(tmp_path, *options) as process:
            until(lambda: len(rows(tmp_path)) > 2, process)
            process.kill()
        with training(tmp_path, *options, "--total-timesteps", "640", "--final-eval-episodes", "4") as process:
            out, errors = process.communicate(timeout=25)
        assert process.returncode == 0, (out, errors)
    steps = [row["step"] for row in rows(tmp_path) if "losses/policy_loss" in row]
    assert steps == list(range(64, 641, 64))


class Watch:
    """What the learner gets, checked row by row."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from asyncrl.learner.ppo import PPO

        self.short = self.cuts = self.steps = 0
        update = PPO.update

        def watched(ppo: PPO, unrolls: Sequence[Unroll], progress: float) -> dict[str, float]:
            for unroll in unrolls:
                self._check(unroll)
            return update(ppo, unrolls, progress)

        monkeypatch.setattr(PPO, "update", watched)

    def _check(self, unroll: Unroll) -> None:
        valid, ended = unroll.valid, unroll.ended
        self.steps += unroll.num_valid
        self.cuts += int(unroll.cut.sum())
        assert not (unroll.cut & (unroll.terminated | unroll.truncated)).any()
        if valid.all():
            return
        self.short += 1
        after = np.zeros_like(valid)
        after[:-1] = valid[1:]
        last = valid & ~after
        last[-1] = False
        # CartPole terminates beyond 12 degrees or 2.4: whatever else ends here was cut, and has its observation.
        assert ended[last].all()
        ends = {tuple(row): index for index, row in enumerate(unroll.end_rows.tolist())}
        for t, b in np.argwhere(unroll.cut).tolist():
            following = unroll.end_obs[0][ends[t, b]]
            assert np.abs(following - unroll.obs[0][t, b]).max() < 1.0  # of the same episode, one step on
        for t, b in np.argwhere(unroll.terminated).tolist():
            x, _, angle, _ = unroll.obs[0][t, b]
            assert abs(x) > 2.2 or abs(angle) > 0.1


@pytest.mark.parametrize("mode", [pytest.param("sync", marks=pytest.mark.slow), "async"])
async def test_lanes_that_die_all_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """Four servers, a lane killed every half second: training goes on, every loss is an event, the room comes back."""
    watch = Watch(monkeypatch)
    config = tiny_config(tmp_path, mode=mode, num_envs=16, lanes=8, num_steps=32, total_timesteps=10**7)
    run = TinyRun(tmp_path, config)
    rng, killed = random.Random(5), 0
    async with AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(
                EnvServerProcess(tmp_path, num_envs=8, envs=["CartPole-v1"], name=f"server{number}")
            )
            for number in range(4)
        ]
        async with run.running([server.address for server in servers]):
            await run.until(lambda: run.training.progress.round >= 2)
            fleet = run.training.fleet
            assert fleet is not None
            for _ in range(6):
                os.kill(rng.choice(rng.choice(servers).lane_pids()), signal.SIGKILL)
                killed += 1
                await asyncio.sleep(0.5)
                steps = run.training.progress.steps
            await run.until(lambda: fleet.lanes_up == 8)
            await run.until(lambda: run.training.progress.steps > steps + 2000)
            losses = fleet.stats.faults["lane_lost"]
            run.training.stop()
    assert killed - 1 <= losses <= killed
    assert len(run.notes.of_kind("lane_lost")) == losses == sum(run.training.log.losses_by_lane.values())
    assert watch.short > 0
    assert watch.cuts > 0
    assert watch.steps >= run.training.progress.steps
    print(f"{mode}: {losses} lanes lost, {watch.short} short unrolls, {watch.cuts} rows cut, {watch.steps:,} steps")


@pytest.mark.slow  # a comparison of rates wants the machine for itself
async def test_a_dozing_lane_slows_no_other(tmp_path: Path) -> None:
    """Eight lanes, async; one of them takes ten times as long in every other window: the seven keep their rate."""
    flag = tmp_path / "doze"
    kwargs = json.dumps({"flag": str(flag)})
    config = tiny_config(
        tmp_path, env_id="doze", mode="async", num_envs=8, lanes=8, num_steps=16, total_timesteps=10**7
    )
    run = TinyRun(tmp_path, config)
    windows: dict[bool, list[int]] = {False: [], True: []}
    dozer: list[int] = []
    async with AsyncExitStack() as stack:
        doze = EnvServerProcess(tmp_path, num_envs=8, envs=[f"doze=tests.unit.run.odd_envs:Dozing{kwargs}"])
        server = await stack.enter_async_context(doze)
        async with run.running(server.address):
            await run.until(lambda: run.training.progress.round >= 2)
            assert run.training.collector is not None
            counted = run.training.collector.stats.steps_by_lane
            for number in range(8):
                dozes = number % 2 == 1
                flag.touch() if dozes else flag.unlink(missing_ok=True)
                await asyncio.sleep(0.2)
                before, began = counted.copy(), time.monotonic()
                await asyncio.sleep(1.5)
                seconds = time.monotonic() - began
                windows[dozes].append(int(sum(counted[lane] - before[lane] for lane in range(1, 8)) / seconds))
                dozer.append(counted[0] - before[0])
            run.training.stop()
    awake, asleep = max(windows[False]), max(windows[True])
    print(f"seven lanes: {windows[False]} steps/s beside one that is awake, {windows[True]} beside one that dozes")
    assert max(dozer[1::2]) < min(dozer[::2]) / 3
    assert asleep >= 0.95 * awake
