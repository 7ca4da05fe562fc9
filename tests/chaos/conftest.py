"""What all tests against real servers share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc.aio
import pytest
import pytest_asyncio

from tests.rig.processes import EnvServerProcess


@pytest_asyncio.fixture(autouse=True)
async def grpc_is_up() -> None:
    """gRPC's own poller, its thread and its two sockets, is there before any census looks, and stays."""
    grpc.aio.init_grpc_aio()  # type: ignore[attr-defined]  # the stubs lack it


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EnvServerProcess]:
    """One env server for tests that do it no harm."""
    async with EnvServerProcess(tmp_path_factory.mktemp("shared"), num_envs=64, name="shared") as server:
        yield server
