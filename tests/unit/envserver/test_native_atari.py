"""ALE's vector environment behind the host seam, against Gymnasium's wrappers and against the slots."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from ale_py import vector_env
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation, TimeLimit

from asyncrl.errors import ServerRefused
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.flags import FIRST, NO_TRANSITION, SOFT, TERMINATED, TRUNCATED
from asyncrl.wire.requests import ResetRequest
from asyncrl.wire.step_rows import StepRows
from envserver.native_atari import MEASURED, ale_version
from tests.unit.envserver.driving import Driver, build, seeds

pytestmark = pytest.mark.skipif(ale_version() < MEASURED, reason="this ale-py has no vector environment to rely on")
EXACT = '"noop_max":0,"repeat_action_probability":0'


def wrapped(game: str, limit: int) -> gymnasium.Env[Any, Any]:
    """What users of Gymnasium build by hand."""
    env: gymnasium.Env[Any, Any] = gymnasium.make(f"ALE/{game}-v5", frameskip=1, repeat_action_probability=0.0)
    env = TimeLimit(AtariPreprocessing(env, noop_max=0), limit)
    return FrameStackObservation(env, 4, padding_type="zero")


def same_rows(ours: StepRows, theirs: StepRows) -> None:
    np.testing.assert_array_equal(ours.flags, theirs.flags)
    np.testing.assert_array_equal(ours.rewards, theirs.rewards)
    np.testing.assert_array_equal(ours.obs[0], theirs.obs[0])
    np.testing.assert_array_equal(ours.final_rows, theirs.final_rows)
    for mine, other in zip(ours.final_obs, theirs.final_obs, strict=True):
        np.testing.assert_array_equal(mine, other)
    assert (ours.stats is None) == (theirs.stats is None)
    if ours.stats is not None and theirs.stats is not None:
        np.testing.assert_array_equal(ours.stats.returns, theirs.stats.returns)
        np.testing.assert_array_equal(ours.stats.lengths, theirs.stats.lengths)


@pytest.mark.parametrize(("game", "limit", "steps"), [("Pong", 70, 150), ("Breakout", 200, 420)])
def test_native_frames_equal_those_of_gymnasium(game: str, limit: int, steps: int) -> None:
    """Stacks, rewards, ends and final stacks are those of AtariPreprocessing under FrameStackObservation."""
    option = f'g=ALE/{game}-v5{{{EXACT},"max_episode_steps":{limit}}}'
    driver = Driver(build(option, 2, host=pb.NATIVE), 2)
    envs = [wrapped(game, limit) for _ in range(2)]
    rows = driver.reset(seeds(0, 2))
    for row, env in enumerate(envs):
        np.testing.assert_array_equal(rows.obs[0][row], env.reset(seed=row)[0])
    rng, ends = np.random.default_rng(1), {TERMINATED: 0, TRUNCATED: 0}
    for _ in range(steps):
        action = rng.integers(4, size=2)
        rows = driver.step([action])
        finals = dict(zip(rows.final_rows.tolist(), rows.final_obs[0] if len(rows.final_rows) else [], strict=True))
        for row, env in enumerate(envs):
            obs, reward, terminated, truncated, info = env.step(int(action[row]))
            assert rows.rewards[row] == reward
            flag = TERMINATED if terminated else TRUNCATED if truncated else 0
            assert rows.flags[row] == (flag | FIRST if flag else 0)
            if flag:
                ends[flag] += 1
                np.testing.assert_array_equal(finals[row], obs)
                obs, info = env.reset()
            np.testing.assert_array_equal(rows.obs[0][row], obs)
            for column in rows.infos:
                if column.key != "frame_number":  # counts resets differently
                    assert column.data[row] == info[column.key]
    assert ends[TRUNCATED if game == "Pong" else TERMINATED] > 1


@pytest.mark.parametrize("stacked", [False, True], ids=["stacks", "newest frames"])
@pytest.mark.parametrize("mode", [pb.SAME_STEP, pb.NEXT_STEP])
@pytest.mark.parametrize(
    "settings",
    [
        '"soft_ends":true',
        '"max_episode_steps":50',
        '"grayscale":false,"stack":2,"frameskip":3,"screen_size":60,"max_episode_steps":30',
        '"stack":1,"frameskip":1,"full_action_space":true,"max_episode_steps":40',
    ],
)
def test_native_frames_equal_those_of_the_slots(settings: str, mode: pb.Autoreset.ValueType, stacked: bool) -> None:
    """Both hosts give the same rows: soft ends, finals, statistics, masked resets, and other settings."""
    option = f"breakout=ALE/Breakout-v5{{{EXACT},{settings}}}"
    native = Driver(build(option, 2, host=pb.NATIVE, autoreset=mode), 2, stacked)
    slots = Driver(build(option, 2, host=pb.SLOTS, autoreset=mode), 2)
    assert native.host.spec.hash() == slots.host.spec.hash()
    same_rows(native.reset(seeds(3, 2)), slots.reset(seeds(3, 2)))
    rng = np.random.default_rng(4)
    seen: set[int] = set()
    for step in range(300 if "soft" in settings else 90):
        if step % 80 == 79:
            request = ResetRequest(np.array([step % 160 == 79, step % 160 != 79]), None, None)
            same_rows(native.reset(request), slots.reset(request))
        action = rng.integers(4, size=2)
        rows = native.step([action])
        same_rows(rows, slots.step([action]))
        seen |= set(rows.flags.tolist())
    ends = {0, TRUNCATED} if mode == pb.NEXT_STEP else {0, TRUNCATED | FIRST}
    assert seen >= ({0, TERMINATED | FIRST | SOFT} if "soft" in settings else ends)


@pytest.mark.parametrize("host", [pb.NATIVE, pb.SLOTS])
def test_little_of_a_game_travels(host: pb.Host.ValueType) -> None:
    """Of two games of Pong less than a tenth of their newest frames, and of whole stacks less than a tenth, too."""
    option = f"pong=ALE/Pong-v5{{{EXACT}}}"
    newest, stacks = (Driver(build(option, 2, host=host), 2, stacked) for stacked in (True, False))
    same_rows(newest.reset(seeds(0, 2)), stacks.reset(seeds(0, 2)))
    rng = np.random.default_rng(1)
    for step in range(60):
        action = rng.integers(4, size=2)
        same_rows(newest.step([action]), stacks.step([action]))
        if step > 4:  # the court has appeared, and moved through the stack
            assert newest.body_bytes < 2 * 84 * 84 / 10
            assert stacks.body_bytes < 2 * 4 * 84 * 84 / 10


def test_threads_change_no_row() -> None:
    """Three games stepped by two threads give what one thread gives, luck of the games included."""
    sticky = '"repeat_action_probability":0.25,"max_episode_steps":40'
    one, two = (
        Driver(build(f"breakout=ALE/Breakout-v5{{{sticky}{threads}}}", 3, host=pb.NATIVE), 3)
        for threads in ("", ',"$threads":2')
    )
    assert one.host.spec.hash() == two.host.spec.hash()
    same_rows(one.reset(seeds(3, 3)), two.reset(seeds(3, 3)))
    rng = np.random.default_rng(4)
    for _ in range(100):
        action = rng.integers(4, size=3)
        same_rows(one.step([action]), two.step([action]))


@pytest.mark.parametrize(("asked", "threads"), [(1, 1), (2, 2), (5, 3)])
def test_a_lane_steps_with_the_threads_asked_for(monkeypatch: pytest.MonkeyPatch, asked: int, threads: int) -> None:
    """No more than it has games, which are three."""
    real, told = vector_env.AtariVectorEnv, []

    def noted(*args: Any, num_threads: int, **kwargs: Any) -> Any:
        told.append(num_threads)
        return real(*args, num_threads=num_threads, **kwargs)

    monkeypatch.setattr(vector_env, "AtariVectorEnv", noted)
    build(f'breakout=ALE/Breakout-v5{{"$threads":{asked}}}', 3, host=pb.NATIVE).close()
    assert told == [threads]


@pytest.mark.parametrize("host", [pb.NATIVE, pb.SLOTS])
def test_breakout_plays_on_past_its_first_life(host: pb.Host.ValueType) -> None:
    """Four soft ends and one real one: five lives make one game, with statistics at its end alone."""
    option = f'breakout=ALE/Breakout-v5{{{EXACT},"soft_ends":true}}'
    driver = Driver(build(option, 1, host=host), 1)
    assert driver.host.soft_ends
    driver.reset(seeds(0, 1))
    soft = steps = 0
    reward = 0.0
    while True:
        rows = driver.step([np.array([steps % 4])])
        steps += 1
        reward += rows.rewards[0]
        soft += bool(rows.flags[0] & SOFT)
        if rows.flags[0] & SOFT:
            assert rows.stats is None
            assert not len(rows.final_rows)
        elif rows.flags[0]:
            break
    assert soft == 4
    assert rows.flags[0] == TERMINATED | FIRST
    assert driver.tracker.episode[0] == 5
    assert rows.stats is not None
    assert (rows.stats.returns[0], rows.stats.lengths[0]) == (reward, steps)


@pytest.mark.parametrize("limit", [6, 100_000])
def test_an_ended_row_can_be_reset_by_mask(limit: int) -> None:
    """Next-step autoreset: the reset takes the place of the one that was due, whoever ended the episode."""
    option = f'breakout=ALE/Breakout-v5{{{EXACT},"max_episode_steps":{limit}}}'
    native, slots = (Driver(build(option, 2, host=host, autoreset=pb.NEXT_STEP), 2) for host in (pb.NATIVE, pb.SLOTS))
    same_rows(native.reset(seeds(0, 2)), slots.reset(seeds(0, 2)))
    rng, resets = np.random.default_rng(1), 0
    while resets < 4:
        action = rng.integers(4, size=2)
        rows = native.step([action])
        same_rows(rows, slots.step([action]))
        ended = (rows.flags == TERMINATED) | (rows.flags == TRUNCATED)
        if ended.any():
            resets += 1
            row = int(np.argmax(ended))
            request = ResetRequest(np.arange(2) == (row if resets % 2 else 1 - row), None, None)
            same_rows(native.reset(request), slots.reset(request))


def test_rewards_are_raw() -> None:
    """Space Invaders pays 5 to 30 points for a hit: nothing clips them."""
    driver = Driver(build(f"s=ALE/SpaceInvaders-v5{{{EXACT}}}", 1, host=pb.NATIVE), 1)
    driver.reset(seeds(0, 1))
    assert max(driver.step([np.array([step % 6])]).rewards[0] for step in range(300)) >= 5


def test_native_seeds_are_per_slot() -> None:
    """No-ops and sticky actions of a row follow its own seed, in a fresh host and in a used one."""
    hosts = [Driver(build("ALE/Breakout-v5", 3, host=pb.NATIVE), 3) for _ in range(2)]
    hosts[1].reset(seeds(50, 3))
    hosts[1].step()

    def play(driver: Driver) -> list[bytes]:
        found = [driver.reset(ResetRequest(None, [5, 6, 5], None))]
        found += [driver.step([np.full(3, step % 4)]) for step in range(40)]
        np.testing.assert_array_equal(found[-1].obs[0][0], found[-1].obs[0][2])
        assert any(not np.array_equal(rows.obs[0][0], rows.obs[0][1]) for rows in found)
        return [rows.obs[0].tobytes() for rows in found]

    assert play(hosts[0]) == play(hosts[1])


def test_a_masked_first_reset_starts_its_rows_alone() -> None:
    """ALE resets all of them; those that nobody asked for wait on the wire."""
    driver = Driver(build(f"p=ALE/Pong-v5{{{EXACT}}}", 2, host=pb.NATIVE), 2)
    with pytest.raises(ServerRefused, match="BAD_REQUEST"):
        driver.step()
    driver.reset(ResetRequest(np.array([False, True]), None, None))
    rows = driver.step()
    assert rows.flags.tolist() == [NO_TRANSITION, 0]
    driver.reset(ResetRequest(np.array([True, False]), None, None))
    assert driver.step().flags.tolist() == [0, 0]
    with pytest.raises(ServerRefused, match="without rows"):
        driver.reset(ResetRequest(np.array([False, False]), None, None))
