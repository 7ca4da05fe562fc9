"""Evaluation, over env servers of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncrl.client.connecting import connect
from asyncrl.policy import Acted
from asyncrl.run import evaluation
from asyncrl.run.evaluation import EndlessEpisode, Evaluation, evaluate, shares
from asyncrl.run.learning import Learning
from asyncrl.wire.tensors import Array
from tests.unit.run.tiny_training import tiny_config

pytestmark = pytest.mark.rpc


class Balance:
    """Pushes the cart towards where the pole falls, by rows alone; dies after `kill_after` forwards if told to."""

    def __init__(self, kill_after: int = -1) -> None:
        self.forwards = 0
        self.keys: Counter[int] = Counter()
        self._kill_after = kill_after

    def act(
        self, obs: Sequence[Array], mask: Array | None, first: Array, carry: Sequence[Array], keys: Array | None
    ) -> Acted:
        self.forwards += 1
        if self.forwards == self._kill_after:
            kill_a_lane()
        assert keys is not None
        self.keys.update(keys.tolist())
        action = (obs[0][:, 2] > 0).astype(np.int64)
        return Acted([action], np.zeros(len(first), np.float32), np.zeros(len(first), np.float32), 0)


def descendants(pid: int) -> list[int]:
    children = [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return children + [deeper for child in children for deeper in descendants(child)]


def kill_a_lane() -> None:
    """The youngest process below this one."""
    os.kill(max(descendants(os.getpid())), signal.SIGKILL)


async def play(policy: Balance, episodes: int, num_envs: int = 4, **settings: Any) -> Evaluation:
    fleet = connect(env="CartPole-v1", num_envs=num_envs, lanes=2, auto_reset=False, seed=7, **settings)
    async with fleet as opened:
        return await evaluate(opened, policy, episodes, seed=7)


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
async def test_every_slot_plays_its_share(autoreset: str) -> None:
    """Seven episodes over four slots are 2, 2, 2 and 1, of the lengths that their returns say."""
    policy = Balance()
    found = await play(policy, 7, autoreset=autoreset)
    assert len(found.returns) == len(found.lengths) == 7
    assert found.returns == tuple(map(float, found.lengths))
    assert shares(7, 4) == [2, 2, 2, 1]
    assert max(policy.keys.values()) == 1
    assert found.mean > 25


async def test_an_evaluation_repeats_itself() -> None:
    """Twice on one fleet, and again on another: the slots are reset by seed."""
    async with connect(env="CartPole-v1", num_envs=4, lanes=2, auto_reset=False) as fleet:
        first = await evaluate(fleet, Balance(), 8, seed=3)
        assert await evaluate(fleet, Balance(), 8, seed=3) == first
        assert await evaluate(fleet, Balance(), 8, seed=4) != first
    async with connect(env="CartPole-v1", num_envs=4, lanes=2, auto_reset=False) as fleet:
        assert await evaluate(fleet, Balance(), 8, seed=3) == first


async def test_fewer_episodes_than_slots() -> None:
    """Slots without a share are not waited for."""
    assert len((await play(Balance(), 1)).returns) == 1


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the lane in /proc")
async def test_a_lost_lane_plays_again() -> None:
    """Whole episodes alone count, and all of them are there in the end."""
    found = await play(Balance(kill_after=40), 8)
    assert len(found.returns) == 8
    assert found.returns == tuple(map(float, found.lengths))


async def test_an_episode_that_never_ends_ends_the_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Games shorter than the limit count one after the other; a slot that is past it is not waited for."""
    monkeypatch.setattr(evaluation, "MAX_EPISODE_STEPS", 200)
    found = await play(Balance(), 24)
    assert sum(found.lengths) / 4 > 200 > max(found.lengths)
    monkeypatch.setattr(evaluation, "MAX_EPISODE_STEPS", 20)
    with pytest.raises(EndlessEpisode, match="an episode has not ended after 20 steps"):
        await play(Balance(), 24)


async def test_an_error_of_the_policy_ends_it() -> None:
    """It reaches whoever asked for the evaluation."""

    class Broken(Balance):
        def act(self, *args: object) -> Acted:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await play(Broken(), 1)


async def test_a_cancelled_evaluation_leaves_nothing_unsaid() -> None:
    """In the middle of a forward or between two: no error that nobody has heard of."""

    class Slow(Balance):
        def act(
            self, obs: Sequence[Array], mask: Array | None, first: Array, carry: Sequence[Array], keys: Array | None
        ) -> Acted:
            time.sleep(0.005)
            return super().act(obs, mask, first, carry, keys)

    async with connect(env="CartPole-v1", num_envs=4, lanes=2, auto_reset=False) as fleet:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await evaluate(fleet, Slow(), 10**6, seed=3)


async def test_a_policy_with_a_memory_is_evaluated(tmp_path: Path) -> None:
    """Nobody gives it a carry for the first step; after that it has its own."""
    config = tiny_config(tmp_path, gru_size=8)
    fleet = connect(env="CartPole-v1", num_envs=4, lanes=2, auto_reset=False, seed=7)
    async with fleet as opened:
        assert opened.spec is not None
        policy = Learning(config, opened.spec).frozen_policy(deterministic=True)
        found = await evaluate(opened, policy, 6, seed=7)
    assert len(found.returns) == 6
