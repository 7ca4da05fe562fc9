"""What all tests against real servers share."""

from __future__ import annotations

import grpc.aio
import pytest


@pytest.fixture(scope="session", autouse=True)
def grpc_is_up() -> None:
    """gRPC's own poller, its thread and its two sockets, is there before any census looks."""
    grpc.aio.init_grpc_aio()  # type: ignore[attr-defined]  # the stubs lack it
