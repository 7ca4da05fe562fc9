"""Settings that cannot be, and counters."""

from __future__ import annotations

import random
from typing import Any

import pytest

from asyncrl.client.fleet_config import FAULTS, FleetConfig, FleetStats
from asyncrl.client.lane_context import LaneContext
from asyncrl.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"autoreset": "sometimes"}, "same_step, next_step, disabled"),
        ({"host": "both"}, "auto, native, slots"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**63}, "seed is"),
        ({"num_envs": 3, "incarnations": [0]}, "1 incarnations for 3"),
    ],
)
def test_impossible_settings_say_what_is_possible(settings: dict[str, Any], text: str) -> None:
    """Refused where they are made, before any server is asked."""
    with pytest.raises(ConfigError, match=text):
        FleetConfig(**{"env": "toy", "num_envs": 1, **settings})


class _NoClock:
    def now(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None: ...

    def call_later(self, seconds: float, callback: Any) -> Any: ...


def test_stats_show_what_the_lanes_count() -> None:
    """One object for all lanes; nothing is copied."""
    context = LaneContext(_NoClock(), random.Random(0))
    stats = FleetStats(context)
    context.counters.frames_in += 3
    context.counters.bytes_out += 5
    context.duplicates += 1
    for lag in (0.1, 0.7, 0.2):
        context.loop_lag.add(lag)
    assert (stats.frames_in, stats.bytes_out, stats.duplicates) == (3, 5, 1)
    assert (stats.loop_lag.last_s, stats.loop_lag.max_s) == (0.2, 0.7)


def test_news_are_no_faults() -> None:
    """A lane that opened or a server that builds is nothing to count as broken."""
    assert not FAULTS & {"lane_opened", "building", "server_log", "draining"}
