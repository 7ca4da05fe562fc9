"""Where the environments of a run are."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from asyncrl.client.one_core import OneCore
from asyncrl.config import PPOConfig, RunConfig
from asyncrl.run.serving import FEW, Serving, core_for_turns, lane_threads, serving
from tests.unit.run.tiny_training import tiny_config


@pytest.mark.parametrize(("mode", "turns"), [("sync", True), ("lag 1", False), ("async", False)])
async def test_only_a_sync_run_takes_turns(tmp_path: Path, mode: str, turns: bool) -> None:
    """Elsewhere a learner computes beside the loop, and waking up has to preempt it."""
    config = tiny_config(tmp_path, mode=mode)
    async with serving(config, "10.0.0.1:1,10.0.0.2:2", None, 6) as found:
        assert found.takes_turns is turns
        assert found.own_lanes(6) is None
        assert (list(found.addresses), found.env, found.embedded) == (
            ["10.0.0.1:1", "10.0.0.2:2"],
            "CartPole-v1",
            False,
        )


@pytest.mark.rpc
async def test_an_own_server_has_no_more_lanes_than_cores(tmp_path: Path) -> None:
    """They are the policy's cores as well; fewer environments have fewer lanes."""
    async with serving(tiny_config(tmp_path), None, None, 3) as found:
        assert found.embedded
        assert found.own_lanes(1000) == len(os.sched_getaffinity(0))
        assert found.own_lanes(1) == 1


PONG = {"env_id": "ALE/Pong-v5"}


@pytest.mark.parametrize(
    ("changed", "threads"),
    [
        (PONG, 4),
        (PONG | {"num_envs": 6}, 6),
        ({"env_id": "pong=ALE/Pong-v5", "num_envs": 6 * FEW}, 6),
        (PONG | {"num_envs": 6 * FEW + 1}, 0),
        (PONG | {"mode": "async"}, 2),
        (PONG | {"mode": "lag 1"}, 2),
        (PONG | {"host": "slots"}, 0),
        (PONG | {"lanes": 2}, 0),
        (PONG | {"search": "exit"}, 0),
        (PONG | {"env_kwargs": '{"preprocess": false}'}, 0),
        (PONG | {"env_kwargs": '{"difficulty": 1}'}, 0),
        (PONG | {"env_kwargs": '{"mode": 1}'}, 0),
        (PONG | {"env_kwargs": '{"noop_max": 0}'}, 4),
        ({}, 0),
    ],
)
def test_a_few_games_share_one_lane_with_threads(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], threads: int
) -> None:
    """On six cores, of which a learner that computes meanwhile has four. What needs slots or is asked for stays."""
    monkeypatch.setattr("asyncrl.run.serving.cores_here", lambda: 6)
    config: RunConfig = PPOConfig(**{"num_envs": 4, **changed})
    assert lane_threads(config) == threads


@pytest.mark.parametrize(("threads", "lanes"), [(0, 2), (1, 1), (2, 1)])
def test_lanes_with_threads_are_alone(monkeypatch: pytest.MonkeyPatch, threads: int, lanes: int) -> None:
    """On two of them."""
    monkeypatch.setattr("asyncrl.run.serving.cores_here", lambda: 2)
    assert Serving(["unix:/x"], "pong", {}, None, True, True, threads).own_lanes(8) == lanes


@pytest.mark.parametrize(
    ("changed", "stays"),
    [
        ({"lanes": 1}, True),
        ({"num_envs": 1}, True),
        ({}, False),
        ({"lanes": 2}, False),
        ({"lanes": 1, "mode": "lag 1"}, False),
        ({"lanes": 1, "mode": "async"}, False),
        ({"lanes": 1, "search": "exit"}, False),
        (PONG | {"lanes": 1}, True),
        (PONG | {"num_envs": 1}, False),
    ],
)
def test_only_one_lane_in_turn_has_a_core(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], stays: bool
) -> None:
    """Several lanes step at once, a learner that need not be waited for computes meanwhile, threads want cores."""
    core = OneCore(5)
    monkeypatch.setattr(OneCore, "here", lambda: core)
    monkeypatch.setattr("asyncrl.run.serving.cores_here", lambda: 6)
    assert core_for_turns(PPOConfig(**{"num_envs": 4, **changed})) is (core if stays else None)


async def test_an_own_server_is_told_of_threads_and_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads beside the keyword arguments; who names a number of them has it."""
    told: list[dict[str, Any]] = []

    class Server:
        address = "unix:/x"

        def __init__(self, env: str, num_envs: int, kwargs: dict[str, Any], options: dict[str, Any]) -> None:
            told.append({**kwargs, **options})

        async def __aenter__(self) -> Server:
            return self

        async def __aexit__(self, *_exc: object) -> None:
            return

    monkeypatch.setattr("asyncrl.run.serving.EmbeddedServer", Server)
    monkeypatch.setattr("asyncrl.run.serving.cores_here", lambda: 2)
    for wish in ('{"noop_max": 0}', '{"$threads": 3}'):
        async with serving(PPOConfig(env_id="ALE/Pong-v5", env_kwargs=wish), None, None, 8) as found:
            assert found.own_lanes(8) == 1
    async with serving(PPOConfig(), None, None, 8):
        pass
    async with serving(PPOConfig(), None, None, 8, core=OneCore(1)):
        pass
    assert told == [{"$threads": 2, "noop_max": 0}, {"$threads": 3}, {}, {"core": 1}]
