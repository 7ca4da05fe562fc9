"""RemoteVectorEnv when environments raise, crash and hang, and its asynchronous half."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import asyncrl
from asyncrl.client.timing import LaneTimers
from asyncrl.errors import LocalProtocolError, ServerRefused
from asyncrl.gym_spaces import ActionError
from tests.rpc.serving import served, serving

pytestmark = pytest.mark.rpc

GO, END, TRUNCATE, RAISE, CRASH, HANG = range(6)
LOST = "asyncrl/lost"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with serving("on_demand=tests.rpc.simulators:OnDemand", num_envs=64) as address:
        yield address


@pytest.fixture(scope="module")
def cameras() -> Iterator[str]:
    with serving("camera=tests.rpc.simulators:Camera", num_envs=64) as address:
        yield address


def _shown(env: asyncrl.RemoteVectorEnv) -> list[bool]:
    images = env.render()
    assert images is not None
    return [image is not None for image in images]


def _make(server: str, mode: AutoresetMode = AutoresetMode.SAME_STEP, **kwargs: Any) -> asyncrl.RemoteVectorEnv:
    return asyncrl.RemoteVectorEnv("on_demand", 4, server, autoreset_mode=mode, seed=5, lanes=2, **kwargs)


def _lost(infos: dict[str, Any], num: int = 4) -> list[bool]:
    mask = infos.get(LOST, np.zeros(num, np.bool_))
    np.testing.assert_array_equal(mask, infos.get(f"_{LOST}", mask))
    return list(mask.tolist())


def _step_until_back(env: asyncrl.RemoteVectorEnv, row: int) -> tuple[Any, int]:
    """Steps until the row has an environment whose first observation shows; that step, and how many came before."""
    for waits in range(2000):
        step = env.step([GO] * 4)
        if step[0][row, 1] == 0:
            return step, waits
        assert step[3][row]
        assert _lost(step[4])[row]
    raise AssertionError("no replacement came")


@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_lost_lane_is_truncated_until_its_replacement_has_arrived(server: str, mode: AutoresetMode) -> None:
    """Its rows repeat the last observation; the row of the replacement is no transition either; others go on."""
    env = _make(server, mode)
    first, _ = env.reset(seed=1)
    env.step([GO] * 4)
    obs, rewards, terminated, truncated, infos = env.step([GO, CRASH, GO, GO])
    np.testing.assert_array_equal(obs[:, 1], [1, 1, 2, 2])
    np.testing.assert_array_equal(obs[:, 0], first[:, 0])
    assert rewards.tolist() == [0, 0, 1, 1]
    assert truncated.tolist() == [True, True, False, False]
    assert not terminated.any()
    assert _lost(infos) == [True, True, False, False]
    if mode is AutoresetMode.SAME_STEP:
        np.testing.assert_array_equal(infos["final_obs"][1], obs[1])
    (obs, rewards, _, truncated, infos), waits = _step_until_back(env, 0)
    assert truncated.tolist() == [True, True, False, False]
    assert _lost(infos) == [True, True, False, False]
    assert rewards.tolist() == [0, 0, 1, 1]
    assert obs[0, 0] != first[0, 0]
    np.testing.assert_array_equal(obs[2:, 1], [3 + waits] * 2)
    if mode is AutoresetMode.SAME_STEP:
        np.testing.assert_array_equal(infos["final_obs"][0], [first[0, 0], 1])
    # No action reached the replacement before its first observation was seen.
    obs, rewards, _, truncated, infos = env.step([GO] * 4)
    np.testing.assert_array_equal(obs[:2, 1], [1, 1])
    assert rewards.tolist() == [1] * 4
    assert not truncated.any()
    assert LOST not in infos
    env.close()


def test_an_action_never_reaches_a_replacement(server: str) -> None:
    """A lane that is lost and replaced while the caller thinks is told as lost before it is stepped again."""
    env = _make(server)
    env.reset(seed=1)
    env.step([GO] * 4)
    lane = env.fleet.lanes[0]
    client = lane.client
    env.step([CRASH, GO, GO, GO])
    while lane.client is client or not lane.up or lane.in_flight:  # the replacement is there, with its first rows
        time.sleep(0.01)
    (_, _, _, truncated, _), waits = _step_until_back(env, 0)
    assert waits == 0
    assert truncated[0]
    assert env.step([GO] * 4)[0][0, 1] == 1
    env.close()


def test_an_exception_costs_its_slot_alone(server: str) -> None:
    """The row is truncated and lost, with the last observation as its final one; its neighbour in the lane steps."""
    env = _make(server)
    env.reset(seed=1)
    env.step([GO] * 4)
    obs, rewards, terminated, truncated, infos = env.step([RAISE, GO, END, TRUNCATE])
    assert terminated.tolist() == [False, False, True, False]
    assert truncated.tolist() == [True, False, False, True]
    assert rewards.tolist() == [0, 1, 1, 1]
    assert _lost(infos) == [True, False, False, False]
    np.testing.assert_array_equal(infos["_final_obs"], [True, False, True, True])
    assert infos["final_obs"][0][1] == 1
    assert infos["final_obs"][2][1] == 2
    np.testing.assert_array_equal(obs[:, 1], [0, 2, 0, 0])
    np.testing.assert_array_equal(env.step([GO] * 4)[0][:, 1], [1, 3, 1, 1])
    env.close()


def test_replacements_are_seeded_by_the_run(server: str) -> None:
    """Two runs with one seed and the same faults see the same episodes."""
    seen = []
    for _ in range(2):
        env = _make(server)
        env.reset(seed=1)
        env.step([GO] * 4)  # away from t = 0, by which a replacement is known
        env.step([RAISE, CRASH, GO, RAISE])
        (obs, *_), _ = _step_until_back(env, 0)
        seen.append(obs[:, 0])
        env.close()
    np.testing.assert_array_equal(*seen)


def test_step_never_hangs(server: str) -> None:
    """An environment that hangs costs its lane within the deadline; the caller gets rows."""
    env = _make(server, step_timeout_s=1.0)
    env.reset(seed=1)
    env.step([GO] * 4)
    _, _, _, truncated, infos = env.step([HANG, GO, GO, GO])
    assert truncated.tolist() == [True, True, False, False]
    assert _lost(infos) == [True, True, False, False]
    _step_until_back(env, 0)
    env.close()


def test_a_reset_waits_for_replacements(server: str) -> None:
    """reset() after a loss resets the replacement, with the caller's seeds."""
    env = _make(server)
    wanted, _ = env.reset(seed=1)
    env.step([CRASH, GO, GO, GO])
    obs, infos = env.reset(seed=1)
    np.testing.assert_array_equal(obs, wanted)
    assert LOST not in infos
    np.testing.assert_array_equal(env.step([GO] * 4)[0][:, 1], [1] * 4)
    env.close()


@pytest.mark.slow
def test_a_wait_is_bounded() -> None:
    """With the only server gone, calls give lost rows after their deadline instead of waiting for ever."""
    with served("on_demand=tests.rpc.simulators:OnDemand", num_envs=4) as (server, address):
        env = _make(address, step_timeout_s=0.5)
        env.reset(seed=1)
        env.step([GO] * 4)
        os.kill(server.pid, signal.SIGKILL)
        for _ in range(2):
            obs, _, _, truncated, infos = env.step([GO] * 4)
            assert truncated.all()
            assert _lost(infos) == [True] * 4
            np.testing.assert_array_equal(obs[:, 1], [1] * 4)
        env.close()


def test_ragged_infos_end_no_step() -> None:
    """Environments whose infos grow: rows that are longer than those of the first lane have none."""
    with serving("ragged=tests.rpc.simulators:Ragged", num_envs=4) as address:
        env = asyncrl.RemoteVectorEnv("ragged", 2, address, lanes=2)
        env.reset()
        _, rewards, _, _, infos = env.step([2, 2])
        assert infos["_seen"].tolist() == [True, True]
        _, rewards, _, _, infos = env.step([0, 1])
        assert rewards.tolist() == [1, 1]
        assert infos["_seen"].tolist() == [True, False]
        np.testing.assert_array_equal(infos["seen"], [[1, 1], [0, 0]])
        env.close()


@pytest.mark.parametrize("fault", [2, 3])
def test_a_lane_that_is_lost_while_it_renders_shows_nothing(
    cameras: str, fault: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it crashes, or hangs for longer than a step may take: the others' images come, and so does the loss."""
    # Requests other than steps may take longer than this test, but not these.
    monkeypatch.setattr("asyncrl.vector.LaneTimers", partial(LaneTimers, other_s=600.0))
    env = asyncrl.RemoteVectorEnv("camera", 4, cameras, lanes=2, render_mode="rgb_array", step_timeout_s=3.0)
    env.reset()
    env.step([fault, 0, 0, 0])
    assert _shown(env) == [False, False, True, True]
    truncated = env.step([0] * 4)[3]
    assert truncated.tolist() == [True, True, False, False]
    while env.step([0] * 4)[3].any():
        pass
    assert _shown(env) == [True] * 4
    env.close()


def test_an_environment_that_waits_to_be_rebuilt_shows_nothing(server: str) -> None:
    """Its neighbour in the lane is shown all the same."""
    env = _make(server, render_mode="rgb_array")
    env.reset()
    for _ in range(2):  # the first fault is forgiven at once
        env.step([RAISE, GO, GO, GO])
    assert _shown(env) == [False, True, True, True]
    env.close()


def test_an_environment_that_raises_instead_of_rendering_says_so(cameras: str) -> None:
    """It is no loss; the error names what it raised, and the next step is as good as ever."""
    env = asyncrl.RemoteVectorEnv("camera", 2, cameras, lanes=2, render_mode="rgb_array")
    env.reset()
    env.step([1, 0])
    with pytest.raises(ServerRefused, match="no light"):
        env.render()
    assert not env.step([0, 0])[3].any()
    assert _shown(env) == [True, True]
    env.close()


def test_step_async_and_step_wait_are_a_step(server: str) -> None:
    """The same arrays, over a lost lane too; actions may be written over while they are on their way."""
    env = _make(server)
    env.reset(seed=1)
    actions = np.array([GO, GO, GO, GO])
    for t in range(1, 4):
        env.step_async(actions)
        actions[:] = END
        obs, rewards, _, truncated, _ = env.step_wait()
        np.testing.assert_array_equal(obs[:, 1], [t] * 4)
        assert rewards.tolist() == [1] * 4
        actions[:] = GO
    with pytest.raises(LocalProtocolError, match="no step"):
        env.step_wait()
    env.step_async([CRASH, GO, GO, GO])
    env.step_wait()
    env.step_async([GO, GO, GO, GO])
    obs, _, _, truncated, infos = env.step_wait()
    assert truncated.tolist() == [True, True, False, False]
    assert _lost(infos) == [True, True, False, False]
    np.testing.assert_array_equal(obs[2:, 1], [5, 5])
    env.close()


# ------------------------------------------------------------------------------------------------ send and recv


def test_send_and_recv_give_the_rows_of_step(server: str) -> None:
    """Lane by lane, in whatever order, every environment goes through what `step` shows of it."""
    sync, pooled = _make(server), _make(server)
    actions = np.random.default_rng(0).integers(0, 3, (30, 4))
    wanted = [sync.reset(seed=1)[0]] + [sync.step(row)[0] for row in actions]
    pooled.async_reset(seed=1)
    progress = np.zeros(4, int)
    while progress.min() <= 20:
        obs, _, _, _, infos = pooled.recv()
        ids = infos["env_id"]
        assert len(obs) == len(ids) == 2
        for row, slot in enumerate(ids):
            np.testing.assert_array_equal(obs[row], wanted[progress[slot]][slot])
        # Not in the order of the slots: send sorts.
        order = ids[::-1]
        pooled.send(actions[progress[order], order], order)
        progress[ids] += 1
        if progress.max() >= 29:
            break
    sync.close()
    pooled.close()


def test_a_batch_of_all_slots_is_a_step(server: str) -> None:
    """batch_size counts slots; with all of them recv waits for every lane."""
    env = _make(server, batch_size=4)
    env.async_reset(seed=1)
    for t in range(3):
        obs, _, _, _, infos = env.recv()
        np.testing.assert_array_equal(infos["env_id"], [0, 1, 2, 3])
        np.testing.assert_array_equal(obs[:, 1], [t] * 4)
        env.send([GO] * 4, infos["env_id"])
    env.close()


def test_a_lost_lane_does_not_stop_the_others(server: str) -> None:
    """The others' rows keep coming while it is replaced; then its own come again, marked."""
    env = _make(server)
    env.async_reset(seed=1)
    crashed, returned, others = False, False, 0
    for _ in range(5000):
        obs, _, _, truncated, infos = env.recv()
        ids = infos["env_id"]
        actions = np.full(len(ids), GO)
        if 0 in ids:
            row = ids.tolist().index(0)
            lost = _lost(infos, len(ids))[row]
            assert lost == truncated[row]
            returned = returned or (lost and obs[row, 1] == 0)
            if returned and not lost:
                assert obs[row, 1] == 1
                break
            if not crashed:
                actions[row], crashed = CRASH, True
        elif crashed:
            others += 1
        env.send(actions, ids)
    assert returned
    assert others
    env.close()


def test_misuse_of_send_and_recv_is_refused(server: str) -> None:
    """Parts of lanes, lanes that owe rows, and calls that would wait for ever raise at once; nothing is sent."""
    env = _make(server)
    with pytest.raises(LocalProtocolError, match="async_reset"):
        env.recv()
    env.async_reset(seed=1)
    with pytest.raises(LocalProtocolError, match="owe rows"):
        env.step([GO] * 4)
    with pytest.raises(LocalProtocolError, match="owe rows"):
        env.reset()
    ids = env.recv()[4]["env_id"]
    with pytest.raises(ActionError, match="part of a lane"):
        env.send([GO], ids[:1])
    with pytest.raises(ActionError, match="integers"):
        env.send([GO, GO], [7, 8])
    with pytest.raises(LocalProtocolError, match="still owes rows"):
        env.send([GO] * 4, [0, 1, 2, 3])
    env.send([GO, GO], ids)
    env.recv()
    env.recv()
    assert env.reset(seed=1)[0].shape == (4, 2)
    env.close()


def test_a_refused_action_leaves_the_other_lanes_rows(server: str) -> None:
    """BAD_ACTION of one lane is raised by recv; what else has arrived comes with the next call."""
    env = _make(server, batch_size=4)
    env.async_reset(seed=1)
    ids = env.recv()[4]["env_id"]
    env.send([GO, GO, 17, GO], ids)
    with pytest.raises(ServerRefused, match="BAD_ACTION"):
        env.recv()
    obs, _, _, _, infos = env.recv()
    np.testing.assert_array_equal(infos["env_id"], [0, 1])
    np.testing.assert_array_equal(obs[:, 1], [1, 1])
    env.send([GO, GO], [2, 3])
    np.testing.assert_array_equal(env.recv()[0][:, 1], [1, 1])
    env.close()
