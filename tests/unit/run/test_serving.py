"""Where the environments of a run are."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from asyncrl.config import PPOConfig, RunConfig
from asyncrl.learner.machine import cores_here
from asyncrl.run.serving import FEW, Serving, lane_threads, serving
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
        (PONG, True),
        ({"env_id": "pong=ALE/Pong-v5", "num_envs": FEW}, True),
        (PONG | {"num_envs": FEW * cores_here() + 1}, False),
        (PONG | {"mode": "async"}, False),
        (PONG | {"host": "slots"}, False),
        (PONG | {"lanes": 2}, False),
        (PONG | {"search": "exit"}, False),
        (PONG | {"env_kwargs": '{"preprocess": false}'}, False),
        ({}, False),
    ],
)
def test_a_few_games_in_sync_mode_share_one_lane_with_threads(changed: dict[str, Any], threads: bool) -> None:
    """Where lanes would only take turns with the policy; whatever needs slots or is asked for stays as it is."""
    config: RunConfig = PPOConfig(**{"num_envs": 4, **changed})
    assert lane_threads(config) == (cores_here() if threads else 1)


@pytest.mark.parametrize(("threads", "lanes"), [(1, 2), (2, 1), (3, 1)])
def test_lanes_and_their_threads_fill_the_cores(monkeypatch: pytest.MonkeyPatch, threads: int, lanes: int) -> None:
    """On two of them."""
    monkeypatch.setattr("asyncrl.run.serving.cores_here", lambda: 2)
    assert Serving(["unix:/x"], "pong", {}, None, True, True, threads).own_lanes(8) == lanes
