"""Where the environments of a run are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from asyncrl.run.serving import serving
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
