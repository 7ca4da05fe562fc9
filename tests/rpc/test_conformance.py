"""The conformance checks on the real env server, over TCP, with every kind of environment that it ships or is given."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from asyncrl.client.grpc_transport import GrpcConnector
from asyncrl.conformance import CHECKS, looking, run_checks, stacking
from tests.rpc.serving import serving

pytestmark = pytest.mark.rpc

# alias -> checks that do not apply to it
SKIPPED = {
    "CartPole-v1": {"actions_that_are_no_numbers_are_refused", "the_step_limit_truncates"},
    "Pendulum-v1": {"actions_out_of_range_are_refused"},
    "Taxi-v4": {"actions_that_are_no_numbers_are_refused"},
    "nested": {"the_step_limit_truncates"},
}
# Offered, and so not refused; no stacks and no pictures; and not to be drawn without pygame.
EVERYWHERE = {
    "what_is_not_offered_is_unsupported",
    "newest_frames_make_the_stacks_that_are_sent_whole",
    "newest_frames_of_a_look_end_in_the_stack_that_it_shows",
    "changes_make_what_is_sent_whole",
}
UNDRAWN = {"CartPole-v1", "Pendulum-v1", "Taxi-v4"}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with serving("CartPole-v1", "Pendulum-v1", "Taxi-v4", "nested=tests.rpc.simulators:Nested") as address:
        yield address


@pytest.mark.parametrize(
    "env", [pytest.param(env, marks=pytest.mark.slow if env != "CartPole-v1" else ()) for env in SKIPPED]
)
async def test_the_env_server_conforms(server: str, env: str) -> None:
    """Nothing fails, and what is skipped is what this environment cannot be asked."""
    connector = GrpcConnector(server)
    try:
        results = await run_checks(connector, env)
    finally:
        await connector.close()
    assert [(result.check.name, result.reason) for result in results if result.status == "failed"] == []
    skipped = {result.check.name for result in results if result.status == "skipped"}
    allowed = SKIPPED[env] | EVERYWHERE | ({"images_have_the_size_they_claim"} if env in UNDRAWN else set())
    assert skipped <= allowed, skipped - allowed
    assert len(results) == len(CHECKS)


@pytest.mark.slow
async def test_sticky_actions_pass_the_checks_of_looking_ahead_and_of_stacks() -> None:
    """Lanes that are opened with snapshots draw them outside of ALE: the checks compare such lanes with their like."""
    names = {each.name for each in CHECKS.values() if each.function.__module__ in (looking.__name__, stacking.__name__)}
    with serving("pong=ALE/Pong-v5") as address:
        connector = GrpcConnector(address)
        try:
            results = await run_checks(connector, "pong", only=names)
        finally:
            await connector.close()
    assert [(result.check.name, result.status, result.reason) for result in results if result.status != "passed"] == []
    assert len(results) == len(names)
