"""From addresses, or from nothing, to an open fleet."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from asyncrl.client.connecting import addresses, connect
from asyncrl.errors import ConfigError, ConnectionFailed, ServerRefused


def test_lists_of_addresses() -> None:
    """One, several in a string, a list; twice the same is a mistake."""
    assert addresses("a:1") == ["a:1"]
    assert addresses("a:1, b:2,") == ["a:1", "b:2"]
    assert addresses(["a:1", "b:2"]) == ["a:1", "b:2"]
    with pytest.raises(ConfigError, match="twice"):
        addresses("a:1,a:1")
    with pytest.raises(ConfigError, match="no servers"):
        addresses(" , ")


def open_fds() -> int:
    """0 where the system does not tell."""
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.exists() else 0


@pytest.mark.rpc
async def test_connect_closes_everything_it_made() -> None:
    """The embedded default: rows come, and after it neither child, socket nor descriptor is left."""
    async with connect(env="CartPole-v1", num_envs=4, seed=1, lanes=2) as fleet:
        before = open_fds()
        address = fleet.lanes[0].address
        for _ in range(50):
            arrival = await fleet.recv()
            assert arrival.rows is not None
            arrival.lane.step([np.zeros(arrival.lane.num_slots, np.int64)])
    if address.startswith("unix:"):
        assert not Path(address.removeprefix("unix:")).parent.exists()
    assert open_fds() < before or not before


@pytest.mark.rpc
async def test_a_failed_connect_names_what_is_wrong() -> None:
    """Settings, addresses, servers; each typed."""
    with pytest.raises(ConfigError, match="num_enjs"):
        async with connect("127.0.0.1:1", env="CartPole-v1", num_enjs=1):
            pass
    with pytest.raises(ConfigError, match="write HOST:PORT"):
        async with connect("worker", env="CartPole-v1"):
            pass
    with pytest.raises(ConnectionFailed, match="tcp FAILED: nothing listens"):
        async with connect("127.0.0.1:1", env="CartPole-v1"):
            pass
    with pytest.raises(ConfigError, match="needs env"):
        async with connect():
            pass


@pytest.mark.rpc
async def test_the_embedded_server_has_room_for_what_is_asked() -> None:
    """And its refusals come through as they are: CartPole resets in the next step where it is native."""
    with pytest.raises(ServerRefused, match="native"):
        async with connect(env="CartPole-v1", num_envs=2, host="native", autoreset="same_step"):
            pass
