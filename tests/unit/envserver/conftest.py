"""Launchers of real lane processes and socketpairs, closed with the test that made them."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import pytest_asyncio

from envserver.launching import Launcher, NurseryLauncher, make_launcher
from tests.unit.envserver.wild_env import registry


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest_asyncio.fixture
async def launchers() -> AsyncIterator[Callable[[str], Launcher]]:
    """Makes a launcher by its name, `nursery` or `exec`."""
    made: list[Launcher] = []

    def make(name: str) -> Launcher:
        made.append(make_launcher(name, registry()))
        return made[-1]

    yield make
    for launcher in made:
        await launcher.close()


@pytest_asyncio.fixture
async def launcher() -> AsyncIterator[NurseryLauncher]:
    launcher = NurseryLauncher(registry())
    yield launcher
    await launcher.close()
