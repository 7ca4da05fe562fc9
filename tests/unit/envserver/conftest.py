"""Launchers of real lane processes, closed with the test that made them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest_asyncio

from envserver.launching import Launcher, NurseryLauncher, make_launcher
from tests.unit.envserver.wild_env import registry


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
