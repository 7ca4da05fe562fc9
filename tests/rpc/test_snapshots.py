"""Snapshots over real servers: other processes, other servers, broken streams, learners that vanish."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncrl
from asyncrl.client.fleet import Fleet
from asyncrl.client.snapshots import SimulateEntry
from asyncrl.errors import ServerRefused
from asyncrl.wire._generated import env_pb2 as pb
from asyncrl.wire.tensors import Array
from tests.rig.processes import EnvServerProcess
from tests.rig.proxy import FaultProxy

pytestmark = pytest.mark.rpc

ENVS = {
    "CartPole": "CartPole=CartPole-v1",
    "Pendulum": "Pendulum=Pendulum-v1",
    "FrozenLake": "FrozenLake=FrozenLake-v1",
    "Taxi": "Taxi=Taxi-v4",
    "Blackjack": "Blackjack=Blackjack-v1",
    "Breakout": 'Breakout=ALE/Breakout-v5{"soft_ends": true}',
    "Pong": 'Pong=ALE/Pong-v5{"repeat_action_probability": 0.0}',
}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Two key files."""
    folder = tmp_path_factory.mktemp("keys")
    paths = [folder / name for name in ("ours", "theirs")]
    for path in paths:
        path.touch(0o600)
        path.write_bytes(os.urandom(32))
    return str(paths[0]), str(paths[1])


@asynccontextmanager
async def one_lane(address: str, env: str, seed: int = 1, **settings: Any) -> AsyncIterator[Fleet]:
    """A fleet of one lane with one slot that stands at its first observation."""
    wishes = {"num_envs": 1, "lanes": 1, "seed": seed, "snapshots": True, **settings}
    async with asyncrl.connect(address, env=env, **wishes) as fleet:
        await fleet.recv()
        yield fleet


async def step(fleet: Fleet, action: Array) -> Any:
    """What a client gets of one step."""
    fleet.lanes[0].step([action[None]])
    rows = (await fleet.recv()).rows
    assert rows is not None
    return [leaf.tobytes() for leaf in rows.obs], rows.rewards.tolist(), rows.flags.tolist()


def random_actions(fleet: Fleet, count: int) -> list[Array]:
    assert fleet.spec is not None
    (node,) = fleet.spec.action.nodes
    rng = np.random.default_rng(0)
    if node.kind == pb.DISCRETE:
        return [np.asarray(action, node.dtype) for action in rng.integers(node.n, size=count)]
    return [rng.uniform(-1, 1, node.shape).astype(node.dtype) for _ in range(count)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("servers")


async def test_states_go_on_on_another_server(folder: Path, keys: tuple[str, str]) -> None:
    """Every environment: 60 steps after a restore in another server's process equal those of where it comes from; a
    server with another key takes nothing."""
    ours = ["--snapshot-key-file", keys[0]]
    async with (
        EnvServerProcess(folder, envs=list(ENVS.values()), options=ours, name="one") as one,
        EnvServerProcess(folder, envs=list(ENVS.values()), options=[*ours, "--launcher", "exec"], name="two") as two,
        EnvServerProcess(folder, envs=list(ENVS.values()), options=["--snapshot-key-file", keys[1]], name="no") as no,
    ):
        for env in ENVS:
            async with one_lane(one.address, env) as here, one_lane(two.address, env, seed=2) as there:
                actions = random_actions(here, 75)
                for action in actions[:15]:
                    await step(here, action)
                (root,) = await here.lanes[0].snapshots.snapshot([0])
                states = await here.lanes[0].snapshots.export([root])
                wanted = [await step(here, action) for action in actions[15:]]
                (imported,) = await there.lanes[0].snapshots.import_(states)
                await there.lanes[0].snapshots.restore(0, imported)
                await there.recv()
                assert [await step(there, action) for action in actions[15:]] == wanted, env
        async with one_lane(no.address, env) as nowhere:
            with pytest.raises(ServerRefused, match="another server's key"):
                await nowhere.lanes[0].snapshots.import_(states)


async def test_a_resumed_stream_executes_no_wave_twice(folder: Path, tmp_path: Path) -> None:
    """The connection breaks while waves are under way: each is answered once, and each step was taken once."""
    count = tmp_path / "count"
    slow = json.dumps({"count": str(count), "sleep_s": 0.01})
    async with EnvServerProcess(folder, envs=[f"slow=tests.rpc.snapshot_env:make{slow}"], name="slow") as server:
        host, _, port = server.address.rpartition(":")
        async with (
            FaultProxy((host, int(port))) as proxy,
            one_lane(proxy.address, "slow", resumable=True) as fleet,
        ):
            lane = fleet.lanes[0].snapshots
            fleet.lanes[0].reset(options={"counted": True})
            await fleet.recv()
            (root,) = await lane.snapshot([0])
            wave = [SimulateEntry(root, [np.array([1])], keep_as=lane.new_id()) for _ in range(30)]
            async with asyncio.timeout(40), asyncio.TaskGroup() as group:
                tasks = [group.create_task(lane.simulate(wave[part::3])) for part in range(3)]
                while not count.exists() or len(count.read_bytes()) < 5:
                    await asyncio.sleep(0.01)
                proxy.reset()
            assert all(task.result().ok.all() for task in tasks)
            assert len(count.read_bytes()) == 30
            assert fleet.stats.faults["stream_resumed"] == 1
            assert await lane.release([root, *(entry.keep_as or 0 for entry in wave)]) == 31
            assert lane.store_bytes == 0


async def test_what_a_vanished_learner_held_is_freed(folder: Path) -> None:
    """A client that goes without a word loses its lane, and the lane's process takes every snapshot with it."""
    options = ["--quota", "lease_s=1", "--quota", "resume_window_s=1"]
    async with EnvServerProcess(folder, envs=["CartPole-v1"], options=options, name="lease") as server:
        host, _, port = server.address.rpartition(":")
        async with FaultProxy((host, int(port))) as proxy:
            async with one_lane(proxy.address, "CartPole-v1", resumable=True) as fleet:
                lane = fleet.lanes[0].snapshots
                (root,) = await lane.snapshot([0])
                wave = [SimulateEntry(root, [np.array([1])], keep_as=lane.new_id()) for _ in range(1000)]
                assert (await lane.simulate(wave)).ok.all()
                assert len(server.lane_pids()) == 1
                proxy.hole()
            async with asyncio.timeout(20):
                while server.lane_pids():
                    await asyncio.sleep(0.05)
            proxy.hole(False)
        async with one_lane(server.address, "CartPole-v1"):
            pass


async def test_a_server_lets_nothing_leave_without_a_key(folder: Path) -> None:
    """Snapshots work; export says what to pass."""
    async with (
        EnvServerProcess(folder, envs=["CartPole-v1"], name="keyless") as server,
        one_lane(server.address, "CartPole-v1") as fleet,
    ):
        lane = fleet.lanes[0].snapshots
        (root,) = await lane.snapshot([0])
        assert not lane.exports
        with pytest.raises(ServerRefused, match="--snapshot-key-file"):
            await lane.export([root])
        assert (await lane.simulate([SimulateEntry(root, [np.array([1])])])).ok.all()


async def test_quotas_are_the_owners(folder: Path) -> None:
    """A small store refuses entries one by one, typed, and goes on once there is room."""
    async with (
        EnvServerProcess(folder, envs=["CartPole-v1"], options=["--quota", "snapshots=3"], name="small") as server,
        one_lane(server.address, "CartPole-v1") as fleet,
    ):
        lane = fleet.lanes[0].snapshots
        (root,) = await lane.snapshot([0])
        wave = [SimulateEntry(root, [np.array([1])], keep_as=lane.new_id()) for _ in range(4)]
        found = await lane.simulate(wave)
        assert [status.code for status in found.status] == ["OK", "OK", "QUOTA", "QUOTA"]
        with pytest.raises(ServerRefused) as refused:
            await lane.snapshot([0])
        assert refused.value.code == "SNAPSHOT_QUOTA"
        lane.forget([root])
        assert len(await lane.snapshot([0])) == 1


async def test_the_example_of_the_docs_runs(capfd: pytest.CaptureFixture[str]) -> None:
    """As it is printed."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "snapshots.md").read_text()
    code = page.partition("```python\n")[2].partition("```")[0]
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    assert await process.wait() == 0
    assert capfd.readouterr().out.startswith("[1. 1.]")


@pytest.mark.parametrize("env", ["Pong", "Breakout"])
async def test_looks_show_whole_stacks(folder: Path, env: str) -> None:
    """Looks from looked-at states, of which only new frames travel, show what all the steps from the root do, of which
    everything travels: over ends of lives and of episodes, by one step and by several, with and without a child."""
    rng = np.random.default_rng(3)
    async with EnvServerProcess(folder, envs=[ENVS[env]], name="stacks") as server, one_lane(server.address, env) as at:
        lane = at.lanes[0].snapshots
        (root,) = await lane.snapshot([0])
        paths: dict[int, Array] = {root: np.zeros(0, np.int64)}
        for _ in range(12):
            parents = rng.choice(list(paths), 6)
            steps = [rng.integers(4, size=rng.choice([0, 1, 1, 2, 3, 4, 40])) for _ in parents]
            ways = [np.concatenate([paths[parent], more]) for parent, more in zip(parents, steps, strict=True)]
            near = [
                SimulateEntry(int(parent), [more], keep_as=lane.new_id(), rng=pb.FROZEN)
                for parent, more in zip(parents, steps, strict=True)
            ]
            far = [SimulateEntry(root, [way], rng=pb.FROZEN) for way in ways]
            found, wanted = await lane.simulate(near), await lane.simulate(far)
            assert found.obs[0].tobytes() == wanted.obs[0].tobytes()
            over = found.terminated | found.truncated
            paths |= {
                entry.keep_as: way
                for entry, way, ended in zip(near, ways, over, strict=True)
                if entry.keep_as is not None and not ended
            }
        assert len(lane._stacks) > 10
        lane.forget(paths)
        assert len(lane._stacks) == 0
